"""Span records: what a trace keeps of an exchange, as it was, until the exporter encodes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

#: At most so many attempts and waits of an exchange are recorded, each.
MAX_CHILDREN: Final = 32


@dataclass(frozen=True, slots=True)
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
    """As ExchangeFacts, of an attempt. `upstream` is "address:port", `resends` the number of attempts before."""

    method: bytes
    is_secure: bool
    host: bytes
    backend: str
    upstream: str
    status: int
    reason: str
    resends: int


class Wait(NamedTuple):
    """A part of an exchange that took time. Times are monotonic seconds."""

    name: str
    span_id: str
    began: float
    ended: float


class Attempt:
    """A request that was sent to a backend, or was to be. `ended` 0.0: with its exchange. Times are monotonic seconds.

    `status` is that of the answer, 0 without one; `reason` is why there is none.
    """

    __slots__ = ("backend", "began", "ended", "host", "is_secure", "path", "reason", "span_id", "status", "upstream")

    def __init__(self, span_id: str, began: float) -> None:
        self.span_id = span_id
        self.began = began
        self.ended = 0.0
        self.backend = "-"
        self.host = b""
        self.is_secure = False
        self.path = b""
        self.upstream = ""
        self.status = 0
        self.reason = ""


class ExchangeSpans:
    """The spans of one exchange. `started_wall` is in seconds since 1970, the other times are monotonic seconds.

    `headers` are attributes from header fields, `details` what filters tell the access log.
    """

    __slots__ = (
        "attempts", "bytes_in", "bytes_out", "client", "details", "ended_at", "facts", "headers", "is_sampled",
        "parent_id", "path", "request_id", "settings", "span_id", "started_at", "started_wall", "trace_id",
        "tracestate", "user_agent", "waits",
    )  # fmt: skip

    def __init__(self, settings: SpanSettings, trace_id: str, span_id: str) -> None:
        self.settings = settings
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = ""
        self.tracestate = b""
        self.is_sampled = True
        self.request_id = ""
        self.user_agent = ""
        self.headers: list[tuple[str, str]] | None = None
        self.attempts: list[Attempt] | None = None
        self.waits: list[Wait] | None = None
        # At the end:
        self.facts: ExchangeFacts | None = None
        self.started_wall = self.started_at = self.ended_at = 0.0
        self.path = b""
        self.client = ""
        self.bytes_in = self.bytes_out = 0
        self.details: Mapping[str, Any] | None = None

    @property
    def count(self) -> int:
        return 1 + len(self.attempts or ()) + len(self.waits or ())
