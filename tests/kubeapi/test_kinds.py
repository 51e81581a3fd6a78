from __future__ import annotations

import pytest

from egressproxy.config.resources.kinds import KINDS as UNDERSTOOD
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubeapi.kinds import group_versions, served


def test_every_kind_that_is_understood_is_served():
    assert [(kind.group, kind.kind, kind.versions, kind.is_namespaced) for kind in CONFIGURED] == [
        (kind.GROUP, kind.KIND, kind.VERSIONS, kind.NAMESPACED) for kind in UNDERSTOOD
    ]


@pytest.mark.parametrize(
    ("group", "version", "plural", "kind"),
    [
        ("gateway.networking.k8s.io", "v1", "gateways", "Gateway"),
        ("gateway.networking.k8s.io", "v1", "gatewayclasses", "GatewayClass"),
        ("gateway.networking.k8s.io", "v1beta1", "httproutes", "HTTPRoute"),
        ("gateway.networking.k8s.io", "v1", "backendtlspolicies", "BackendTLSPolicy"),
        ("egressproxy.io", "v1alpha1", "egresspolicies", "EgressPolicy"),
        ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
        ("", "v1", "secrets", "Secret"),
    ],
)
def test_a_kind_is_found_by_its_plural(group: str, version: str, plural: str, kind: str):
    found = served(group, version, plural)
    assert found is not None
    assert found.kind == kind


def test_a_version_that_is_not_served_is_not_found():
    assert served("egressproxy.io", "v1", "backends") is None


def test_versions_stand_in_kubernetes_order_of_priority():
    assert group_versions()["gateway.networking.k8s.io"] == ["v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"]
    assert "" not in group_versions()
