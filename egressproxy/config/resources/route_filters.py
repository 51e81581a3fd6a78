"""The filters of rules: one block, named by `type`. Source: Gateway API v1 HTTPRouteFilter, GRPCRouteFilter."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from egressproxy.config.resources.extension import PayloadProcessors
from egressproxy.config.resources.hostnames import PreciseHostname
from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.object_references import BackendObjectReference, LocalObjectReference
from egressproxy.config.resources.values import (
    NULL_IS_EMPTY_LIST,
    Bool,
    HeaderName,
    Name,
    Port,
    RefusedValue,
    Subdomain,
    check_unique,
    require_own_block,
)

HeaderText = Annotated[str, Field(min_length=1, max_length=4096)]


class HttpHeader(Model):
    name: HeaderName
    """Name of the field."""
    value: HeaderText
    """Its value."""


class HeaderModifier(Model):
    """`set` replaces, `add` appends, `remove` takes away; names match without regard to case."""

    set: Annotated[tuple[HttpHeader, ...], Field(max_length=16)] = ()
    """Fields that replace those of the same name."""
    add: Annotated[tuple[HttpHeader, ...], Field(max_length=16)] = ()
    """Fields that are added to those of the same name."""
    remove: Annotated[tuple[str, ...], Field(max_length=16)] = ()
    """Names of fields that are taken away."""

    def model_post_init(self, context: Any) -> None:
        check_unique((header.name for header in self.set), "name", "set")
        check_unique((header.name for header in self.add), "name", "add")


class Fraction(Model):
    numerator: Annotated[int, Field(strict=True, ge=0)]
    """The number of requests to copy …"""
    denominator: Annotated[int, Field(strict=True, ge=1)] = 100
    """… out of this many."""

    def model_post_init(self, context: Any) -> None:
        if self.numerator > self.denominator:
            raise RefusedValue("the fraction is greater than one", "make numerator at most denominator")


class RequestMirror(Model):
    backend_ref: BackendObjectReference
    """The destination of the copy, whose response is dropped."""
    percent: Annotated[int, Field(strict=True, ge=0, le=100)] | None = None
    """The percentage of requests to copy. Default: all."""
    fraction: Fraction | None = None
    """The share as a fraction."""

    def model_post_init(self, context: Any) -> None:
        if self.percent is not None and self.fraction is not None:
            raise RefusedValue("percent and fraction exclude each other", "keep one of them")


class PathModifier(Model):
    type: Literal["ReplaceFullPath", "ReplacePrefixMatch"]
    """ReplaceFullPath, or ReplacePrefixMatch."""
    replace_full_path: Annotated[str, Field(max_length=1024)] | None = None
    """The new path."""
    replace_prefix_match: Annotated[str, Field(max_length=1024)] | None = None
    """The replacement of the matched prefix."""

    def model_post_init(self, context: Any) -> None:
        own = "replaceFullPath" if self.type == "ReplaceFullPath" else "replacePrefixMatch"
        blocks = {"replaceFullPath": self.replace_full_path, "replacePrefixMatch": self.replace_prefix_match}
        require_own_block(f"type {self.type}", own, blocks)


class RequestRedirect(Model):
    scheme: Literal["http", "https"] | None = None
    """Scheme of the redirect. Default: the request's."""
    hostname: PreciseHostname | None = None
    """Host of the redirect. Default: the request's."""
    path: PathModifier | None = None
    """Path of the redirect. Default: the request's."""
    port: Port | None = None
    """Port of the redirect. Default: the scheme's, else the listener's."""
    status_code: Literal[301, 302, 303, 307, 308] = 302
    """Status of the response."""


class DirectResponseBody(Model):
    string: Annotated[str, Field(max_length=4096)]
    """The body, as text."""


class DirectResponse(Model):
    """A response of the gateway itself. Source: GEP-2826, the prototype that it names."""

    status_code: Annotated[int, Field(strict=True, ge=100, le=599)]
    """Status of the response."""
    body: DirectResponseBody | None = None
    """Body of the response. Default: none."""


class UrlRewrite(Model):
    hostname: PreciseHostname | None = None
    """The new Host."""
    path: PathModifier | None = None
    """The new path."""


_ORIGIN = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[^:/?#\s]+(:[0-9]{1,5})?")


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise RefusedValue(f"{text} is no origin", "write SCHEME://HOST[:PORT], where HOST may hold *, or * alone")
    return text


#: CORSOrigin.
Origin = Annotated[str, Field(max_length=253), AfterValidator(_origin)]
#: HTTPMethodWithWildcard.
AnyMethod = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"]


class CorsFilter(Model):
    allow_origins: Annotated[tuple[Origin, ...], Field(max_length=64)] = ()
    """Origins whose pages may read responses."""
    allow_credentials: Bool = False
    """Whether pages may send credentials."""
    allow_methods: Annotated[tuple[AnyMethod, ...], Field(max_length=9)] = ()
    """Methods that pages may use."""
    allow_headers: Annotated[tuple[HeaderName, ...], Field(max_length=64)] = ()
    """Fields that pages may send."""
    expose_headers: Annotated[tuple[HeaderName, ...], Field(max_length=64)] = ()
    """Response fields that pages may read."""
    max_age: Annotated[int, Field(strict=True, ge=1, le=2_147_483_647)] = 5
    """Seconds for which browsers may cache the response to a preflight request."""

    def model_post_init(self, context: Any) -> None:
        for name, values in (
            ("allowOrigins", self.allow_origins),
            ("allowMethods", self.allow_methods),
            ("allowHeaders", self.allow_headers),
        ):
            if "*" in values and len(values) > 1:
                raise RefusedValue(f"{name} contains * beside other values", "keep * alone, or remove it")


HeaderNames = Annotated[tuple[HeaderName, ...], Field(max_length=64), NULL_IS_EMPTY_LIST]


class ExternalAuthGrpc(Model):
    """An authorization server over gRPC."""

    allowed_headers: HeaderNames = ()
    """Fields that the server sees. Default: all."""


class ExternalAuthHttp(Model):
    """An authorization server over HTTP."""

    path: Annotated[str, Field(max_length=1024, pattern=r"^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})*$")] = ""
    """The prefix of the path in the request to the server."""
    allowed_headers: HeaderNames = ()
    """Fields that the server sees beside Authorization."""
    allowed_response_headers: HeaderNames = ()
    """Fields of the server's response that are copied into the request. Default: all."""


class ExternalAuthBody(Model):
    max_size: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)] = 0
    """Bytes of the body that the server sees. 0: none."""


class ExternalAuthFilter(Model):
    protocol: Literal["HTTP", "GRPC"]
    """The protocol of the server."""
    backend_ref: BackendObjectReference
    """The authorization server."""
    grpc: ExternalAuthGrpc | None = None
    """For protocol GRPC."""
    http: ExternalAuthHttp | None = None
    """For protocol HTTP."""
    forward_body: ExternalAuthBody | None = None
    """Whether the server sees the body."""

    def model_post_init(self, context: Any) -> None:
        blocks = {"grpc": self.grpc, "http": self.http}
        require_own_block(f"protocol {self.protocol}", self.protocol.lower(), blocks)


class GrpcFilter(Model):
    """A filter holds exactly the block of its own type (a rule of the CRD)."""

    type: Literal["RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "ExtensionRef"]
    """The type of the filter, which needs the block of its name."""
    request_header_modifier: HeaderModifier | None = None
    """Changes fields of the request."""
    response_header_modifier: HeaderModifier | None = None
    """Changes fields of the response."""
    request_mirror: RequestMirror | None = None
    """Sends a copy of the request to another backend."""
    extension_ref: LocalObjectReference | None = None
    """A filter of another kind."""

    def model_post_init(self, context: Any) -> None:
        aliases = {name: info.alias or name for name, info in type(self).model_fields.items() if name != "type"}
        own = next(alias for alias in aliases.values() if alias.lower() == self.type.lower())
        blocks = {alias: getattr(self, name) for name, alias in aliases.items()}
        require_own_block(f"a filter of type {self.type}", own, blocks, ", or change the type")


class PipelineReference(Model):
    name: Name
    """Name of the PayloadProcessingPipeline, in the namespace of the route."""


class HttpFilter(GrpcFilter):
    """A filter of an HTTPRoute: all of GRPCRoute's, and more."""

    type: Literal[  # type: ignore[assignment]
        "RequestHeaderModifier",
        "ResponseHeaderModifier",
        "RequestMirror",
        "RequestRedirect",
        "URLRewrite",
        "ExtensionRef",
        "CORS",
        "ExternalAuth",
        "DirectResponse",
        "PayloadProcessing",
        "PayloadProcessingRef",
    ]
    request_redirect: RequestRedirect | None = None
    """Responds with a redirect."""
    url_rewrite: UrlRewrite | None = None
    """Changes the Host and the path of the request."""
    cors: CorsFilter | None = None
    """Responds to preflight requests, and sets the CORS fields of responses."""
    external_auth: ExternalAuthFilter | None = None
    """Checks the request with an authorization server."""
    direct_response: DirectResponse | None = None
    """Responds with a fixed status and body."""
    payload_processing: PayloadProcessors | None = None
    """Processors of requests and responses, in their order."""
    payload_processing_ref: PipelineReference | None = None
    """A PayloadProcessingPipeline of gateway.networking.k8s.io."""

    @property
    def backend_ref(self) -> BackendObjectReference | None:
        """The backend that the filter itself calls: a mirror, an authorization server."""
        block = self.request_mirror or self.external_auth
        return block.backend_ref if block is not None else None


class HttpListenerFilter(Model):
    """A filter of a listener, which runs before a route is chosen. Source: GEP-5224."""

    name: Subdomain | None = None
    """Name of the filter, unique in the list."""
    type: Literal["ExternalAuth", "ExtensionRef"]
    """The type of the filter, which needs the block of its name."""
    external_auth: ExternalAuthFilter | None = None
    """Checks the request with an authorization server."""
    extension_ref: LocalObjectReference | None = None
    """A PayloadProcessingPipeline."""

    def model_post_init(self, context: Any) -> None:
        own = self.type[0].lower() + self.type[1:]
        blocks = {"externalAuth": self.external_auth, "extensionRef": self.extension_ref}
        require_own_block(f"a filter of type {self.type}", own, blocks, ", or change the type")


_REPEATED = ("RequestMirror", "ExtensionRef", "PayloadProcessingRef")


def _once_each(filters: tuple[Any, ...]) -> tuple[Any, ...]:
    """Check filters: few types may be repeated, and a redirect excludes some others."""
    types: list[str] = [entry.type for entry in filters]
    for kind in types:
        if types.count(kind) > 1 and kind not in _REPEATED:
            raise RefusedValue(f"a filter of type {kind} cannot be repeated", "put everything in one filter")
    for other in ("URLRewrite", "DirectResponse"):
        if "RequestRedirect" in types and other in types:
            raise RefusedValue(f"RequestRedirect and {other} exclude each other", "remove one of them")
    return filters


HttpFilters = Annotated[tuple[HttpFilter, ...], Field(max_length=16), AfterValidator(_once_each)]
GrpcFilters = Annotated[tuple[GrpcFilter, ...], Field(max_length=16), AfterValidator(_once_each)]
