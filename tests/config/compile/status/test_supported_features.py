"""Supported features: what is not served is told in status where it is written, and what is claimed is served."""

from __future__ import annotations

import pytest

from egressproxy.config.compile.status.status_warnings import status_warnings
from egressproxy.config.compile.status.supported_features import ROUTE_FEATURES, UNSERVED
from egressproxy.config.reading.load import load_text
from egressproxy.config.schema import models_by_name
from tests.config.compile.kit import FORWARD, PLAIN, compiled, listener, of_route
from tests.support.pki import Pki, chain

WRITTEN = {
    "BackendDestination.endpointSelector": """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: other}
spec: {destination: {type: EndpointSelector, endpointSelector: {selectorRef: {name: s}}}}
""",
}


def test_every_unserved_field_is_one_and_is_written_here():
    models = models_by_name()
    for place in UNSERVED:
        name, _, field = place.partition(".")
        assert field in {info.alias or attribute for attribute, info in models[name].model_fields.items()}, place
    assert WRITTEN.keys() == UNSERVED.keys()


@pytest.mark.parametrize("place", sorted(UNSERVED))
def test_a_field_that_is_not_served_is_told_where_it_is_written(place: str):
    text = WRITTEN[place]
    made = compiled(FORWARD, PLAIN, text)
    resources = load_text("\n---\n".join((FORWARD, PLAIN, text)), "config.yaml")
    told = [str(each) for each in status_warnings(resources, made) if "policy" in each.object or "other" in each.object]
    assert any("not supported" in each or " yet" in each for each in told), told


def test_a_class_has_room_for_the_features():
    assert len(set(ROUTE_FEATURES)) == len(ROUTE_FEATURES) <= 64


def test_trust_bundles_say_which_backends_and_which_clients_are_trusted():
    """BackendTLSPolicyClusterTrustBundle and GatewayFrontendClusterTrustBundle."""
    pki = Pki()
    leaf = pki.issue("front.example")
    indented = {"ca": pki.ca_pem, "crt": chain(leaf), "key": leaf.private_key_pem.bytes().decode()}
    ca, crt, key = (text.replace("\n", "\n    ") for text in indented.values())
    ref = "{group: certificates.k8s.io, kind: ClusterTrustBundle, name: corp}"
    made = compiled(f"""
apiVersion: certificates.k8s.io/v1beta1
kind: ClusterTrustBundle
metadata: {{name: corp}}
spec:
  trustBundle: |
    {ca}
---
apiVersion: v1
kind: Secret
metadata: {{name: site}}
type: kubernetes.io/tls
stringData:
  tls.crt: |
    {crt}
  tls.key: |
    {key}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: gw}}
spec:
  gatewayClassName: egressproxy
  listeners:
  - {{name: web, port: 8443, protocol: HTTPS, tls: {{certificateRefs: [{{name: site}}]}}}}
  tls: {{frontend: {{default: {{validation: {{caCertificateRefs: [{ref}]}}}}}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: back}}
spec: {{ports: [{{port: 443}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: p}}
spec:
  targetRefs: [{{group: "", kind: Service, name: back}}]
  validation: {{hostname: back.example, caCertificateRefs: [{ref}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route}}
spec: {{parentRefs: [{{name: gw}}], rules: [{{backendRefs: [{{name: back, port: 443}}]}}]}}
""")
    found = listener(made)
    assert found.tls is not None
    assert found.tls.clients is not None
    assert found.tls.clients.ca_pem.strip() == pki.ca_pem.strip()
    (backend,) = found.http_routes[0].rules[0].backends
    assert backend.backend is not None
    assert backend.backend.tls is not None
    assert backend.backend.tls.ca_pem.strip() == pki.ca_pem.strip()
    assert of_route(made, "ResolvedRefs")[0] == "True"
