"""Tests of Gateway API's own suite, by their names, and the cases here that play each of them.

Source: the names, features and profiles of the suite's release v1.6.2 (kubernetes-sigs/gateway-api, conformance/tests,
conformance/utils/suite, pkg/features). Tests of a mesh and of UDPRoute are left out, as nothing here is either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

VERSION: Final = "v1.6.2"

GATEWAY_FEATURES: Final = frozenset({
    "GatewayAddressEmpty", "GatewayBackendClientCertificate", "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback", "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests", "GatewayInfrastructurePropagation", "GatewayPort8080",
    "GatewayStaticAddresses", "ListenerSet",
})  # fmt: skip
HTTP_FEATURES: Final = frozenset({
    "BackendTLSPolicy", "BackendTLSPolicySANValidation", "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode", "HTTPRoute308RedirectStatusCode", "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket", "HTTPRouteBackendRequestHeaderModification", "HTTPRouteBackendTimeout",
    "HTTPRouteCORS", "HTTPRouteDestinationPortMatching", "HTTPRouteHostRewrite", "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule", "HTTPRouteParentRefPort", "HTTPRoutePathRedirect", "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect", "HTTPRouteQueryParamMatching", "HTTPRouteRequestMirror", "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror", "HTTPRouteRequestTimeout", "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry", "HTTPRouteRetryBackendTimeout", "HTTPRouteRetryConnectionError", "HTTPRouteSchemeRedirect",
})  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """A test belongs to a profile that has all of its features; it is extended if one of them is not core."""

    name: str
    core: frozenset[str]
    extended: frozenset[str]


def _profile(name: str, route: str, *extended: str) -> Profile:
    return Profile(name, frozenset({"Gateway", "ReferenceGrant", route}), GATEWAY_FEATURES | set(extended))


PROFILES: Final = (
    _profile("GATEWAY-GRPC", "GRPCRoute"),
    _profile("GATEWAY-HTTP", "HTTPRoute", *HTTP_FEATURES),
    _profile("GATEWAY-TCP", "TCPRoute"),
    _profile("GATEWAY-TLS", "TLSRoute", "TLSRouteModeMixed", "TLSRouteModeTerminate"),
)


@dataclass(frozen=True)
class Test:
    """One test of the suite. `features` are those beside Gateway. `cases` are patterns of the cases here,
    `test_FILE.py::CASE`, where CASE may end in a pattern of parameters. Without any it is skipped; `why`.
    """

    __test__ = False  # of pytest

    name: str
    features: tuple[str, ...]
    cases: tuple[str, ...]
    is_provisional: bool = False
    why: str = ""


def _tests(*rows: tuple[str, str, str]) -> tuple[Test, ...]:
    """Each row: the name, with `*` before it where it is provisional; features; and cases, or why there are none."""
    made = []
    for name, features, cases in rows:
        listed = tuple(f"test_{case.replace('::', '.py::', 1)}" for case in cases.split() if "::" in case)
        made.append(Test(name.lstrip("*"), tuple(features.split()), listed, name[0] == "*", "" if listed else cases))
    return tuple(made)


#: Cases that several tests share.
_CHANGES: Final = "status::TestChanges::test_listeners_come_and_go_and_get_another_hostname"
_GRANTED: Final = "routing::test_a_reference_counts_while_its_grant_is_there"
_SECRETS: Final = "status::test_secrets_of_other_namespaces_need_a_grant"
_SHOWN: Final = "tls::test_a_gateway_shows_its_certificate_to_backends"
_AT: Final = "routing::TestAttachment::test_"
_NAMES: Final = "routing::TestHostnames::test_who_answers"
_MATCH: Final = "routing::TestMatching::test_"
_TO: Final = "filters::TestRedirectsAndRewrites::test_"
_ASK: Final = "traffic::TestRequests::test_"
_SETS: Final = "status::TestListenerSets::test_"
_STREAMS: Final = "traffic::TestStreams::test_"
_BTLS: Final = "tls::TestBackendTls::test_"
_CLIENT: Final = "tls::TestClientCertificates::test_"
_GW: Final = "status::TestGateways::test_"
_CALLS: Final = "grpc::TestMatching::test_"

TESTS: Final = _tests(
    # --- all profiles ------------------------------------------------------------------------------------------------
    ("GatewayClassObservedGenerationBump", "", "status::TestChanges::test_a_class_keeps_its_generation"),
    ("GatewayInvalidParametersRef", "", f"{_GW}gateway[parameters-*]"),
    ("GatewayInvalidRouteKind", "", f"{_GW}listener[no-kind-*] {_GW}listener[one-kind-*]"),
    ("GatewayInvalidTLSConfiguration", "", f"{_GW}listener[certificates-*]"),
    ("GatewayListenerUnsupportedProtocol", "", f"{_GW}gateway[*-protocol-*] {_GW}listener[*-protocol-*]"),
    ("GatewayModifyListeners", "", f"{_CHANGES} status::TestChanges::test_many_listeners_at_once"),
    ("GatewayObservedGenerationBump", "", _CHANGES),
    ("GatewaySecretInvalidReferenceGrant", "ReferenceGrant", _SECRETS),
    ("GatewaySecretMissingReferenceGrant", "ReferenceGrant", f"{_GW}listener[certificates-far-*]"),
    ("GatewaySecretReferenceGrantAllInNamespace", "ReferenceGrant", _SECRETS),
    ("GatewaySecretReferenceGrantSpecific", "ReferenceGrant", _SECRETS),
    ("*GatewayOptionalAddressValue", "GatewayAddressEmpty", f"{_GW}gateway[no-value-*]"),
    ("GatewayStaticAddresses", "GatewayStaticAddresses", "status::TestChanges::test_static_addresses"),
    ("GatewayInvalidTLSBackendConfiguration", "GatewayBackendClientCertificate", _SHOWN),
    ("ListenerSetAllowedNamespaceNone", "ListenerSet", f"{_SETS}set[at-none-*]"),
    ("ListenerSetAllowedNamespaceSame", "ListenerSet", f"{_SETS}set[at-same-*] {_SETS}set[not-same-*]"),
    ("ListenerSetAllowedNamespaceSelector", "ListenerSet", f"{_SETS}set[in-chosen-*] {_SETS}set[not-chosen-*]"),
    ("ListenerSetDefaultNotAllowed", "ListenerSet", f"{_SETS}set[at-default-*]"),
    ("ListenerSetParentNotAccepted", "ListenerSet", f"{_SETS}set[at-bad-*]"),
    ("ListenerSetReferenceGrant", "ListenerSet ReferenceGrant",
     f"{_SETS}set[*granted-*] {_SETS}listener[*granted-*]"),
    # --- HTTP, core --------------------------------------------------------------------------------------------------
    ("GatewayWithAttachedRoutes", "HTTPRoute",
     f"{_AT}both_parents_and_the_counts {_GW}routes_at_odd_listeners routing::TestHostnames::test_counts"),
    ("HTTPRouteCrossNamespace", "HTTPRoute", f"{_AT}who_answers[backend-namespaces-*]"),
    ("HTTPRouteExactPathMatching", "HTTPRoute", f"{_MATCH}who_answers[exact.com-*]"),
    ("HTTPRouteHTTPSListener", "HTTPRoute", "tls::TestHttpsListeners::test_https[*]"),
    ("HTTPRouteHeaderMatching", "HTTPRoute", f"{_MATCH}who_answers[headers.com-*]"),
    ("HTTPRouteHostnameIntersection", "HTTPRoute", f"{_NAMES}[meet-*] routing::TestHostnames::test_counts"),
    ("HTTPRouteInvalidBackendRefUnknownKind", "HTTPRoute",
     f"{_AT}what_status_says[unknown-kind-*] {_AT}who_answers[same-namespace-/unknown-*]"),
    ("HTTPRouteInvalidCrossNamespaceBackendRef", "HTTPRoute",
     f"{_AT}what_status_says[no-grant-*] {_AT}who_answers[same-namespace-/no-grant-*]"),
    ("HTTPRouteInvalidCrossNamespaceParentRef", "HTTPRoute",
     f"{_AT}both_parents_and_the_counts {_AT}who_answers[same-namespace-/stranger-*]"),
    ("HTTPRouteInvalidNonExistentBackendRef", "HTTPRoute",
     f"{_AT}what_status_says[missing-*] {_AT}who_answers[same-namespace-/missing-*]"),
    ("HTTPRouteInvalidParentRefNotMatchingSectionName", "HTTPRoute", f"{_AT}what_status_says[no-section-*]"),
    ("HTTPRouteInvalidReferenceGrant", "HTTPRoute ReferenceGrant", _GRANTED),
    ("HTTPRouteListenerHostnameMatching", "HTTPRoute", f"{_NAMES}[names-*]"),
    ("HTTPRouteMatching", "HTTPRoute", f"{_MATCH}who_answers[example.com*]"),
    ("HTTPRouteMatchingAcrossRoutes", "HTTPRoute", f"{_MATCH}who_answers[*xample.*]"),
    ("HTTPRouteMultipleGateways", "HTTPRoute", f"{_AT}who_answers[*-namespaces-/-*] {_AT}both_parents_and_the_counts"),
    ("HTTPRouteNoBackendRefs", "HTTPRoute",
     f"{_AT}what_status_says[nothing-*] {_AT}who_answers[*-/left-out-*] {_AT}who_answers[*-/empty-*]"),
    ("HTTPRouteObservedGenerationBump", "HTTPRoute", _CHANGES),
    ("HTTPRoutePartiallyInvalidViaInvalidReferenceGrant", "HTTPRoute ReferenceGrant",
     f"{_AT}what_status_says[half-*] {_AT}who_answers[same-namespace-/half-*]"),
    ("HTTPRoutePathMatchOrder", "HTTPRoute", f"{_MATCH}who_answers[order.com-*]"),
    ("HTTPRouteRedirectHostAndStatus", "HTTPRoute",
     f"{_TO}redirect[/hostname-redirect-*] {_TO}redirect[/host-and-status-*]"),
    ("HTTPRouteReferenceGrant", "HTTPRoute ReferenceGrant", _GRANTED),
    ("HTTPRouteRequestHeaderModifier", "HTTPRoute", "filters::TestHeaderModifiers::test_request[*rule.example*]"),
    ("HTTPRouteServiceTypes", "HTTPRoute", f"{_ASK}services_without_an_address[*]"),
    ("HTTPRouteSimpleSameNamespace", "HTTPRoute", f"{_AT}who_answers[same-namespace-/simple-*]"),
    ("HTTPRouteWeight", "HTTPRoute", f"{_ASK}weights"),
    # --- HTTP, extended ----------------------------------------------------------------------------------------------
    ("GatewayWithAttachedRoutesWithPort8080", "HTTPRoute GatewayPort8080",
     f"{_TO}scheme_and_port_of_a_redirect[8080] {_GW}listener[half-protocol-http-*]"),
    ("GatewayHTTPListenerIsolation", "HTTPRoute GatewayHTTPListenerIsolation", f"{_NAMES}[isolated-*]"),
    ("GatewayBackendClientCertificateFeature", "HTTPRoute GatewayBackendClientCertificate BackendTLSPolicy", _SHOWN),
    ("GatewayFrontendClientCertificateValidation", "HTTPRoute GatewayFrontendClientCertificateValidation",
     f"{_CLIENT}the_right_certificate_is_demanded"),
    ("GatewayFrontendClientCertificateValidationInsecureFallback",
     "HTTPRoute GatewayFrontendClientCertificateValidation GatewayFrontendClientCertificateValidationInsecureFallback",
     f"{_CLIENT}fallback_lets_everybody_in"),
    ("GatewayFrontendInvalidDefaultClientCertificateValidation",
     "HTTPRoute GatewayFrontendClientCertificateValidation", f"{_CLIENT}a_bad_default_closes_https_alone"),
    ("GatewayInvalidFrontendClientCertificateValidation",
     "HTTPRoute GatewayFrontendClientCertificateValidation", f"{_CLIENT}a_bad_reference_of_a_port[*]"),
    ("HTTPRouteHTTPSListenerDetectMisdirectedRequests", "HTTPRoute GatewayHTTPSListenerDetectMisdirectedRequests",
     "tls::TestHttpsListeners::test_misdirected[*] "
     "http2::TestMisdirectedRequests::test_requests_of_one_connection[*]"),
    ("ListenerSetAllowedRoutesNamespaces", "HTTPRoute ListenerSet ReferenceGrant",
     f"{_SETS}who_answers[some*] {_SETS}who_answers[same*] {_SETS}counts"),
    ("ListenerSetHTTPRouting", "HTTPRoute ListenerSet", f"{_SETS}who_answers[*] {_SETS}counts"),
    ("ListenerSetHostnameConflict", "HTTPRoute ListenerSet ReferenceGrant",
     f"{_SETS}set[hosts-*] {_SETS}listener[hosts-*] {_SETS}listener[cross-*] "
     f"{_SETS}sets_of_several_namespaces_serve_what_they_won"),
    ("ListenerSetProtocolConflict", "HTTPRoute ListenerSet",
     "listener_sets::TestProtocolConflicts::test_set[*] listener_sets::TestProtocolConflicts::test_entry[*] "
     "listener_sets::TestProtocolConflicts::test_who_answers[*] "
     "listener_sets::TestProtocolConflicts::test_the_gateway_counts_the_sets_with_a_good_listener"),
    ("BackendTLSPolicy", "HTTPRoute BackendTLSPolicy",
     f"{_BTLS}policy[good-*] {_BTLS}policy[mismatch-*] {_BTLS}policy[wrong-ca-*] {_BTLS}policy_of_two_gateways "
     f"{_BTLS}who_answers[/good-*] {_BTLS}who_answers[/mismatch-*] {_BTLS}who_answers[/wrong-ca-*] "
     f"{_BTLS}https_is_encrypted_again"),
    ("BackendTLSPolicyConflictResolution", "HTTPRoute BackendTLSPolicy",
     f"{_BTLS}policy[twice-*] {_BTLS}policy[section-*] {_BTLS}policy[whole-*] {_BTLS}policy[part-*] "
     f"{_BTLS}who_answers[/twice*] {_BTLS}who_answers[/both-ports-*] {_BTLS}who_answers[/second-port-*]"),
    ("BackendTLSPolicyInvalidCACertificateRef", "HTTPRoute BackendTLSPolicy",
     f"{_BTLS}policy[missing-ca-*] {_BTLS}policy[malformed-ca-*] {_BTLS}who_answers[/missing-ca-*] "
     f"{_BTLS}who_answers[/malformed-ca-*]"),
    ("BackendTLSPolicyInvalidKind", "HTTPRoute BackendTLSPolicy",
     f"{_BTLS}policy[kind-ca-*] {_BTLS}who_answers[/kind-ca-*]"),
    ("BackendTLSPolicyObservedGenerationBump", "HTTPRoute BackendTLSPolicy", f"{_BTLS}generation"),
    ("BackendTLSPolicySANValidation", "HTTPRoute BackendTLSPolicy BackendTLSPolicySANValidation",
     f"{_BTLS}policy[san-*] {_BTLS}who_answers[/san-*]"),
    *((f"*HTTPRoute{code}Redirect", f"HTTPRoute HTTPRoute{code}RedirectStatusCode",
       f"{_TO}redirect[/status-{code}-*] {_TO}redirect[/scheme-{code}-*]") for code in (303, 307, 308)),
    ("HTTPRouteBackendProtocolH2C", "HTTPRoute HTTPRouteBackendProtocolH2C",
     "http2::TestBackends::test_what_the_backend_is_asked_in[/h2c-*]"),
    ("HTTPRouteBackendProtocolWebSocket", "HTTPRoute HTTPRouteBackendProtocolWebSocket",
     "http2::TestWebSockets::test_messages_come_back[*]"),
    ("HTTPRouteBackendRequestHeaderModifier", "HTTPRoute HTTPRouteBackendRequestHeaderModification",
     "filters::TestHeaderModifiers::test_request[*backend.example*]"),
    ("HTTPRouteRequestHeaderModifierBackendWeights", "HTTPRoute HTTPRouteBackendRequestHeaderModification",
     "filters::TestHeaderModifiers::test_each_backend_of_a_rule_gets_its_own"),
    ("HTTPRouteCORS", "HTTPRoute HTTPRouteCORS",
     "filters::TestCors::test_preflight[*] filters::TestCors::test_plain_request[*] "
     "filters::TestCors::test_preflight_says_just_the_method_where_a_list_has_it"),
    ("HTTPRouteInvalidParentRefNotMatchingListenerPort", "HTTPRoute HTTPRouteDestinationPortMatching",
     f"{_AT}what_status_says[no-port-*]"),
    ("HTTPRouteInvalidParentRefSectionNameNotMatchingPort", "HTTPRoute HTTPRouteParentRefPort",
     f"{_AT}what_status_says[not-both-*]"),
    ("HTTPRouteListenerPortMatching", "HTTPRoute HTTPRouteParentRefPort", "routing::TestHostnames::test_ports"),
    ("HTTPRouteMethodMatching", "HTTPRoute HTTPRouteMethodMatching",
     f"{_MATCH}methods {_MATCH}who_answers[method.com-*]"),
    ("*HTTPRouteNamedRule", "HTTPRoute HTTPRouteNamedRouteRule", f"{_MATCH}who_answers[named.com-*]"),
    ("HTTPRouteQueryParamMatching", "HTTPRoute HTTPRouteQueryParamMatching", f"{_MATCH}who_answers[query.com-*]"),
    ("HTTPRouteRedirectPath", "HTTPRoute HTTPRoutePathRedirect",
     f"{_TO}redirect[/original-prefix*] {_TO}redirect[/full*] {_TO}redirect[/path-and-*] {_TO}redirect[/to-root*]"),
    ("HTTPRouteRedirectPort", "HTTPRoute HTTPRoutePortRedirect", f"{_TO}scheme_and_port_of_a_redirect[80]"),
    ("HTTPRouteRedirectScheme", "HTTPRoute HTTPRouteSchemeRedirect", f"{_TO}scheme_and_port_of_a_redirect[80]"),
    ("HTTPRouteRedirectPortAndScheme", "HTTPRoute HTTPRoutePortRedirect HTTPRouteSchemeRedirect GatewayPort8080",
     f"{_TO}scheme_and_port_of_a_redirect[*]"),
    ("HTTPRouteRequestMirror", "HTTPRoute HTTPRouteRequestMirror",
     "filters::TestMirrors::test_mirrors_see_the_request[/mirror*]"),
    ("HTTPRouteRequestMultipleMirrors", "HTTPRoute HTTPRouteRequestMirror HTTPRouteRequestMultipleMirrors",
     "filters::TestMirrors::test_mirrors_see_the_request[/two-mirrors-*]"),
    ("*HTTPRouteRequestPercentageMirror", "HTTPRoute HTTPRouteRequestMirror HTTPRouteRequestPercentageMirror",
     "filters::TestMirrors::test_a_share_is_mirrored[*]"),
    ("HTTPRouteResponseHeaderModifier", "HTTPRoute HTTPRouteResponseHeaderModification",
     "filters::TestHeaderModifiers::test_response[*answer.example*]"),
    ("HTTPRouteRetry", "HTTPRoute HTTPRouteRetry", f"{_ASK}retries[*]"),
    ("HTTPRouteRetryConnectionError", "HTTPRoute HTTPRouteRetry HTTPRouteRetryConnectionError",
     f"{_ASK}retries_of_connections*"),
    ("HTTPRouteRetryWithTimeouts", "HTTPRoute HTTPRouteRetry HTTPRouteRetryBackendTimeout",
     f"{_ASK}retries_within_timeouts"),
    ("HTTPRouteRewriteHost", "HTTPRoute HTTPRouteHostRewrite", f"{_TO}rewrite[/one-*] {_TO}rewrite[/-*]"),
    ("HTTPRouteRewritePath", "HTTPRoute HTTPRoutePathRewrite",
     f"{_TO}rewrite[/prefix*] {_TO}rewrite[/full*] {_TO}rewrite[/strip-*]"),
    ("HTTPRouteTimeoutBackendRequest", "HTTPRoute HTTPRouteBackendTimeout", f"{_ASK}timeouts[/backend*]"),
    ("HTTPRouteTimeoutRequest", "HTTPRoute HTTPRouteRequestTimeout", f"{_ASK}timeouts[/request*]"),
    # --- GRPC --------------------------------------------------------------------------------------------------------
    ("GRPCExactMethodMatching", "GRPCRoute", f"{_CALLS}who_answers[methods.com-*]"),
    ("GRPCRouteHeaderMatching", "GRPCRoute", f"{_CALLS}who_answers[headers.com-*]"),
    ("GRPCRouteListenerHostnameMatching", "GRPCRoute", f"{_CALLS}hostnames[names-*]"),
    ("GRPCRouteWeight", "GRPCRoute", "grpc::TestCalls::test_weights"),
    ("*GRPCRouteNamedRule", "GRPCRoute GRPCRouteNamedRouteRule", f"{_CALLS}who_answers[named.com-*]"),
    # --- TLS ---------------------------------------------------------------------------------------------------------
    ("TLSRouteHostnameIntersection", "TLSRoute",
     f"{_STREAMS}tls_route[443-*] {_STREAMS}tls_route[445-*] {_STREAMS}the_most_specific_name_wins_over_the_oldest[*] "
     "traffic::TestNamesOfStreams::test_who_answers[*] traffic::TestNamesOfStreams::test_status[*]"),
    ("TLSRouteInvalidBackendRefNonexistent", "TLSRoute", f"{_STREAMS}status[missing-*] {_STREAMS}listeners"),
    ("TLSRouteInvalidBackendRefUnknownKind", "TLSRoute", f"{_STREAMS}status[odd-*]"),
    ("TLSRouteInvalidNoMatchingListener", "TLSRoute",
     f"{_STREAMS}status[at-http*] {_STREAMS}status[no-section-*] {_STREAMS}listeners"),
    ("TLSRouteInvalidNoMatchingListenerHostname", "TLSRoute", f"{_STREAMS}status[miss-*] {_STREAMS}listeners"),
    ("TLSRouteInvalidReferenceGrant", "TLSRoute ReferenceGrant", f"{_STREAMS}status[far-TLSRoute-*]"),
    ("TLSRouteListenerPassthroughSupportedKinds", "TLSRoute", f"{_STREAMS}listeners"),
    ("TLSRouteListenerTerminateNotSupported", "TLSRoute", "it is for gateways without the mode Terminate"),
    ("TLSRouteSimpleSameNamespace", "TLSRoute", f"{_STREAMS}tls_route[443-abc*] {_STREAMS}status[simple-*]"),
    ("TLSRouteListenerMixedTerminationNotSupported", "TLSRoute TLSRouteModeTerminate",
     "it is for gateways without both modes on one port"),
    ("TLSRouteListenerTerminateSupportedKinds", "TLSRoute TLSRouteModeTerminate", f"{_STREAMS}listeners"),
    ("*TLSRouteMixedTerminationSameNamespace", "TLSRoute TLSRouteModeTerminate TLSRouteModeMixed",
     f"{_STREAMS}tls_route[446-*] {_STREAMS}listeners"),
    ("*TLSRouteTerminateSimpleSameNamespace", "TLSRoute TLSRouteModeTerminate", f"{_STREAMS}tls_route[446-abc*]"),
    # --- TCP ---------------------------------------------------------------------------------------------------------
    ("TCPRouteMultipleRoutesAttachment", "TCPRoute",
     "routing::test_of_two_tcp_routes_at_one_listener_the_older_has_the_connections"),
    ("*TCPRouteInvalidBackendRefNonexistent", "TCPRoute", f"{_STREAMS}status[no-service-*]"),
    ("*TCPRouteInvalidCrossNamespaceBackendRef", "TCPRoute", f"{_STREAMS}status[far-tcp-*]"),
    ("*TCPRouteInvalidNonTCPListener", "TCPRoute", f"{_STREAMS}status[at-web-*] {_STREAMS}listeners"),
    ("*TCPRouteParentRefAttachAll", "TCPRoute", f"{_STREAMS}tcp_route"),
    ("*TCPRouteParentRefPortAndSectionName", "TCPRoute", f"{_STREAMS}tcp_route {_STREAMS}listeners"),
    ("*TCPRouteReferenceGrant", "TCPRoute ReferenceGrant", f"{_STREAMS}status[granted-*] {_STREAMS}tcp_route"),
    ("*TCPRouteWeightedRouting", "TCPRoute", f"{_STREAMS}tcp_route"),
)  # fmt: skip
