"""The watch on placeholders: a request ends if it has a placeholder of another backend (a canary)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import Filter, Phase
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.masking import base64_forms
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.telemetry.event_aggregator import EventAggregator

#: The bytes that were looked at, and the last of them.
_HELD: Final[StateSlot[tuple[int, bytes]]] = StateSlot("placeholder watch")
#: The turn before all other filters of a backend.
_FIRST: Final = -2


def forms_of(text: str) -> set[bytes]:
    """The forms of this text: as is, and in base64 at every alignment, in both alphabets (as in Basic)."""
    value = text.encode()
    return {value, *base64_forms(value)}


def pattern_of(placeholders: Iterable[str]) -> re.Pattern[bytes]:
    """The pattern of these placeholders in each of their forms."""
    forms = {form for text in placeholders for form in forms_of(text)}
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return re.compile(b"|".join(map(re.escape, longest_first)))


class PlaceholderWatch(Filter):
    """Ends requests to a backend that have placeholders of other backends. `source` names a declaring object.

    It runs before every other filter of the backend, and sees the head as the rule's filters have left it.
    """

    def __init__(self, foreign: Iterable[str], source: str) -> None:
        self._foreign = pattern_of(foreign)
        self._source = source

    def backend_request(self, exchange: Exchange) -> None:
        """Raises Denied(PLACEHOLDER_MISPLACED, 403)."""
        head, search = exchange.request, self._foreign.search
        text = b"\n".join((head.fields.block, head.path, exchange.upstream_host, head.via, head.upgrade))
        if search(text) or (b"%" in text and search(unquote_to_bytes(text))):
            raise misplaced(exchange, self._source, "which belongs to another backend")


class BodyWatch(Filter):
    """Ends requests with a placeholder in the first `limit` bytes of their body, after decoding if supported."""

    only_reads = True
    decodes = True

    def __init__(self, placeholders: Iterable[str], limit: int, source: str) -> None:
        listed = tuple(placeholders)
        self._any = pattern_of(listed)
        self._longest = max(map(len, listed)) * 4 // 3 + 4  # of a form
        self._limit = limit
        self._source = source

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Raises Denied(PLACEHOLDER_MISPLACED, 403)."""
        seen, tail = exchange.state.get(_HELD) or (0, b"")
        if seen < self._limit:
            text = tail + data[: self._limit - seen]
            if self._any.search(text):
                raise misplaced(exchange, self._source, "in its body")
            exchange.keep(_HELD, (seen + len(data), text[-self._longest :]))
        return data


def misplaced(exchange: Exchange, source: str, where: str) -> Denied:
    return Denied(
        Reason.PLACEHOLDER_MISPLACED,
        f"the request to {exchange.backend} has a placeholder of a credential, {where}",
        rule=source,
        remedy="find out why the client sends it there: a placeholder is for its own backend and place alone",
    )


class PlaceholderWatches:
    """The watches of one configuration. `specs` are the injectors with a placeholder, at least one."""

    __slots__ = ("_all", "_bodies", "_body_bytes", "_made", "_notices", "_source", "specs")

    def __init__(self, specs: Iterable[ExtensionIR], notices: EventAggregator) -> None:
        self.specs = frozenset(specs)
        found = sorted(self.specs, key=lambda spec: spec.source)
        self._all = frozenset(map(_placeholder, found))
        self._body_bytes = max(getattr(spec.settings, "placeholder_body_bytes", 0) for spec in found)
        self._source = found[0].source
        self._notices = notices
        self._made: dict[frozenset[str], ConfiguredFilter | None] = {}
        self._bodies: ConfiguredFilter | None = None

    def on(self, extensions: Iterable[ExtensionIR]) -> ConfiguredFilter | None:
        """The watch on a backend with these filters, whose own placeholders it allows; or None."""
        foreign = self._all - set(map(_placeholder, extensions))
        if foreign not in self._made:
            watch = PlaceholderWatch(foreign, self._source) if foreign else None
            self._made[foreign] = self._placed(watch, Phase.BACKEND_REQUEST) if watch is not None else None
        return self._made[foreign]

    def on_bodies(self) -> ConfiguredFilter | None:
        """The watch on all bodies; None if no injector requests it."""
        if self._bodies is None and self._body_bytes:
            watch = BodyWatch(self._all, self._body_bytes, self._source)
            self._bodies = self._placed(watch, Phase.REQUEST_BODY, fail_open=True)  # of codings that are not known here
        return self._bodies

    def _placed(self, watch: Filter, phase: Phase, *, fail_open: bool = False) -> ConfiguredFilter:
        spec = ExtensionIR(
            "placeholder-watch", "egressproxy.io/PlaceholderWatch", phase.value, turn=_FIRST, fail_open=fail_open,
            scope=f"watch {len(self._made)}", source=self._source,
        )  # fmt: skip
        return ConfiguredFilter(spec, watch, notices=self._notices)


def _placeholder(spec: ExtensionIR) -> str:
    """The placeholder of an injector; "" for any other filter."""
    found: str = getattr(spec.settings, "placeholder", "")
    return found
