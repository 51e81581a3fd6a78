"""Filters that the gateway itself adds to a chain, because filters of that chain need them.

Credentials that filters send are for the backend: of those who share a request, only their own object's filters see
them. A filter that another object declares (the policy of a route, say, whose backend is of another namespace) runs
before a credential is put into a request and behind what masks it in a response, whatever its priority. Filters of
responses see the request as it was before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from egressproxy.filters.base import ORIGINAL_HEAD, Filter, Phase
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.content_coding import ask_for_readable
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import Exchange, StateSlot

#: Before what signs the request.
DECODABLE: Final = ExtensionIR(
    "content-coding", "egressproxy.io/ContentCoding:v1", Phase.BACKEND_REQUEST.value, -(10**9)
)
#: Before every filter of the client's head.
ORIGINAL: Final = ExtensionIR("original-head", "egressproxy.io/OriginalHead:v1", Phase.REQUEST_HEADERS.value, -(10**9))

_SPEC: Final = ExtensionIR("sent-credentials", "egressproxy.io/SentCredentials:v1", Phase.BACKEND_REQUEST.value)
_HEAD: Final[StateSlot[tuple[bytes, bytes]]] = StateSlot("head before credentials")
_REQUESTS: Final = frozenset((Phase.BACKEND_REQUEST, Phase.REQUEST_BODY))
_RESPONSES: Final = (Phase.BACKEND_RESPONSE, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)


class DecodableAnswers(Filter):
    """Where body filters of responses want content codings undone: it asks backends for codings that can be."""

    runs_in = frozenset((Phase.BACKEND_REQUEST,))

    def backend_request(self, exchange: Exchange) -> None:
        ask_for_readable(exchange.request.fields)


class OriginalHead(Filter):
    """Before a filter that needs the head as the client has sent it: it keeps that."""

    runs_in = frozenset((Phase.REQUEST_HEADERS,))

    def request_headers(self, exchange: Exchange) -> None:
        ORIGINAL_HEAD.set(exchange, (exchange.request.path, exchange.request.fields.block))


class HeadBeforeCredentials(Filter):
    """The gateway's own, around the filters that send credentials: what comes behind the request sees none."""

    runs_in = frozenset((Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE))
    ignores_trailers = True

    def backend_request(self, exchange: Exchange) -> None:
        exchange.keep(_HEAD, (exchange.request.fields.block, exchange.request.path))

    def backend_response(self, exchange: Exchange) -> None:
        kept = exchange.take(_HEAD)
        if kept is not None:
            exchange.request.fields.block, exchange.request.path = kept


def keeper(phases: Mapping[Phase, Sequence[ConfiguredFilter]]) -> ConfiguredFilter | None:
    """What runs around filters that send credentials; None where no other filter could see them in a response."""
    if not any(placed.filter.sends_credential for placed in phases[Phase.BACKEND_REQUEST]):
        return None
    sees = (placed for phase in _RESPONSES for placed in phases[phase] if not placed.filter.sends_credential)
    return ConfiguredFilter(_SPEC, HeadBeforeCredentials()) if any(sees) else None


def arranged(
    running: Sequence[ConfiguredFilter], phase: Phase, around: ConfiguredFilter | None = None
) -> Sequence[ConfiguredFilter]:
    """The filters of a phase that is run for one backend, in their order; `around` is the `keeper`."""
    sending = [at for at, placed in enumerate(running) if placed.filter.sends_credential]
    if not sending:
        made = list(running)
        at = 0
    else:
        owners = {running[at].spec.source for at in sending}
        first, end = (sending[0], len(running)) if phase in _REQUESTS else (0, sending[-1] + 1)
        own = [placed for placed in running[first:end] if placed.spec.source in owners]
        others = [placed for placed in running[first:end] if placed.spec.source not in owners]
        moved = [*others, *own] if phase in _REQUESTS else [*own, *others]
        made = [*running[:first], *moved, *running[end:]]
        at = first + len(others) if phase in _REQUESTS else 0
    if phase is Phase.BACKEND_REQUEST:
        made.sort(key=lambda placed: placed.filter.signs_request)
    if around is not None and phase in (Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE):
        made.insert(at, around)
    return made
