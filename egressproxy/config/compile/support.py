"""What the data plane of this version enforces: the one place to change when it learns more.

The model is larger than what is served. Whatever is asked for and stands here as False is either reported in status
(where leaving it out does no harm), or closes the place that asked for it (where leaving it out would let more pass).
"""

from __future__ import annotations

from typing import Final

from egressproxy.spec.backend import Protocol

__all__ = ["GRPC_PROTOCOLS", "ROUTED_ALLOW", "ROUTE_FEATURES", "UPSTREAM_PROTOCOLS"]

#: EgressPolicy `destinations.allow` on a route or Backend: a place where it is asked for stays closed.
ROUTED_ALLOW: Final[bool] = False

#: Backend `protocol`: a backend that speaks another one is not used.
UPSTREAM_PROTOCOLS: Final[frozenset[Protocol]] = frozenset({Protocol.HTTP, Protocol.HTTP11, Protocol.MCP, Protocol.TCP})

#: The same for an authorization server that is asked in gRPC.
GRPC_PROTOCOLS: Final[frozenset[Protocol]] = frozenset({Protocol.HTTP, Protocol.HTTP2, Protocol.H2C, Protocol.GRPC})

#: `GatewayClass.status.supportedFeatures`, by the names of Gateway API.
ROUTE_FEATURES: Final[tuple[str, ...]] = (
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "CookieSessionPersistence",
    "CookieSessionPersistencePermanentLifetime",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSAndTLSPassthroughSamePort",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayListenerSet",
    "GatewayPort8080",
    "GatewayRouteHostnameIntersectionPrecedence",
    "GatewayStaticAddresses",
    "GatewayTLSBackendClientCertificate",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteExternalAuth",
    "HTTPRouteExternalAuthForwardBody",
    "HTTPRouteExternalAuthGRPC",
    "HTTPRouteExternalAuthHTTP",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryCodes",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
)
