"""Listener.httpFilters (GEP-5224): what becomes of them, and what closes the listener."""

from __future__ import annotations

import pytest

from egressproxy.config.reading.problems import ConfigError
from tests.config.compile.kit import PLAIN, REVERSE, ROUTE, compiled, listener, of_listener, of_object

AUTH = (
    "{name: who, type: ExternalAuth, externalAuth: {protocol: HTTP, http: {}, backendRef: {group: egressproxy.io,"
    " kind: Backend, name: plain}}}"
)
REF = (
    "{name: team, type: ExtensionRef, extensionRef: {group: egressproxy.io, kind: PayloadProcessingPipeline, name: p}}"
)
PIPELINE = """
apiVersion: egressproxy.io/v1alpha1
kind: PayloadProcessingPipeline
metadata: {name: p}
spec:
  processors:
  - {name: one, type: CanaryKeys, phase: request-headers, config: {secretRefs: [{name: s}]}}
"""
HEADERS = PIPELINE.replace("CanaryKeys", "HeaderPolicy").replace(
    "{secretRefs: [{name: s}]}", "{request: {remove: [X-A]}}"
)


def filtered(*filters: str, protocol: str = "HTTP") -> str:
    """The Gateway with these filters of its listener."""
    return REVERSE.replace("protocol: HTTP}", f"protocol: {protocol}, httpFilters: [{', '.join(filters)}]}}")


def test_filters_keep_their_order_before_everything_else():
    made = compiled(filtered(REF, AUTH), PLAIN, ROUTE, HEADERS)
    found = listener(made).pre_routing
    assert found is not None
    (own,), (auth,) = found.extensions, found.auths
    assert own.priority < auth.place.priority < 0
    assert (own.name, own.source) == ("one", "PayloadProcessingPipeline default/p")
    assert (auth.place.source, auth.backend.backend is not None) == ("Gateway default/gw", True)
    assert of_listener(made, "Accepted")[:2] == ("True", "Accepted")
    assert of_listener(made, "ResolvedRefs")[:2] == ("True", "ResolvedRefs")


def test_a_listener_without_filters_has_nothing_of_them():
    assert listener(compiled(REVERSE, PLAIN, ROUTE)).pre_routing is None


@pytest.mark.parametrize(
    ("gateway", "more", "condition", "reason", "message"),
    [
        (filtered(REF), "", "ResolvedRefs", "InvalidHTTPListenerFilterRef", "httpFilters[team]: "),
        (
            filtered(REF.replace("PayloadProcessingPipeline", "EgressPolicy")), "",
            "ResolvedRefs", "InvalidHTTPListenerFilterRef", "EgressPolicy p is not a PayloadProcessingPipeline",
        ),
        (
            filtered(AUTH.replace("name: plain", "name: gone")), "",
            "ResolvedRefs", "InvalidHTTPListenerFilterRef", "httpFilters[who]: externalAuth.backendRef: ",
        ),
        (
            filtered(AUTH.replace("name: plain", "name: plain, namespace: other")), "",
            "ResolvedRefs", "RefNotPermitted", "httpFilters[who]: ",
        ),
        (
            filtered(REF), PIPELINE.replace("CanaryKeys", "acme.example/Nobody:v1"),
            "Accepted", "UnsupportedValue", "httpFilters[team]: ",
        ),
        (
            filtered(AUTH, protocol="egressproxy.io/forward-proxy"), "",
            "Accepted", "InvalidHTTPListenerFilter", "need protocol HTTP or HTTPS",
        ),
        (filtered(AUTH, protocol="TCP"), "", "Accepted", "InvalidHTTPListenerFilter", "this listener has TCP"),
    ],
)  # fmt: skip
def test_a_filter_that_cannot_run_closes_the_listener(
    gateway: str, more: str, condition: str, reason: str, message: str
):
    made = compiled(gateway, PLAIN, ROUTE, *filter(None, (more,)))
    assert made.spec.listeners == ()
    status, found, said = of_listener(made, condition)
    assert (status, found) == ("False", reason)
    assert message in said
    assert of_listener(made, "Programmed")[0] == "False"
    assert of_object(made, "Gateway", "default/gw", "Accepted")[0] == "False"


@pytest.mark.parametrize(
    "filters",
    [
        (AUTH, AUTH),
        ("{type: RequestRedirect, requestRedirect: {port: 1}}",),
        ("{type: ExternalAuth}",),
        (AUTH.replace("type: ExternalAuth", "type: ExtensionRef"),),
        tuple(AUTH.replace("who", f"f{number}") for number in range(17)),
    ],
)
def test_what_the_schema_refuses_is_a_load_error(filters: tuple[str, ...]):
    with pytest.raises(ConfigError):
        compiled(filtered(*filters), PLAIN, ROUTE)
