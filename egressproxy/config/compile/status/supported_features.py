"""What the data plane of this version enforces: the one place to change when it learns more.

The model is larger than what is served. Whatever is asked for and not served is either reported in status (where
leaving it out does no harm), or closes the place that asked for it (where leaving it out would let more pass).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from egressproxy.ir.backend import Protocol

#: Backend `protocol`: what a route, or an authorization server that is asked in HTTP, may speak.
UPSTREAM_PROTOCOLS: Final[frozenset[Protocol]] = frozenset(Protocol) - {Protocol.SOCKS5}

#: The same for a parent, which is asked in HTTP/1 or in SOCKS5.
PARENT_PROTOCOLS: Final = frozenset({Protocol.HTTP, Protocol.HTTP11, Protocol.MCP, Protocol.TCP, Protocol.SOCKS5})

#: The same for backends of GRPCRoutes, and for an authorization server that is asked in gRPC.
GRPC_PROTOCOLS: Final[frozenset[Protocol]] = frozenset({Protocol.HTTP, Protocol.HTTP2, Protocol.H2C, Protocol.GRPC})

#: Fields of our own kinds that are read and not served, by model and field: what happens instead. The published schema
#: (`kubectl explain`) and docs/fields.md say it, as status does where one is used. What is served is taken out here.
UNSERVED: Final[Mapping[str, str]] = {
    "BackendDestination.endpointSelector": "what refers to the Backend answers 500",
}

#: `GatewayClass.status.supportedFeatures`, 64 names at most: those of Gateway API v1.6 and of its sources after that,
#: which call `HTTPRouteRetry` `HTTPRouteRetryCodes`. `Backend` has no place among them.
ROUTE_FEATURES: Final[tuple[str, ...]] = (
    "BackendExternalHostname", "BackendProtocolGRPC", "BackendProtocolHTTP2", "BackendProtocolMCP",
    "BackendProtocolTCP", "BackendProtocolWSS", "BackendTLS", "BackendTLSPolicy", "BackendTLSPolicyClusterTrustBundle",
    "BackendTLSPolicySANValidation", "CookieSessionPersistence", "CookieSessionPersistencePermanentLifetime",
    "GRPCRoute", "GRPCRouteNamedRouteRule", "Gateway", "GatewayAddressEmpty", "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation", "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayFrontendClusterTrustBundle", "GatewayHTTPListenerIsolation", "GatewayHTTPSAndTLSPassthroughSamePort",
    "GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayPort8080", "GatewayRouteHostnameIntersectionPrecedence",
    "GatewayStaticAddresses", "HTTPRoute", "HTTPRoute303RedirectStatusCode", "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode", "HTTPRouteBackendProtocolH2C", "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification", "HTTPRouteBackendTimeout", "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching", "HTTPRouteExternalAuth", "HTTPRouteExternalAuthForwardBody",
    "HTTPRouteExternalAuthGRPC", "HTTPRouteExternalAuthHTTP", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror", "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry", "HTTPRouteRetryBackendTimeout", "HTTPRouteRetryCodes", "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect", "ListenerSet", "ReferenceGrant", "TCPRoute", "TLSRoute", "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
)  # fmt: skip
