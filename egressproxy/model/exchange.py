"""Exchange: one request and its response, or one tunnel, from first byte to log line.

Slotted and mutable; created by the conductor, handed to every filter, observed once by metrics and the access log.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.backend_choice import BackendChoice
from egressproxy.model.message import RequestHead, ResponseHead

__all__ = [
    "ANONYMOUS",
    "BACKEND_CHOICE",
    "LOGGED",
    "MAX_NOTES",
    "MAX_NOTE_BYTES",
    "SENT_BODY",
    "WAITED",
    "BackendOrigin",
    "CallerIdentity",
    "Exchange",
    "LocalResponse",
    "NotesFull",
    "namespace_in",
    "service_account_name",
    "tenant_of",
]

#: Notes of one exchange that filters may keep, and the length of one that is bytes or text.
MAX_NOTES = 128
MAX_NOTE_BYTES = 64 * 1024
#: The note with further fields for the access log: a dictionary.
LOGGED = "logged"
#: The note with what `Exchange.body` returns.
SENT_BODY: Final = "sent body"
#: The note with what filters have said about the backends of the rule: a BackendChoice.
BACKEND_CHOICE: Final = "backend choice"
#: Of a request that was approved: what is in service now may be another configuration than the one that has let it in.
WAITED: Final = "waited for a person"
#: The note with how many filters hold the exchange until a person has decided.
_HELD_FOR_PEOPLE = "held for people"


class NotesFull(ValueError):
    """A filter has kept more notes, or a longer one, than an exchange holds."""


_IDENTITY_FIELDS: Final = (
    "namespace", "service_account", "origin_client", "origin_gateway", "name", "source", "groups", "claims",
    "claims_read",
)  # fmt: skip


class CallerIdentity:
    """Who the client is; "-" where that is not known. Keys of limits, caches and the access log are made of it.

    `namespace` and `service_account` are those of Kubernetes; a namespace of another trust domain than the listener's
    own is "NAMESPACE@DOMAIN" (`namespace_in`), so that it counts as no namespace of here. Of a client that another
    gateway of ours serves, which has signed it: `origin_client` is its address there, and `origin_gateway` that
    Gateway.

    `name` is the same for the same client at any time: "spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT",
    "system:serviceaccount:NAMESPACE:ACCOUNT" (as Kubernetes names it), "ISSUER#SUBJECT" of another token, or
    "NAMESPACE/SECRET#USER". `source` is what has told it: "certificate", "token", "basic", "address" or "gateway".
    `groups` and `claims` (name and value) are what a token says beside it; of the claims only those of which
    `claims_read` has the names, whether the token has them or not. None: there is no token.

    None of these is ever written again. `key` is one text for all of them: equal identities have equal keys.

    The others belong to who writes them: where a request of this client was counted last. The next one finds it here
    at once, where it would look it up by the identity, in memory that other clients have displaced from the processor's
    cache. Each says whose it is: what belongs to another limit, series or listener is looked up, and written anew.
    """

    __slots__ = (
        "claims", "claims_read", "counted_beside", "counted_in", "groups", "key", "limit_at", "limit_key",
        "limit_number", "name", "namespace", "origin_client", "origin_gateway", "service_account", "source",
        "variant_at", "variants_number",
    )  # fmt: skip

    def __init__(
        self,
        namespace: str = "-",
        service_account: str = "-",
        origin_client: str = "-",
        origin_gateway: str = "-",
        name: str = "-",
        source: str = "-",
        groups: tuple[str, ...] = (),
        claims: tuple[tuple[str, str], ...] = (),
        claims_read: tuple[str, ...] | None = None,
    ) -> None:
        self.namespace = namespace
        self.service_account = service_account
        self.origin_client = origin_client
        self.origin_gateway = origin_gateway
        self.name = name
        self.source = source
        self.groups = groups
        self.claims = claims
        self.claims_read = claims_read
        self.key = repr(
            (namespace, service_account, origin_client, origin_gateway, name, source, groups, claims, claims_read)
        )
        #: Of `filters.limits`: the number of the limit's table, where in it, and whose entry that has to be.
        self.limit_number = self.limit_at = self.limit_key = 0
        #: Of `Metrics.of_client`: the series of all clients, and beside it the one of this client.
        self.counted_beside: object = None
        self.counted_in: Any = None
        #: Of `ClientVariants`: its number, and which of its variants.
        self.variants_number = self.variant_at = 0

    def replace(self, **fields: Any) -> CallerIdentity:
        """Another with these fields; those that are not named are as here."""
        return CallerIdentity(**{name: getattr(self, name) for name in _IDENTITY_FIELDS} | fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallerIdentity) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"CallerIdentity{self.key}"


ANONYMOUS: Final = CallerIdentity()


def tenant_of(identity: CallerIdentity) -> str:
    """Whose connections to backends a client uses, where they are not for all: those of its namespace; without one,
    those of its name; "-" for all that nobody knows.
    """
    return f"namespace {identity.namespace}" if identity.namespace != "-" else identity.name


def namespace_in(trust_domain: str, namespace: str, own: str) -> str:
    """The namespace of a trust domain, for `CallerIdentity.namespace`. `own` is that of the listener; no trust domain
    ("") is its own, too, and a namespace that is not known ("-", or "" in a configuration) is one of nowhere.
    """
    return namespace if trust_domain in ("", own) or namespace in ("", "-") else f"{namespace}@{trust_domain}"


def service_account_name(namespace: str, service_account: str) -> str:
    """The name of a service account, for `CallerIdentity.name`: as Kubernetes has it, and in another trust domain as
    SPIFFE has it; "-" where a part is not known.

    Sources: Kubernetes, Authenticating, Service account tokens; Istio, SPIFFE ids.
    """
    if namespace == "-" or service_account == "-":
        return "-"
    label, _, trust_domain = namespace.partition("@")
    if trust_domain:
        return f"spiffe://{trust_domain}/ns/{label}/sa/{service_account}"
    return f"system:serviceaccount:{namespace}:{service_account}"


class BackendOrigin(NamedTuple):
    """Who an attempt is made to: `host` (a name or an address) and `port` as configured or named by the client.

    `is_secure`: over TLS. `names` are those of which the certificate has to show one; empty where none is verified.
    """

    host: str
    port: int
    is_secure: bool
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """A response that a filter or the gateway itself makes, instead of the backend's.

    `status` from 200 to 599. `fields` are pairs of name and value, without framing (the gateway writes Content-Length);
    a filter's are checked as `Fields.add` checks them. `phrase` b"": the usual one of this status.
    """

    status: int
    fields: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = field(default=b"", repr=False)
    phrase: bytes = b""

    def __post_init__(self) -> None:
        if type(self.fields) is not tuple:  # of a filter that nobody has checked
            object.__setattr__(self, "fields", tuple((name, value) for name, value in self.fields))


@dataclass(slots=True, eq=False)
class Exchange:
    """What filters may rely on: everything up to `notes`. The rest is bookkeeping of the conductor and telemetry.

    `scheme` is b"http" or b"https": that of the request as the client sees it. `authority` is the destination that the
    client named (forward) or the Host it sent (reverse). `is_tunnel` is true for CONNECT and TLS passthrough.
    `path_prefix` is the PathPrefix value that matched (b"" otherwise), for prefix rewrites.
    `upstream_host` is the Host value that will be sent upstream; a filter may set it (URLRewrite does).
    `addresses` is filled before the connect phase. `route` and `backend` are "namespace/name" or "-".
    """

    client: str  # "address:port"
    gateway: str
    listener: str
    started_at: float  # monotonic seconds
    identity: CallerIdentity = ANONYMOUS
    kind: str = "request"  # "request" or "tunnel", as logged
    is_tunnel: bool = False
    scheme: bytes = b"http"
    authority: Authority | None = None
    method: bytes = b"-"
    path: bytes = b"-"  # without query, as logged
    path_prefix: bytes = b""
    request: RequestHead = None  # type: ignore[assignment]    # set before any filter runs
    response: ResponseHead = None  # type: ignore[assignment]  # set before any response filter runs
    route: str = "-"
    backend: str = "-"
    backend_is_secure: bool = False  # the backend is reached over TLS
    backend_origin: BackendOrigin | None = None  # set before backend-request filters run; one object for each target
    upstream_host: bytes = b""
    addresses: tuple[IPAddress, ...] = ()
    notes: dict[str, Any] | None = None  # filters may keep state of one exchange here, under their own name
    request_id: str = ""
    max_body_bytes: int = -1  # a limit filter lowers it; -1 is no limit
    started_wall: float = 0.0
    ended_at: float = 0.0
    status: int = 0  # as sent to the client; 0: nothing was sent
    grpc_status: int = -1  # how a call of gRPC has ended, as the client was told (GrpcStatus); -1: it is none
    reason: Reason = Reason.OK
    rule: str = "-"  # who denied
    detail: str = ""  # for the log only
    denied: bool = False
    would_deny: list[Reason] | None = None
    upstream: str = ""  # "address:port" dialled
    attempts: int = 0
    bytes_in: int = 0  # from the client, head and body, in bytes
    bytes_out: int = 0  # to the client
    series: Any = None  # telemetry.series.Series, bound at build time

    @property
    def says_close(self) -> bool:
        """The client's connection serves nothing behind this: its head says so, or what came was none."""
        return self.request is None or self.request.connection_close

    @property
    def asks_to_switch(self) -> bool:
        """It asks for a tunnel: CONNECT, or an upgrade."""
        return self.request is not None and (bool(self.request.upgrade) or self.method == b"CONNECT")

    def drop_request(self) -> None:
        """Nobody asks for the request any more."""
        self.request = None  # type: ignore[assignment]

    def copy(self) -> Exchange:
        """The same values; the heads and the notes are shared."""
        return copy.copy(self)

    def forget_heads(self) -> None:
        """A tunnel may last for days: what was said at its start, and may be long, does not stay with it."""
        self.request.forget()
        if self.response is not None:
            self.response.forget()

    def note_denials(self, *reasons: Reason) -> None:
        """What mode Report lets pass; each reason counts once for one exchange."""
        if reasons:
            self.would_deny = list(dict.fromkeys((*(self.would_deny or ()), *reasons)))

    def note(self, key: str, value: object) -> None:
        """Keep a value until the end of the exchange; `notes` has it under this key, which names the filter.

        Raises NotesFull for more than MAX_NOTES, and for bytes or text longer than MAX_NOTE_BYTES. What other objects
        hold is not measured.
        """
        if isinstance(value, (bytes, str, bytearray)) and len(value) > MAX_NOTE_BYTES:
            raise NotesFull(f"the note {key[:80]!r} is longer than {MAX_NOTE_BYTES}: keep a part of it, or its hash")
        notes = self.notes
        if notes is None:
            self.notes = {key: value}
        elif len(notes) < MAX_NOTES or key in notes:
            notes[key] = value
        else:
            raise NotesFull(f"there are {MAX_NOTES} notes already: keep one object under one key")

    def keep(self, key: str, value: object) -> None:
        """As `note`, for what the gateway itself keeps, whose size is bounded elsewhere."""
        if self.notes is None:
            self.notes = {}
        self.notes[key] = value

    def exclude_backend(self, name: str) -> None:
        """Do not send this request to the backend "namespace/name", whatever its rule, its Failover and retries say.

        In request-headers, and in request-body of a filter that gets the body whole. Where every backend is excluded
        the request is denied (403). Raises RuntimeError once a backend is chosen.
        """
        self._choice().excluded.add(name)

    def prefer_backend(self, name: str) -> None:
        """Send this request to the backend "namespace/name" of its rule, against the weights; in a Failover before all
        others. The last filter that asks decides. Raises RuntimeError once a backend is chosen.
        """
        self._choice().preferred = name

    def _choice(self) -> BackendChoice:
        if self.backend != "-":
            raise RuntimeError(
                "the backend of this request is chosen: ask in request-headers, or with BUFFER in request-body"
            )
        choice = self.backend_choice
        if choice is None:
            choice = BackendChoice()
            self.keep(BACKEND_CHOICE, choice)
        return choice

    @property
    def backend_choice(self) -> BackendChoice | None:
        """What filters have said about the backends of the rule; None where none has."""
        return self.notes.get(BACKEND_CHOICE) if self.notes is not None else None

    @property
    def is_held_for_people(self) -> bool:
        """Whether a filter waits for a person: nobody expects the exchange to move meanwhile."""
        return self.notes is not None and self.notes.get(_HELD_FOR_PEOPLE, 0) > 0

    def hold_for_people(self, change: int) -> None:
        """One filter more, or one less, waits for a person."""
        held = self.notes.get(_HELD_FOR_PEOPLE, 0) if self.notes is not None else 0
        self.keep(_HELD_FOR_PEOPLE, held + change)

    @property
    def body(self) -> bytes | None:
        """In `backend_request` of a filter with `needs_body`: the whole body as this attempt sends it; else None."""
        return self.notes.get(SENT_BODY) if self.notes is not None else None

    def add_log_fields(self, fields: dict[str, object]) -> None:
        """Further fields for the access log: values of JSON by name, beside those that others have added."""
        known = self.notes.get(LOGGED) if self.notes is not None else None
        self.keep(LOGGED, fields if known is None else {**known, **fields})

    def __repr__(self) -> str:
        what = f"{self.method.decode('latin-1')} {self.authority}"
        return f"Exchange({self.request_id or '-'}, {what}, {self.status}, {self.reason})"
