"""What a processor may change in a head, and the change.

Sources: Envoy API v3, HeaderMutationRules; the defaults of Envoy's ext_proc filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from egressproxy.envoy.field_change import FieldAction, FieldChange, apply
from egressproxy.envoy.processors.settings import ForwardRules, MutationRules
from egressproxy.filters.header_policy import is_protected
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import TOKEN, Fields
from egressproxy.model.message import TARGET, has_dot_segment
from egressproxy.protocols.http1.writer import PHRASES
from egressproxy.telemetry.filter_meter import FilterCounter, FilterMeter

#: As Envoy's defaults: lines of one mutation and of the head behind it, and bytes of that head.
MAX_LINES: Final = 100
MAX_HEAD_BYTES: Final = 60 * 1024

#: What changes only with `allowAllRouting`.
_ROUTING: Final = frozenset((b":authority", b":scheme", b":method", b"host"))
_METHODS_OF_CLIENTS: Final = frozenset((b"HEAD", b"CONNECT", b"TRACE"))
_PATH: Final = re.compile(rb"(?=/)" + TARGET)
_STATUS: Final = re.compile(rb"[2-5][0-9][0-9]")


class HeaderNotAllowed(Exception):
    """The rules do not allow a change, and `disallowIsError` is set."""


class InvalidMutation(Exception):
    """A change that no message can have: a name, a value, a path, a status, or too many lines."""


class MutationChecker:
    """Applies changes under rules. `rejected` is told of each one that the rules have left out."""

    __slots__ = ("_allowed", "_disallowed", "_rejected", "_rules")

    def __init__(self, rules: MutationRules, rejected: Callable[[], None]) -> None:
        self._rules = rules
        self._rejected = rejected
        self._allowed = re.compile(rules.allow_expression.encode()) if rules.allow_expression else None
        self._disallowed = re.compile(rules.disallow_expression.encode()) if rules.disallow_expression else None

    def change_request(self, changes: Sequence[FieldChange], exchange: Exchange, *, replaces: bool = False) -> None:
        """Change the head of the request. `replaces`: the whole message is replaced, and its method may be, too. Raises
        HeaderNotAllowed and InvalidMutation; the head is as it was then.
        """
        request = exchange.request
        before = request.fields.block, request.path, request.method, exchange.upstream_host
        try:
            for name, value in self._apply(changes, request.fields, is_response=False, replaces=replaces):
                if name == b":path":
                    if not _PATH.fullmatch(value) or has_dot_segment(value.partition(b"?")[0]):
                        raise InvalidMutation(":path is not the path of a request, or contains dot segments")
                    request.path = value
                elif name == b":method":
                    # What frames the answer (HEAD) and what opens a tunnel (CONNECT) stays what the client has asked
                    # for; TRACE would have the backend tell what was injected (RFC 9110 section 9.3.8).
                    if not TOKEN.fullmatch(value) or value in _METHODS_OF_CLIENTS or request.method == b"HEAD":
                        raise InvalidMutation(":method cannot become this one")
                    request.method = value
                elif name in (b":authority", b"host"):
                    if not value or len(value) > 259 or not re.fullmatch(rb"[A-Za-z0-9.\-_:\[\]]+", value):
                        raise InvalidMutation(":authority is not a host")
                    exchange.upstream_host = value
        except Exception:  # the exchange may go on without the processor
            request.fields.block, request.path, request.method, exchange.upstream_host = before
            raise

    def change_response(self, changes: Sequence[FieldChange], exchange: Exchange) -> None:
        """Change the head of the response. Raises as `change_request`."""
        response = exchange.response
        before = response.fields.block, response.status, response.phrase
        try:
            for name, value in self._apply(changes, response.fields, is_response=True):
                if name == b":status":
                    status = int(value) if _STATUS.fullmatch(value) else 0
                    has_no_body = status in (204, 205, 304)
                    if not status or status == 407 or (has_no_body and response.body != 0) or response.status < 200:
                        raise InvalidMutation(":status cannot become this one")
                    response.status, response.phrase = status, PHRASES.get(status, b"")
        except Exception:
            response.fields.block, response.status, response.phrase = before
            raise

    def change_answer(self, changes: Sequence[FieldChange], fields: Fields) -> None:
        """Change the fields of a response that is made here. Raises as `change_request`."""
        for _ in self._apply(changes, fields, is_response=True):
            pass

    def change_trailers(self, changes: Sequence[FieldChange], fields: Fields) -> None:
        """Change trailers. Raises as `change_request`."""
        before = fields.block
        try:
            self.change_answer(changes, fields)
        except Exception:
            fields.block = before
            raise

    def _apply(
        self, changes: Sequence[FieldChange], fields: Fields, *, is_response: bool, replaces: bool = False
    ) -> Iterable[tuple[bytes, bytes]]:
        """Change the fields; gives the pseudo-headers that are set, and their values."""
        removed = sum(change.action is FieldAction.REMOVE for change in changes)
        if max(removed, len(changes) - removed) > MAX_LINES:
            raise InvalidMutation(f"more than {MAX_LINES} lines are changed")
        kept, pseudo = [], []
        for change in changes:
            name = change.name
            if not (TOKEN.fullmatch(name) or (name[:1] == b":" and TOKEN.fullmatch(name[1:]))):
                raise InvalidMutation("a name that no field can have")
            is_method = replaces and name == b":method"
            if not is_method and not self._may_change(name, change.action, is_response=is_response):
                if name != b"content-length":  # the gateway writes it: whoever has changed a body says it, in vain
                    self._rejected()
                    if self._rules.disallow_is_error:
                        raise HeaderNotAllowed
            elif name[:1] == b":" or name == b"host":
                pseudo.append((name, change.value))
            else:
                kept.append(change)
        try:
            apply(kept, fields)
        except ValueError:
            raise InvalidMutation("a value that no field can have") from None
        if len(fields.block) > MAX_HEAD_BYTES or (kept and fields.block.count(b"\r\n") > MAX_LINES):
            raise InvalidMutation(f"the head has more than {MAX_LINES} lines or {MAX_HEAD_BYTES} bytes")
        return pseudo

    def _may_change(self, name: bytes, action: FieldAction, *, is_response: bool) -> bool:
        rules = self._rules
        is_pseudo = name[:1] == b":"
        if is_pseudo or name == b"host":
            if action is FieldAction.REMOVE or name == b":scheme":
                return False
            if is_pseudo and name not in ((b":status",) if is_response else (b":path", b":method", b":authority")):
                return False
            if name == b"host" and is_response:
                return False
        elif is_protected(name.decode("latin-1")) or name.replace(b"_", b"-").lstrip(b"-").startswith(b"x-egress-"):
            return False  # a field that the gateway writes or trusts
        if self._disallowed is not None and self._disallowed.fullmatch(name):
            return False
        if self._allowed is not None and self._allowed.fullmatch(name):
            return True
        if rules.disallow_all or (rules.disallow_system and is_pseudo):
            return False
        if name in _ROUTING and not rules.allow_all_routing:
            return False
        return not name.startswith(b"x-envoy") or rules.allow_envoy


def rejected_mutations(meter: FilterMeter) -> FilterCounter:
    return meter.counter(
        "egress_processor_rejected_header_mutations", "Changes of fields that a processor may not make."
    )


def forwarded(rules: ForwardRules) -> re.Pattern[bytes] | None:
    """The pattern of whole names that a processor is shown; None: all."""
    if not rules.allowed_headers and not rules.disallowed_headers:
        return None
    allowed, disallowed = _names(rules.allowed_headers or ("*",)), _names(rules.disallowed_headers)
    return re.compile(rb"(?!(?:%b)\Z)(?:%b)" % (disallowed or rb"(?!)", allowed))


def _names(names: Iterable[str]) -> bytes:
    return b"|".join(
        re.escape(name.lower().removesuffix("*")).encode() + (rb".*" if name.endswith("*") else b"") for name in names
    )
