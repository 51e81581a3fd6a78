"""Filters that the gateway itself adds to a chain, because filters of that chain need them."""

from __future__ import annotations

from egressproxy.filters.base import ORIGINAL_HEAD, Filter, Phase
from egressproxy.filters.content_coding import ask_for_readable
from egressproxy.filters.filter_step import PlacedFilter
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange

#: Before what signs the request.
_DECODABLE = ExtensionIR("content-coding", "egressproxy.io/ContentCoding:v1", Phase.BACKEND_REQUEST.value, -(10**9))
#: Before every filter of the client's head.
_ORIGINAL = ExtensionIR("original-head", "egressproxy.io/OriginalHead:v1", Phase.REQUEST_HEADERS.value, -(10**9))


def decodable_answers() -> PlacedFilter:
    """Where body filters of responses want content codings undone: it asks backends for codings that can be."""
    return PlacedFilter(_DECODABLE, DecodableAnswers())


def original_head() -> PlacedFilter:
    """Before a filter that needs the head as the client has sent it: it keeps that."""
    return PlacedFilter(_ORIGINAL, OriginalHead())


class DecodableAnswers(Filter):
    """See `decodable_answers`."""

    runs_in = frozenset((Phase.BACKEND_REQUEST,))

    def backend_request(self, x: Exchange) -> None:
        ask_for_readable(x.request.fields)


class OriginalHead(Filter):
    """See `original_head`."""

    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def request_headers(self, x: Exchange) -> None:
        x.keep(ORIGINAL_HEAD, (x.request.path, x.request.fields.block))
