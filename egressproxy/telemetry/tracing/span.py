"""Span records: what a trace keeps of an exchange, as it was, until the exporter encodes it.

Ids are 32 or 16 hexadecimal digits. Times are monotonic seconds, but for `started_wall`, in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: At most so many attempts and waits of an exchange are recorded, each.
MAX_CHILDREN: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class SpanSettings:
    """What a policy adds to each span. `name` is that of spans of exchanges, "" for the method.

    `literals` are attributes as they are written, `copies` those that repeat another attribute (by its key).
    """

    name: str = ""
    literals: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()


class ExchangeFacts(NamedTuple):
    """What many exchanges have in common, so that it is encoded once. `reason` is "-" for none, `grpc_status` -1."""

    method: bytes
    scheme: bytes
    host: str
    port: int
    is_tunnel: bool
    gateway: str
    listener: str
    route: str
    backend: str
    namespace: str
    service_account: str
    status: int
    reason: str
    grpc_status: int


class AttemptFacts(NamedTuple):
    """As ExchangeFacts, of an attempt. `upstream` is "address:port"; `status` is 0 without an answer, and `reason` says
    why there is none. `resends` is the number of attempts before.
    """

    method: bytes
    is_secure: bool
    host: bytes
    backend: str
    upstream: str
    status: int
    reason: str
    resends: int


#: Of AttemptFacts all but the last: plain tuples, since one is made on the path of a request.
OneAttempt = tuple[bytes, bool, bytes, str, str, int, str]


#: A request that was sent to a backend, or was to be: the id of its span, when it began and ended, its path, and its
#: facts. An end below 0 is minus the time of an answer. Such an attempt ends with its exchange, or at its answer if
#: another one began later.
Attempt = tuple[bytes, float, float, bytes, OneAttempt]


class Wait(NamedTuple):
    """A part of an exchange that took time. `parent_id` is that of the attempt; b"": of the exchange."""

    name: str
    span_id: bytes
    began: float
    ended: float
    parent_id: bytes = b""
    attributes: tuple[tuple[str, str], ...] = ()


class ExchangeSpans:
    """The spans of one exchange.

    `headers` are attributes from header fields and copies of others, `details` what filters tell the access log.
    `facts` is an ExchangeFacts as a plain tuple.
    """

    __slots__ = (
        "attempts", "client", "details", "ended_at", "facts", "headers", "is_sampled",
        "parent_id", "path", "request_id", "settings", "span_id", "started_at", "started_wall", "trace_id",
        "tracestate", "user_agent", "waits",
    )  # fmt: skip

    # At the end:
    client: str
    ended_at: float
    facts: tuple[Any, ...]
    path: bytes
    started_at: float
    started_wall: float

    def __init__(self, settings: SpanSettings, trace_id: bytes, span_id: bytes, is_sampled: bool) -> None:
        self.settings = settings
        self.trace_id = trace_id
        self.span_id = span_id
        self.is_sampled = is_sampled
        self.parent_id = b""
        self.tracestate = b""
        self.request_id = b""
        self.user_agent = b""
        self.headers: list[tuple[str, bytes]] | None = None
        self.attempts: list[Attempt] | None = None
        self.waits: list[Wait] | None = None
        self.details: Mapping[str, Any] | None = None

    @property
    def count(self) -> int:
        return 1 + len(self.attempts or ()) + len(self.waits or ())
