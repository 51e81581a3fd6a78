"""What the data plane of this version enforces: the one place to change when it learns more.

The model is larger than what is served. Whatever is asked for and not served is either reported in status (where
leaving it out does no harm), or closes the place that asked for it (where leaving it out would let more pass).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from egressproxy.ir.backend import Protocol

__all__ = [
    "GRPC_PROTOCOLS",
    "ROUTE_FEATURES",
    "UNSERVED",
    "UPSTREAM_PROTOCOLS",
    "says_less",
]

#: Backend `protocol`: a backend that speaks another one is not used.
UPSTREAM_PROTOCOLS: Final[frozenset[Protocol]] = frozenset({Protocol.HTTP, Protocol.HTTP11, Protocol.MCP, Protocol.TCP})

#: The same for an authorization server that is asked in gRPC.
GRPC_PROTOCOLS: Final[frozenset[Protocol]] = frozenset({Protocol.HTTP, Protocol.HTTP2, Protocol.H2C, Protocol.GRPC})

#: Fields of our own kinds that are read and not served, by model and field: what happens instead. The published schema
#: (`kubectl explain`) and docs/fields.md say it, as status does where one is used. What is served is taken out here.
UNSERVED: Final[Mapping[str, str]] = {
    "BackendDestination.failover": "what refers to the Backend answers 500",
    "BackendDestination.endpointSelector": "what refers to the Backend answers 500",
    "EgressPolicySpec.subjects": "what the policy denies or limits holds for everybody, the rest for nobody",
    "EgressPolicySpec.intercept": "the names that it lists are denied",
    "EgressPolicySpec.identity": "every client is unknown; certificate.crlRefs alone are read",
    "Identity.token": "where it is written everything is refused",
    "Identity.basic": "where it is written everything is refused",
    "Dns.reverseCheck": "Report does nothing, with Enforce everything is refused",
    "Limits.tokens": "it does nothing",
    "Limits.bytes": "it does nothing",
    "Limits.store": "the processes of one gateway count for themselves",
    "Traffic.circuitBreaker": "it does nothing",
    "Traffic.outlierDetection": "it does nothing",
    "Traffic.loadBalancing": "it does nothing",
    "Traffic.healthCheck": "it does nothing",
    "PayloadProcessingPipeline.spec": "no pipeline is accepted, and a rule that names one answers 500",
}

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

#: What the notes of a condition say where less is served than was written.
_LESS: Final[tuple[str, ...]] = (
    "not supported",
    "does nothing",
    "do nothing",
    "answers 500",
    "answered with 500",
    "mirrors less",
    "is not attached to another listener",
    "Not everywhere:",
    "only the first rule is served",
    "are not applied to",
    "a name is made up in its place",
    "the most that there are",
    "of ports one entry counts",
    "these listeners are not served",
)


#: What notes say of a field that has no meaning here. Nothing is missing, so `check` shows it as a note.
_IDLE: Final = "has nothing to be applied to"


def says_idle(message: str) -> bool:
    """Whether the message of a condition says that a field has nothing to do here."""
    return _IDLE in message


def says_less(message: str) -> bool:
    """Whether the message of a condition, be it a good one, says that something written is not done.

    Every note on a field without effect is written in these words, and so found here: in `check`, and in the log.
    """
    return any(words in message for words in _LESS)
