"""HTTPRoute, GRPCRoute, TLSRoute, TCPRoute. Source: gateway.networking.k8s.io/v1, with the rules of its CRDs.

Every standard field is here, also those that are reported as unsupported in status: a route is never half read.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from egressproxy.config.resources.hostnames import Hostname
from egressproxy.config.resources.meta import GATEWAY_GROUP, Model, Resource
from egressproxy.config.resources.object_references import BackendObjectReference, ParentReference
from egressproxy.config.resources.route_filters import GrpcFilters, HttpFilter, HttpFilters
from egressproxy.config.resources.route_matches import GrpcMatch, GrpcMatches, HttpMatch, HttpMatches
from egressproxy.config.resources.values import (
    Duration,
    HeaderName,
    RefusedValue,
    Subdomain,
    check_unique,
    require_own_block,
)
from egressproxy.ir.route import PathMatchType


class BackendRef(BackendObjectReference):
    """A backend and its share of the rule's traffic; weight 0 gets none."""

    weight: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 1
    """Its share of the rule's traffic, in proportion to the weights of the others."""


class CommonRouteSpec(Model):
    parent_refs: Annotated[tuple[ParentReference, ...], Field(max_length=32)] = ()
    """The Gateways and ListenerSets, or single listeners of them, that the route attaches to."""
    use_default_gateways: Literal["All", "None"] = "None"
    """Attach to the default Gateways, too."""

    def model_post_init(self, context: Any) -> None:
        """Names of rules are unique, and matches are not too many (rules of the CRD)."""
        rules = getattr(self, "rules", ())
        check_unique((rule.name for rule in rules if rule.name), "name", "rules")
        if sum(len(getattr(rule, "matches", ())) for rule in rules) > 128:
            raise RefusedValue("more than 128 matches in all rules together", "split the route")

    @field_validator("parent_refs")
    @classmethod
    def _parents_are_told_apart(cls, refs: tuple[ParentReference, ...]) -> tuple[ParentReference, ...]:
        """Several references to one parent each name another section or port (rules of the CRD)."""
        if len(refs) < 2:
            return refs
        sections: dict[tuple[str, str, str | None, str], list[tuple[str | None, int | None]]] = {}
        for ref in refs:
            parent = (ref.group, ref.kind, ref.namespace, ref.name)
            sections.setdefault(parent, []).append((ref.section_name, ref.port))
        for (_, kind, _, name), parts in sections.items():
            if len(parts) > 1 and ((None, None) in parts or len(set(parts)) < len(parts)):
                message = f"{kind} {name} stands more than once in parentRefs"
                raise RefusedValue(message, "give each its own sectionName or port, or keep one")
        return refs


# --- rules -----------------------------------------------------------------------------------------------------------


class HttpBackendRef(BackendRef):
    filters: HttpFilters = ()
    """Filters for what goes to this backend alone."""


class GrpcBackendRef(BackendRef):
    filters: GrpcFilters = ()
    """Filters for what goes to this backend alone."""


class Timeouts(Model):
    """0s disables. `backendRequest` is one attempt, `request` all of them."""

    request: Duration | None = None
    """For the whole exchange, all attempts together."""
    backend_request: Duration | None = None
    """For one attempt at a backend."""

    def model_post_init(self, context: Any) -> None:
        whole, attempt = self.request, self.backend_request
        if whole is not None and attempt is not None and whole.seconds and attempt.seconds > whole.seconds:
            raise RefusedValue(f"backendRequest {attempt} is longer than request {whole}", "make it at most request")


class Retry(Model):
    codes: tuple[Annotated[int, Field(strict=True, ge=400, le=599)], ...] = ()
    """Statuses of a backend that are tried again."""
    attempts: Annotated[int, Field(strict=True, ge=0)] | None = None
    """How often it is tried again."""
    backoff: Duration | None = None
    """The pause before the next attempt."""


class CookieConfig(Model):
    lifetime_type: Literal["Permanent", "Session"] = "Session"
    """Session: the cookie ends with the browser. Permanent: after absoluteTimeout."""


class SessionCookie(CookieConfig):
    name: HeaderName | None = None
    """Name of the cookie. Default: made up of the rule's name."""
    path: Annotated[str, Field(max_length=1024)] = "/"
    """Path of the cookie: the requests that the client sends it with."""


class SessionHeader(Model):
    name: HeaderName
    """Name of the field."""


class SessionPersistence(Model):
    """In both of its forms: names stand in `cookie` or `header`; before Gateway API v1.6 in `sessionName`."""

    session_name: Annotated[str, Field(max_length=128)] | None = None
    """In the earlier form: name of the cookie or field."""
    absolute_timeout: Duration | None = None
    """How long a session may last."""
    idle_timeout: Duration | None = None
    """In the earlier form: how long a session may be idle."""
    type: Literal["Cookie", "Header"] = "Cookie"
    """What carries the session."""
    cookie_config: CookieConfig | None = None
    """In the earlier form: settings of the cookie."""
    cookie: SessionCookie | None = None
    """For type Cookie: the cookie."""
    header: SessionHeader | None = None
    """For type Header: the field."""

    @property
    def name(self) -> tuple[str, str]:
        """The field that names the cookie or header field, and the name, "" where none is written."""
        block = self.cookie or self.header
        if block is None:
            return "sessionName", self.session_name or ""
        return f"{self.type.lower()}.name", block.name or ""

    def model_post_init(self, context: Any) -> None:
        """Check that one form is written, and the rules of its CRD."""
        if self.cookie is not None or self.header is not None:
            own = self.type.lower()
            require_own_block(f"type {self.type}", own, {"cookie": self.cookie, "header": self.header})
            earlier = {"sessionName": self.session_name, "idleTimeout": self.idle_timeout}
            for field, value in (*earlier.items(), ("cookieConfig", self.cookie_config)):
                if value is not None:
                    message = f"{field} belongs to the earlier form, which has no {own}"
                    raise RefusedValue(message, f"remove {field}, or {own}")
        cookie = self.cookie or self.cookie_config
        if cookie is not None and cookie.lifetime_type == "Permanent" and self.absolute_timeout is None:
            raise RefusedValue("a permanent cookie needs absoluteTimeout", "add absoluteTimeout")


class RouteRule(Model):
    """What the rules of all routes have in common."""

    name: Subdomain | None = None
    """Name of the rule, unique in the route."""


class HttpRule(RouteRule):
    """A rule without matches matches PathPrefix `/`."""

    matches: HttpMatches = (HttpMatch.model_construct(),)
    """Requests that the rule is for: one of these has to hold."""
    filters: HttpFilters = ()
    """What is done to requests and answers."""
    backend_refs: Annotated[tuple[HttpBackendRef, ...], Field(max_length=16)] = ()
    """Where requests go, by weight."""
    timeouts: Timeouts | None = None
    """How long requests may take."""
    retry: Retry | None = None
    """What is tried again."""
    session_persistence: SessionPersistence | None = None
    """Requests of one session go to the same backend and endpoint."""

    def model_post_init(self, context: Any) -> None:
        """Filters fit the matches and the backends (rules of the CRD)."""
        everything = [*self.filters, *(entry for ref in self.backend_refs for entry in ref.filters)]
        if any(_replaces_prefix(entry) for entry in everything) and not (
            len(self.matches) == 1 and self.matches[0].path.type is PathMatchType.PREFIX
        ):
            message = "ReplacePrefixMatch needs exactly one match of type PathPrefix"
            raise RefusedValue(message, "split the rule, or use ReplaceFullPath")
        types = [entry.type for entry in self.filters] if self.backend_refs else []
        if "RequestRedirect" in types:
            raise RefusedValue("a rule that redirects has no backends", "remove backendRefs, or RequestRedirect")
        if "DirectResponse" in types:
            raise RefusedValue("a rule with DirectResponse has no backends", "remove backendRefs, or DirectResponse")


def _replaces_prefix(entry: HttpFilter) -> bool:
    block = entry.request_redirect or entry.url_rewrite
    return block is not None and block.path is not None and block.path.type == "ReplacePrefixMatch"


class GrpcRule(RouteRule):
    """A rule without matches matches every gRPC request."""

    matches: GrpcMatches = (GrpcMatch.model_construct(),)
    """Requests that the rule is for: one of these has to hold."""
    filters: GrpcFilters = ()
    """What is done to requests and answers."""
    backend_refs: Annotated[tuple[GrpcBackendRef, ...], Field(max_length=16)] = ()
    """Where requests go, by weight."""
    session_persistence: SessionPersistence | None = None
    """Requests of one session go to the same backend and endpoint."""


class StreamRule(RouteRule):
    """A rule of a TLSRoute or TCPRoute: backends by weight, nothing to match."""

    backend_refs: Annotated[tuple[BackendRef, ...], Field(min_length=1, max_length=16)]
    """Where connections go, by weight."""


# --- routes ----------------------------------------------------------------------------------------------------------


class HttpRouteSpec(CommonRouteSpec):
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Names that requests ask for, exact or as *.suffix. Left out: those of the listener."""
    rules: Annotated[tuple[HttpRule, ...], Field(min_length=1, max_length=16)] = (HttpRule.model_construct(),)
    """What becomes of requests."""


class HttpRoute(Resource, group=GATEWAY_GROUP, kind="HTTPRoute", versions=("v1", "v1beta1", "v1alpha2")):
    """Absolute-form requests, plain HTTP in tunnels, decrypted requests, and reverse-proxied ones."""

    spec: HttpRouteSpec
    """Which requests the route is for, and what becomes of them."""


class GrpcRouteSpec(CommonRouteSpec):
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Names that requests ask for, exact or as *.suffix. Left out: those of the listener."""
    rules: Annotated[tuple[GrpcRule, ...], Field(max_length=16)] = ()
    """What becomes of requests."""


class GrpcRoute(Resource, group=GATEWAY_GROUP, kind="GRPCRoute", versions=("v1", "v1alpha2")):
    """gRPC requests by service, method and metadata."""

    spec: GrpcRouteSpec
    """Which requests the route is for, and what becomes of them."""


class TlsRouteSpec(CommonRouteSpec):
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Server names (SNI) of connections, exact or as *.suffix. Left out: those of the listener."""
    rules: Annotated[tuple[StreamRule, ...], Field(min_length=1, max_length=16)]
    """Where connections go."""


class TlsRoute(Resource, group=GATEWAY_GROUP, kind="TLSRoute", versions=("v1", "v1alpha3", "v1alpha2")):
    """TLS passed through by SNI; on a forward-proxy listener, CONNECT tunnels by authority."""

    spec: TlsRouteSpec
    """Which connections the route is for, and where they go."""


class TcpRouteSpec(CommonRouteSpec):
    rules: Annotated[tuple[StreamRule, ...], Field(min_length=1, max_length=16)]
    """Where connections go."""


class TcpRoute(Resource, group=GATEWAY_GROUP, kind="TCPRoute", versions=("v1", "v1alpha2")):
    spec: TcpRouteSpec
    """Which connections the route is for, and where they go."""


AnyRoute = HttpRoute | GrpcRoute | TlsRoute | TcpRoute
