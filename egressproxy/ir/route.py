"""Routes, as Gateway API means them. Source: gateway.networking.k8s.io/v1 HTTPRoute, TLSRoute, TCPRoute."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from egressproxy.ir.backend import BackendIR
from egressproxy.ir.policy import NO_POLICY, Callee, ExtensionIR, FilterSettings, PolicyIR, RetryIR


class PathMatchType(str, Enum):
    """HTTPPathMatch `type`."""

    EXACT = "Exact"
    PREFIX = "PathPrefix"
    REGEX = "RegularExpression"


class MatchType(str, Enum):
    """HTTPHeaderMatch and HTTPQueryParamMatch `type`."""

    EXACT = "Exact"
    REGEX = "RegularExpression"


@dataclass(frozen=True, slots=True)
class ValueMatch:
    """A header (name in lower case) or query parameter that has to match."""

    name: str
    value: str
    type: MatchType = MatchType.EXACT


@dataclass(frozen=True, slots=True)
class MatchIR:
    """HTTPRouteMatch: all of it has to hold.

    `is_preflight`: what has to hold for a CORS preflight request that asks for `method` (Fetch standard).
    `any_service`: `path` is "/" and a gRPC method, of whatever service (GRPCMethodMatch); its type says nothing.
    """

    path: str = "/"
    path_type: PathMatchType = PathMatchType.PREFIX
    method: str = ""
    headers: tuple[ValueMatch, ...] = ()
    query: tuple[ValueMatch, ...] = ()
    is_preflight: bool = False
    any_service: bool = False


@dataclass(frozen=True, slots=True)
class FailoverIR:
    """A Backend of type Failover, where the backendRef `ref` (from 0) of a rule names it with this weight.

    `codes` are statuses after which a request goes on to another backend. `first_byte_s`: the time for an attempt to
    bring the first byte of a body; 0: nobody waits for it. `only_idempotent`: what a backend may have seen goes on only
    if its method is idempotent. `max_replay_bytes` of a request body are kept. `shows_attempts`: the response says who
    was asked.
    """

    name: str
    ref: int
    weight: int
    codes: tuple[int, ...]
    first_byte_s: float = 0.0
    only_idempotent: bool = False
    max_replay_bytes: int = 0
    shows_attempts: bool = False


@dataclass(frozen=True, slots=True)
class WeightedBackend(Callee):
    """One backendRef. `backend` None: the reference is invalid, its share answers 500 with `error` as the message.

    `policy` is merged for Gateway, listener, Backend and route. `extensions` are those of the ref, the backend and its
    policies that run in the connect, backend-request and backend-response phases. `mirrors` are those of the ref.
    `is_elsewhere`: policies do not allow its region, and its share is answered 403 with `error` as the message.
    `unknown_extension` names the extensions of unknown types that close it, in words for clients; "" for none.
    `parent_by` is the EgressPolicy that names its parent; "" if the backend itself does, or has none.
    An endpoint of a `failover` has the weight and the `priority` (lower goes first) that it has there, and it is asked
    for the models of `model_aliases` (pairs: asked, sent), or for `model_alias` where that is not "".
    """

    backend: BackendIR | None
    weight: int = 1
    policy: PolicyIR = NO_POLICY
    extensions: tuple[ExtensionIR, ...] = ()
    error: str = ""
    mirrors: tuple[MirrorIR, ...] = ()
    unknown_extension: str = ""
    is_elsewhere: bool = False
    parent_by: str = ""
    failover: FailoverIR | None = None
    priority: int = 0
    model_alias: str = ""
    model_aliases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MirrorIR:
    """HTTPRequestMirrorFilter: `numerator` of `denominator` requests go to this backend (None: nowhere), too."""

    backend: WeightedBackend
    extensions: tuple[ExtensionIR, ...] = ()  # of the rule (and ref), that a copy has to pass
    numerator: int = 1
    denominator: int = 1


class AuthProtocol(str, Enum):
    """HTTPExternalAuthFilter `protocol`."""

    HTTP = "HTTP"  # 200 lets the request pass
    GRPC = "GRPC"  # envoy.service.auth.v3.Authorization/Check


@dataclass(frozen=True, slots=True)
class ExternalAuthIR:
    """HTTPExternalAuthFilter: a server that is asked whether the requests of a rule may go on.

    `place` says where it runs among the rule's filters, and what it is called. `backend` is asked; one without a
    backend refuses everything. Names of fields are in lower case; an empty list means what Gateway API says for the
    protocol. `path` is put before the request's own. Up to `max_body` bytes of body are shown; 0: none. `condition` is
    the config of AccessPolicy whose rules say which requests it is asked about; None: all of them.
    """

    place: ExtensionIR
    protocol: AuthProtocol
    backend: WeightedBackend
    path: str = ""
    allowed_headers: tuple[str, ...] = ()
    allowed_response_headers: tuple[str, ...] = ()
    max_body: int = 0
    condition: FilterSettings | None = None


@dataclass(frozen=True, slots=True)
class SessionIR:
    """Session persistence of one rule (Gateway API v1, SessionPersistence; GEP-1619).

    `name` is that of the cookie, or with `is_header` of the header field. `scope` names the rule: a session of one rule
    says nothing to another. `absolute_s` and `idle_s` end a session; 0 is never. `is_permanent`: the cookie itself says
    when it ends. `path` is the cookie's where a regular expression matched; "" where none can. `cookie_path` is the one
    that the rule says; "": that of the match.
    """

    name: str
    scope: str
    is_header: bool = False
    absolute_s: float = 0.0
    idle_s: float = 0.0
    is_permanent: bool = False
    path: str = ""
    cookie_path: str = ""


@dataclass(frozen=True, slots=True)
class HttpRuleIR:
    """One rule. `extensions` hold everything that runs for it at Gateway and Route level, HTTPRoute filters included.

    `request_s` and `backend_request_s`: rule timeouts; None where the rule says nothing (the policy's hold); 0
    disables. `index` is its place in the route as written, from 0, dropped rules counted. `retry` None: no retries.
    With a `session`, `backends` holds those of weight 0 too: a session stays with its backend.
    """

    matches: tuple[MatchIR, ...] = (MatchIR(),)
    backends: tuple[WeightedBackend, ...] = ()
    policy: PolicyIR = NO_POLICY
    extensions: tuple[ExtensionIR, ...] = ()
    request_s: float | None = None
    backend_request_s: float | None = None
    name: str = ""
    index: int = field(default=0, compare=False)
    auths: tuple[ExternalAuthIR, ...] = ()
    mirrors: tuple[MirrorIR, ...] = ()
    retry: RetryIR | None = None
    session: SessionIR | None = None


@dataclass(frozen=True, slots=True)
class HttpRouteIR:
    """`name` is "namespace/name"; `hostnames` are already intersected with the listener's (empty: every host).

    `created` is the creationTimestamp as an ISO string, "~" (sorts last) where there is none. `named`, for a route with
    a Dynamic backend or mirror, are the hostnames as it has written them: what it permits by itself.
    """

    name: str
    hostnames: tuple[str, ...]
    rules: tuple[HttpRuleIR, ...]
    created: str = "~"
    kind: str = "HTTPRoute"
    named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamRouteIR:
    """TLSRoute or TCPRoute: its (first) rule's backends by weight. `hostnames`, `named` as above; none for TCPRoute."""

    name: str
    hostnames: tuple[str, ...]
    backends: tuple[WeightedBackend, ...]
    policy: PolicyIR = NO_POLICY
    extensions: tuple[ExtensionIR, ...] = ()  # as of HttpRuleIR; the request-headers phase sees a tunnel
    created: str = "~"
    kind: str = "TLSRoute"
    named: tuple[str, ...] = ()
