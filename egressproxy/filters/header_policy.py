"""HeaderPolicy: set, add and remove fields of requests and responses.

Edits are compiled to one pattern of the lines to remove and one block of bytes to append, however many there are.
Source: Gateway API HTTPHeaderFilter (RequestHeaderModifier, ResponseHeaderModifier). `add` appends a line, which means
the same as joining by a comma (RFC 9110 section 5.3) and is also right for fields that are not lists. `set` and
`remove` remove every spelling that some origin takes for the same field (`X_Tenant` for `X-Tenant`).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from egressproxy.filters.base import REQUEST_HEADS, RESPONSE_PHASE, Filter, FilterContext, FilterType, OfMessages
from egressproxy.filters.settings import FieldName, FieldValue, FilterConfig
from egressproxy.ir.policy import FieldFault
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields, every_spelling

#: Fields that the gateway itself writes or consumes: framing, routing and hop-by-hop (RFC 9110 section 7.6.1).
PROTECTED = frozenset((
    "connection", "content-length", "expect", "host", "keep-alive", "max-forwards", "te", "trailer",
    "transfer-encoding", "upgrade", "via",
))  # fmt: skip
PROTECTED_PREFIX = "proxy-"


def is_protected(name: str) -> bool:
    """Whether the gateway itself writes or consumes this field, in any spelling."""
    name = name.lower().replace("_", "-").strip("-")
    return name in PROTECTED or name.startswith(PROTECTED_PREFIX)


@dataclass(frozen=True, slots=True)
class HeaderValue(FilterConfig):
    """A field to set or add."""

    name: FieldName
    value: FieldValue


@dataclass(frozen=True, slots=True)
class HeaderEdits(FilterConfig):
    """HTTPHeaderFilter. Each field may be edited once, and none that the gateway writes itself."""

    set: tuple[HeaderValue, ...] = ()
    add: tuple[HeaderValue, ...] = ()
    remove: tuple[FieldName, ...] = ()

    def __post_init__(self) -> None:
        written: list[tuple[str, tuple[str | int, ...]]] = [
            *((each.name.lower(), ("set", index, "name")) for index, each in enumerate(self.set)),
            *((each.name.lower(), ("add", index, "name")) for index, each in enumerate(self.add)),
            *((each.lower(), ("remove", index)) for index, each in enumerate(self.remove)),
        ]
        counts = Counter(name for name, _ in written)
        for name, path in reversed(written):
            if is_protected(name):
                remedy = "; rewrite the host instead (UrlRewrite)" if name == "host" else ""
                raise FieldFault(f"{name} is written by the gateway itself and cannot be edited{remedy}", *path)
            if counts[name] > 1:
                raise FieldFault(f"{name} is edited {counts[name]} times; one action per field is allowed", *path)


@dataclass(frozen=True, slots=True)
class HeaderPolicyConfig(FilterConfig):
    """`request` edits need a request phase."""

    request: HeaderEdits = HeaderEdits()
    response: HeaderEdits = HeaderEdits()


class HeaderPolicy(Filter):
    """Request edits run in the request phase where it is placed, response edits in the response phase of that."""

    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        config: HeaderPolicyConfig = context.config
        self._request = _Edits(config.request)
        self._response = _Edits(config.response)
        if context.phase not in REQUEST_HEADS and self._request:
            raise ValueError(f"`request` edits cannot run in phase {context.phase.value}; place it in a request phase")
        parts = ((context.phase, self._request), (RESPONSE_PHASE.get(context.phase, context.phase), self._response))
        self.runs_in = frozenset(phase for phase, edits in parts if edits)
        response = config.response
        names = (*response.remove, *(header.name for header in (*response.set, *response.add)))
        self.ignores_trailers = not any(name.lower().startswith("grpc") for name in names)

    def request_headers(self, exchange: Exchange) -> None:
        fields, edits = exchange.request.fields, self._request
        if edits.cut is not None:
            fields.cut(edits.cut)
        fields.block += edits.block

    backend_request = request_headers

    def response_headers(self, exchange: Exchange) -> None:
        fields, edits = exchange.response.fields, self._response
        if edits.cut is not None:
            fields.cut(edits.cut)
        fields.block += edits.block

    backend_response = response_headers


class _Edits:
    """Compiled edits: the pattern of the lines to remove (None: no line), and the lines to append."""

    __slots__ = ("block", "cut")

    def __init__(self, edits: HeaderEdits) -> None:
        names = (*(v.name for v in edits.set), *edits.remove)
        self.cut: re.Pattern[bytes] | None = every_spelling(names) if names else None
        self.block = Fields.of((v.name.encode(), v.value.encode()) for v in (*edits.set, *edits.add)).block

    def __bool__(self) -> bool:
        return self.cut is not None or bool(self.block)


HEADER_POLICY = FilterType(
    name="egressproxy.io/HeaderPolicy:v1",
    phases=REQUEST_HEADS | frozenset(RESPONSE_PHASE.values()),
    config_model=HeaderPolicyConfig,
    build=HeaderPolicy,
    also=frozenset(RESPONSE_PHASE.values()),
    summary="Sets, adds and removes fields of requests and responses.",
)
