from __future__ import annotations

import pytest

from egressproxy.config.reading.load import load_text
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.config.resources.kinds import BY_API_VERSION
from egressproxy.config.resources.others import why_left_out

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("apps/v1", "Deployment"),
        ("v1", "Endpoints"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("gateway.networking.k8s.io/v1alpha2", "UDPRoute"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet"),
    ],
)
def test_a_kind_of_kubernetes_that_says_nothing_to_us_is_left_out_and_told(api_version: str, kind: str):
    text = f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{anything: [1, null]}}\n"
    loaded = load_text(f"{SERVICE}---\n{text}", "a.yaml")
    assert len(loaded) == 1
    (warning,) = loaded.warnings
    assert (warning.file, warning.line, warning.column) == ("a.yaml", 6, 7)
    assert (warning.object, warning.message) == (f"{kind} default/x", "it is left out")
    assert warning.remedy
    is_ours_to_serve = "gateway" in api_version
    assert warning.severity is (Severity.UNSERVED if is_ours_to_serve else Severity.NOTE)


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("apps/v1", "Deploymint"), ("egressproxy.io/v1alpha1", "EgresPolicy"), ("example.com/v1", "Deployment")],
)
def test_any_other_unknown_kind_stays_an_error(api_version: str, kind: str):
    with pytest.raises(ConfigError, match=f"unknown kind {kind}"):
        load_text(f"{SERVICE}---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n")


def test_files_without_anything_of_ours_are_refused_as_empty_ones_are():
    with pytest.raises(ConfigError, match="no objects found"):
        load_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n")


def test_what_would_have_had_a_say_is_told_with_what_to_use_instead():
    assert "EgressPolicy" in why_left_out("networking.k8s.io/v1", "NetworkPolicy")
    assert "ListenerSet" in why_left_out("gateway.networking.x-k8s.io/v1alpha1", "XListenerSet")


def test_no_kind_of_ours_is_left_out():
    assert not [each for each in BY_API_VERSION if why_left_out(*each)]
