"""The filter interface: phases, what a filter may do in each, and how a filter type is declared.

A filter never does I/O on the path unless it says so by being `async`; an awaited call has a deadline. To refuse, raise
`Rejected`; to answer instead of the backend, return an `Answer`. Anything else that is raised means the filter failed:
the request is answered 502 with the filter's name, unless `failOpen` is set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.settings import SecretRef
from egressproxy.filters.shared_counters import Row
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.secret import SecretBytes

__all__ = ["BodyMode", "Filter", "FilterContext", "FilterType", "HeaderResult", "Phase", "Rejected"]

#: What a header-phase method gives back: nothing, an Answer, or something to await that gives one of these.
HeaderResult = LocalResponse | None | Awaitable[LocalResponse | None]


class Phase(str, Enum):
    """In the order a request meets them (resources.md, extensions)."""

    REQUEST_HEADERS = "request-headers"
    REQUEST_BODY = "request-body"
    CONNECT = "connect"
    BACKEND_REQUEST = "backend-request"
    BACKEND_RESPONSE = "backend-response"
    RESPONSE_HEADERS = "response-headers"
    RESPONSE_BODY = "response-body"


class BodyMode(Enum):
    """How a body filter takes the body."""

    STREAM = "stream"  # piece by piece, as it comes; each call returns what goes on instead
    BUFFER = "buffer"  # once, whole, up to `max_buffer_bytes` (413 for a request, 502 for a response beyond)


class Rejected(GatewayError):
    """A filter refuses the request. `message` is shown to the client and stands in the status phrase."""

    is_quotable = False  # a filter may repeat what it has seen

    def __init__(
        self,
        message: str,
        *,
        status: int = 403,
        reason: Reason = Reason.FILTER_REJECTED,
        remedy: str = "",
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(reason, message, status=status, remedy=remedy, retry_after_s=retry_after_s)


class Filter:
    """Base of every filter. Override the methods of the phases that the type declares; each may be `async`.

    One instance serves every exchange of the places that share its spec: keep no state of one exchange in `self`
    (there is `x.note`). `complete` runs exactly once for every exchange for which any other method of this filter ran.

    `runs_in` narrows the phases that the type gives this instance (None: all of them). `keeps_length` promises that
    the body methods give back as many octets as they took, so that Content-Length stays true.
    """

    body_mode: ClassVar[BodyMode] = BodyMode.STREAM
    max_buffer_bytes: int = 1024 * 1024
    keeps_length: ClassVar[bool] = False
    runs_in: frozenset[Phase] | None = None

    def request_headers(self, x: Exchange) -> HeaderResult:
        """`x.request` may be changed. Tunnels come here too: `x.is_tunnel`, and a request without meaningful fields."""

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes | Awaitable[bytes]:
        """STREAM: a piece, and whether it is the last (then maybe empty). BUFFER: the whole body, once, last=True."""
        return data

    def connect(self, x: Exchange) -> HeaderResult:
        """Before a socket is opened: `x.authority`, `x.addresses` (checked), `x.identity`. Must not change the head."""

    def backend_request(self, x: Exchange) -> HeaderResult:
        """Once per attempt, with `x.backend` and `x.backend_is_secure`; `x.request.fields` are a copy for it alone."""

    def backend_response(self, x: Exchange) -> HeaderResult:
        """Once per attempt, with `x.response`."""

    def response_headers(self, x: Exchange) -> HeaderResult:
        """What the client gets: `x.response` may be changed, also for answers that the gateway made itself."""

    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes | Awaitable[bytes]:
        """As `request_body`. Content codings are not undone: look at Content-Encoding first."""
        return data

    def forecast(self, x: Exchange) -> None:
        """For explanations: raises what it would refuse of every request to `x.backend`; changes and counts nothing."""

    def complete(self, x: Exchange) -> None:
        """Always the last: counts, releases. Must not raise or wait."""


@dataclass(frozen=True, slots=True)
class FilterContext:
    """What a filter is built from.

    `config` is the validated config, an instance of the type's `config_model`; `secrets` by `SecretRef.label`,
    which is "name/key" (missing ones have no entry: fail closed);
    `scope` is the place that shares this instance; `folder` where relative paths start; `source` the declaring object.
    `row` has the numbers of a type that `is_shared` and serves in several processes.
    """

    config: object
    secrets: Mapping[str, SecretBytes]
    name: str
    scope: str
    source: str
    folder: str = ""
    phase: Phase = Phase.REQUEST_HEADERS
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class FilterType:
    """A declared type; `name` is `domain/Kind:version`.

    `config_model` is a pydantic model, or a dataclass of `settings.FilterConfig`: that one is checked once, where the
    configuration is compiled, and whoever serves needs no pydantic.
    `phases` where it may be placed. A placed filter runs in its declared phase and, additionally, in every phase of
    `also` (an injector in backend-request that also scrubs responses). `secret_refs` lists the Secrets that a
    config refers to. `revision` says what else decides, besides the spec, whether an instance lives on across a reload.
    `blocks`: to build one reads files or runs code of others, which is nothing for the event loop. `is_shared`: what it
    counts is counted over all workers. `inspect`: to build one runs code of the operator's; this says what is wrong as
    far as it can be said without running any (raises ValueError or OSError).
    """

    name: str
    phases: frozenset[Phase]
    config_model: type[Any]
    build: Callable[[FilterContext], Filter]
    also: frozenset[Phase] = frozenset()
    secret_refs: Callable[[Any], tuple[SecretRef, ...]] = lambda _config: ()
    summary: str = ""
    revision: Callable[[FilterContext], str] = lambda _context: ""
    blocks: bool = False
    is_shared: bool = False
    inspect: Callable[[FilterContext], None] | None = None

    @property
    def runs_code(self) -> bool:
        """Whether a config of this type names a program of the operator's."""
        return self.inspect is not None
