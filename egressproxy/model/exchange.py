"""Exchange: one request and its response, or one tunnel, from first byte to log line: created by the connection
manager, handed to every filter, observed once by metrics and the access log.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.circular_note import CircularNote
from egressproxy.model.message import RequestHead, ResponseHead


class BackendChoice:
    """`excluded` backends ("namespace/name") must not get the request; the `preferred` one is tried first, "": none."""

    __slots__ = ("excluded", "preferred")

    def __init__(self) -> None:
        self.excluded: set[str] = set()
        self.preferred = ""


#: The most notes that filters may keep in one exchange, and the most bytes or characters of a note.
MAX_NOTES: Final = 128
MAX_NOTE_BYTES: Final = 64 * 1024
_OK: Final[Reason] = Reason.OK

T = TypeVar("T")


class StateSlot(Generic[T]):
    """A place for one value in the state of each exchange: of a part of the gateway, or of one instance of a filter.
    `name` is for debugging alone: two filters of one type have two slots.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StateSlot({self.name})"


class ExchangeState(Protocol):
    """The values of one exchange by slot: a dictionary, whose values have the types of their slots."""

    def get(self, slot: StateSlot[T], /) -> T | None:
        """The value that was kept there; None without one."""

    def pop(self, slot: StateSlot[T], default: None, /) -> T | None:
        """As `get`, and the value is taken out."""

    def items(self) -> Iterable[tuple[StateSlot[Any], Any]]:
        """All slots that have a value, with it."""

    def __contains__(self, slot: object, /) -> bool: ...

    def __len__(self) -> int: ...

    def __setitem__(self, slot: StateSlot[T], value: T, /) -> None: ...


#: The empty state of a new exchange, which is read-only.
EMPTY_STATE: Final = cast("ExchangeState", MappingProxyType({}))
#: The notes of users' filters.
_NOTES: Final[StateSlot[dict[str, Any]]] = StateSlot("notes")
#: Further fields for the access log.
LOGGED: Final[StateSlot[dict[str, Any]]] = StateSlot("logged")
#: The result of `Exchange.body`.
SENT_BODY: Final[StateSlot[bytes | None]] = StateSlot("sent body")
#: Set for an approved request: the configuration in service may have changed since admission.
WAITED: Final[StateSlot[bool]] = StateSlot("waited for a person")
#: Set for a request with a credential that depends on who the caller is: what is answered is for that caller alone.
CALLERS_OWN: Final[StateSlot[bool]] = StateSlot("credential of the caller")
#: What filters have said about the backends of the rule.
BACKEND_CHOICE: Final[StateSlot[BackendChoice]] = StateSlot("backend choice")
#: How many filters hold the exchange until a person has decided.
_HOLDING: Final[StateSlot[int]] = StateSlot("held for people")


class NotesFull(ValueError):
    """A filter has kept more or longer notes than an exchange may hold."""


class BackendOrigin(NamedTuple):
    """The destination of an attempt: `host` (a name or an address) and `port` as configured or named by the client.
    `is_secure`: over TLS; the certificate must then have one of `names`, if there are any.
    """

    host: str
    port: int
    is_secure: bool
    names: tuple[str, ...] = ()


class Exchange:
    """What filters may rely on: everything up to `state`. The rest is bookkeeping of the connection manager and
    telemetry.

    `scheme` is b"http" or b"https": that of the request as the client sees it. `authority` is the destination that the
    client named (forward) or the Host it sent (reverse). `is_tunnel` is true for CONNECT and TLS passthrough.
    `path_prefix` is the PathPrefix value that matched (b"" otherwise), for prefix rewrites.
    `upstream_host` is the Host value that will be sent upstream; a filter may set it (URLRewrite does).
    `addresses` is filled before the connect phase. `route` and `backend` are "namespace/name" or "-".

    `request` is set before any filter runs, `response` before any response filter; reading a missing one raises
    AttributeError (`has_request`, `has_response`).
    """

    __slots__ = (
        "addresses", "attempt_span_id", "attempts", "authority", "backend", "backend_is_secure", "backend_origin",
        "bytes_in", "bytes_out", "client", "denied", "detail", "ended_at", "first_byte_at", "gateway", "grpc_status",
        "identity", "is_tunnel", "listener", "max_body_bytes", "method", "path", "path_prefix", "reason", "request",
        "request_id", "response", "route", "rule", "scheme", "series", "started_at", "started_wall", "state", "status",
        "trace", "upstream", "upstream_host", "would_deny",
    )  # fmt: skip
    __deletable__ = ("request", "response")

    ended_at: float  # set by accounting, at the end
    request: RequestHead
    response: ResponseHead

    def __init__(
        self,
        client: str,
        gateway: str,
        listener: str,
        started_at: float,
        identity: CallerIdentity = ANONYMOUS,
        started_wall: float = 0.0,
        request_id: str = "",
        series: Any = None,
        backend: str = "-",
    ) -> None:
        self.client = client  # "address:port"
        self.gateway = gateway
        self.listener = listener
        self.started_at = started_at  # monotonic seconds
        self.identity = identity
        self.is_tunnel = False
        self.scheme = b"http"
        self.authority: Authority | None = None
        self.method = b"-"
        self.path = b"-"  # without query, as logged
        self.path_prefix = b""
        self.route = "-"
        self.backend = backend
        self.backend_is_secure = False  # the backend is reached over TLS
        #: Set before backend-request filters run; one object for each target.
        self.backend_origin: BackendOrigin | None = None
        self.upstream_host = b""
        self.addresses: tuple[IPAddress, ...] = ()
        #: What the parts of the gateway, and each filter, have kept (`keep`).
        self.state = EMPTY_STATE
        self.request_id = request_id
        self.max_body_bytes = -1  # a limit filter lowers it; -1 is no limit
        self.started_wall = started_wall
        self.first_byte_at = 0.0  # start of the response or tunnel, monotonic seconds; 0.0: at its end
        self.status = 0  # as sent to the client; 0: nothing was sent
        self.grpc_status = -1  # the GrpcStatus sent to the client; -1: not a gRPC call
        self.reason: Reason = _OK
        self.rule = "-"  # the object that denied
        self.detail = ""  # for the log only
        self.denied = False
        self.would_deny: list[Reason] | None = None
        self.upstream = ""  # "address:port" dialled
        self.attempts = 0
        self.trace: Any = None  # model.exchange_trace.ExchangeTrace; None: not recorded
        self.attempt_span_id = b""  # of the attempt that is being made, where there is a trace
        self.bytes_in = 0  # from the client, head and body, in bytes
        self.bytes_out = 0  # to the client
        self.series: Any = series  # telemetry.series.Series, bound at build time

    @property
    def kind(self) -> str:
        """As logged: "request" or "tunnel"."""
        return "tunnel" if self.is_tunnel else "request"

    @property
    def has_request(self) -> bool:
        """Whether there is a request head; invalid input has none."""
        return hasattr(self, "request")

    @property
    def has_response(self) -> bool:
        return hasattr(self, "response")

    @property
    def says_close(self) -> bool:
        """Whether the client's connection closes after this exchange: by its head, or after invalid input."""
        return not self.has_request or self.request.connection_close

    @property
    def asks_to_switch(self) -> bool:
        """Whether the request is a CONNECT or an upgrade."""
        return self.has_request and (bool(self.request.upgrade) or self.method == b"CONNECT")

    def drop_request(self) -> None:
        """Release the request head; no code reads it from here on."""
        if self.has_request:
            del self.request

    def take_response(self, other: Exchange) -> None:
        """Replace the response of this exchange by the response of `other`, which may be missing."""
        if other.has_response:
            self.response = other.response
        elif self.has_response:
            del self.response

    def copy(self) -> Exchange:
        """The same values; the heads and the state are shared."""
        made = Exchange(
            self.client, self.gateway, self.listener, self.started_at, self.identity, started_wall=self.started_wall,
            request_id=self.request_id, series=self.series, backend=self.backend,
        )  # fmt: skip
        made.is_tunnel = self.is_tunnel
        made.scheme = self.scheme
        made.authority = self.authority
        made.method = self.method
        made.path = self.path
        made.path_prefix = self.path_prefix
        if self.has_request:
            made.request = self.request
        if self.has_response:
            made.response = self.response
        made.route = self.route
        made.backend_is_secure = self.backend_is_secure
        made.backend_origin = self.backend_origin
        made.upstream_host = self.upstream_host
        made.addresses = self.addresses
        made.state = self.state
        made.trace = self.trace
        made.attempt_span_id = self.attempt_span_id
        made.max_body_bytes = self.max_body_bytes
        made.first_byte_at = self.first_byte_at
        made.status = self.status
        made.grpc_status = self.grpc_status
        made.reason = self.reason
        made.rule = self.rule
        made.detail = self.detail
        made.denied = self.denied
        made.would_deny = self.would_deny
        made.upstream = self.upstream
        made.attempts = self.attempts
        made.bytes_in = self.bytes_in
        made.bytes_out = self.bytes_out
        return made

    def forget_heads(self) -> None:
        """Release the long parts of the heads, since a tunnel may last for days."""
        self.request.forget()
        if self.has_response:
            self.response.forget()

    def note_denials(self, *reasons: Reason) -> None:
        """Record denials that mode Report lets pass; each reason counts once in an exchange."""
        if reasons:
            self.would_deny = list(dict.fromkeys((*(self.would_deny or ()), *reasons)))

    @property
    def notes(self) -> dict[str, Any] | None:
        """The values kept by `note`, or None."""
        return self.state.get(_NOTES)

    def note(self, key: str, value: object) -> None:
        """Keep a value until the end of the exchange, in `notes` under this key, which names the filter. Raises
        NotesFull beyond MAX_NOTES, or MAX_NOTE_BYTES of bytes or text; the size of other objects is not measured.
        """
        if isinstance(value, (bytes, str, bytearray)) and len(value) > MAX_NOTE_BYTES:
            raise NotesFull(f"the note {key[:80]!r} is longer than {MAX_NOTE_BYTES}: keep a part of it, or its hash")
        notes = self.notes
        if notes is None:
            self.keep(_NOTES, {key: value})
        elif len(notes) < MAX_NOTES or key in notes:
            notes[key] = value
        else:
            raise NotesFull(f"there are {MAX_NOTES} notes already: keep one object under one key")

    def keep(self, slot: StateSlot[T], value: T) -> None:
        """Keep a value in `state` until the end of the exchange. Callers bound the size of their values."""
        if self.state:
            self.state[slot] = value
        else:
            made: dict[StateSlot[Any], Any] = {slot: value}
            self.state = made

    def take(self, slot: StateSlot[T]) -> T | None:
        """Remove and return the value in this slot, or None."""
        return self.state.pop(slot, None) if self.state else None

    def fork_state(self) -> None:
        """Separate the state from that of the exchange of which this is a `copy`."""
        if self.state is not EMPTY_STATE:
            self.state = dict(self.state.items())
            notes = self.notes
            if notes is not None:
                self.keep(_NOTES, dict(notes))

    def adopt_state(self, other: Exchange) -> None:
        """Take over all that another exchange has kept, in place of what this one has in the same slots."""
        if other.state is not EMPTY_STATE:
            self.state = dict((*self.state.items(), *other.state.items()))
            other.state = EMPTY_STATE

    def forget_state(self, kept: ExchangeState = EMPTY_STATE) -> None:
        """The exchange is over, however it has ended: nothing that was kept for it stays, also where it leads back.

        `kept`: the state of another exchange, which goes on with what both have.
        """
        for slot, value in self.state.items():
            if isinstance(value, CircularNote) and slot not in kept:
                value.release()
        self.state = EMPTY_STATE

    def exclude_backend(self, name: str) -> None:
        """Do not send this request to the backend "namespace/name", whatever rule, Failover and retries say; denied
        (403) if none is left. In request-headers, or request-body with the whole body: RuntimeError once one is chosen.
        """
        self._choice().excluded.add(name)

    def prefer_backend(self, name: str) -> None:
        """Send this request to the backend "namespace/name" of its rule, against the weights; in a Failover before all
        others. The last call wins. Raises RuntimeError once a backend is chosen.
        """
        self._choice().preferred = name

    def _choice(self) -> BackendChoice:
        if self.backend != "-":
            raise RuntimeError(
                "the backend of this request is chosen: ask in request-headers, or with BUFFER in request-body"
            )
        choice = self.state.get(BACKEND_CHOICE)
        if choice is None:
            choice = BackendChoice()
            self.keep(BACKEND_CHOICE, choice)
        return choice

    @property
    def backend_choice(self) -> BackendChoice | None:
        """The filters' choice among the backends of the rule; None if no filter made one."""
        return self.state.get(BACKEND_CHOICE)

    @property
    def is_held_for_people(self) -> bool:
        """Whether a filter waits for a person's approval; no timeout for lack of progress applies meanwhile."""
        return (self.state.get(_HOLDING) or 0) > 0

    def hold_for_people(self, change: int) -> None:
        """Add `change` (1 or -1) to the number of filters that wait for a person's approval."""
        self.keep(_HOLDING, (self.state.get(_HOLDING) or 0) + change)

    @property
    def body(self) -> bytes | None:
        """In `backend_request` of a filter with `needs_body`: the whole body as this attempt sends it; else None."""
        return self.state.get(SENT_BODY)

    def add_log_fields(self, fields: dict[str, object]) -> None:
        """Add fields to the access log: JSON values by name."""
        known = self.state.get(LOGGED)
        self.keep(LOGGED, fields if known is None else {**known, **fields})

    def __repr__(self) -> str:
        what = f"{self.method.decode('latin-1')} {self.authority}"
        return f"Exchange({self.request_id or '-'}, {what}, {self.status}, {self.reason})"


class FilterNote(Generic[T]):
    """A note that the gateway itself keeps under this `key`, for filters that docs/filter-api.md promises it."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def get(self, exchange: Exchange) -> T | None:
        return (exchange.notes or {}).get(self.key)

    def set(self, exchange: Exchange, value: T) -> None:
        """As `Exchange.note`, without its bounds."""
        notes = exchange.notes
        if notes is None:
            exchange.keep(_NOTES, {self.key: value})
        else:
            notes[self.key] = value

    def pop(self, exchange: Exchange) -> T | None:
        notes = exchange.notes
        return notes.pop(self.key, None) if notes is not None else None
