"""The matches of HTTPRoutes and GRPCRoutes: paths, fields, query parameters, methods."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.route_filters import HeaderText
from egressproxy.config.resources.values import HeaderName, RefusedValue, check_unique
from egressproxy.ir.route import MatchType, PathMatchType

Method = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]


class PathMatch(Model):
    """A path: absolute, without `//`, `/./`, `/../`, encoded slashes and fragments (rules of the CRD)."""

    type: PathMatchType = PathMatchType.PREFIX
    """How the path is compared."""
    value: Annotated[str, Field(max_length=1024)] = "/"
    """The path, its prefix, or the expression."""

    def model_post_init(self, context: Any) -> None:
        """Check the rules of the CRD for paths."""
        if self.type is PathMatchType.REGEX:
            return
        if not self.value.startswith("/"):
            raise RefusedValue("a path starts with /", f"write /{self.value}")
        for part in ("//", "/./", "/../", "%2f", "%2F", "#"):
            if part in self.value:
                raise RefusedValue(f"a path cannot contain {part}", "write the path in its plain form")
        if self.value.endswith(("/.", "/..")):
            raise RefusedValue("a path cannot end in /. or /..", "write the path in its plain form")


class HeaderMatch(Model):
    type: MatchType = MatchType.EXACT
    """How the value is compared."""
    name: HeaderName
    """Name of the field, in any case."""
    value: HeaderText
    """The value, or the expression."""


class QueryParamMatch(Model):
    type: MatchType = MatchType.EXACT
    """How the value is compared."""
    name: HeaderName
    """Name of the parameter."""
    value: Annotated[str, Field(min_length=1, max_length=1024)]
    """The value, or the expression."""


class HeadersMatch(Model):
    """Conditions on a request; all must hold."""

    headers: Annotated[tuple[HeaderMatch, ...], Field(max_length=16)] = ()
    """The required fields; all must match."""

    def model_post_init(self, context: Any) -> None:
        check_unique((header.name for header in self.headers), "name", "headers")


class HttpMatch(HeadersMatch):
    """Conditions on a request; all must hold."""

    path: PathMatch = PathMatch.model_construct()
    """The required path."""
    query_params: Annotated[tuple[QueryParamMatch, ...], Field(max_length=16)] = ()
    """The required query parameters; all must match."""
    method: Method | None = None
    """The required method."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        check_unique((param.name for param in self.query_params), "name", "queryParams")


_GRPC_SERVICE = re.compile(r"\.?[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_][A-Za-z_0-9]*)*")
_GRPC_METHOD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


class GrpcMethodMatch(Model):
    """A gRPC service (with its package) and method; an absent one matches all."""

    type: MatchType = MatchType.EXACT
    """How service and method are compared."""
    service: Annotated[str, Field(max_length=1024)] | None = None
    """The service with its package, as in package.Service."""
    method: Annotated[str, Field(max_length=1024)] | None = None
    """The method of the service."""

    def model_post_init(self, context: Any) -> None:
        if not self.service and not self.method:
            raise RefusedValue("a gRPC method match names neither service nor method", "add service, method, or both")
        if self.type is MatchType.EXACT:
            if self.service and not _GRPC_SERVICE.fullmatch(self.service):
                raise RefusedValue(f"{self.service} is no gRPC service", "write it as package.Service, without slashes")
            if self.method and not _GRPC_METHOD.fullmatch(self.method):
                raise RefusedValue(f"{self.method} is no gRPC method", "write its name alone: letters, digits and _")


class GrpcMatch(HeadersMatch):
    """Conditions on a request; all must hold."""

    method: GrpcMethodMatch | None = None
    """The required service and method."""


#: The default is one match for all requests.
HttpMatches = Annotated[
    tuple[HttpMatch, ...], Field(max_length=64), AfterValidator(lambda matches: matches or (HttpMatch(),))
]
GrpcMatches = Annotated[
    tuple[GrpcMatch, ...], Field(max_length=64), AfterValidator(lambda matches: matches or (GrpcMatch(),))
]
