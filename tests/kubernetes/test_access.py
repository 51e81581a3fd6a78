"""What a gateway may do in a cluster: by configuration, and what it says that lacks a right."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from egressproxy.cli.main import main
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes.access import READ, Needs, Rule, missing_right, needed, permitting, roles
from egressproxy.model.published_object import Key

SECRET: Key = ("", "Secret", "team", "key")
ROOTS: Key = ("", "ConfigMap", "team", "roots")
PODS: Key = ("", "Pod", "", "")


WEB: Key = ("", "Pod", "team", "app=web")


def test_pods_are_read_in_the_namespaces_of_their_selectors_or_everywhere():
    assert set(needed(Needs(referenced={WEB}))) >= {"", "team"}
    for referenced, everywhere in (({WEB}, False), ({WEB, PODS}, True)):
        rules = needed(Needs(referenced=referenced))
        assert permits(rules, "watch", "pods", "team")
        assert permits(rules, "watch", "pods", "other") is everywhere
    assert not permits(needed(Needs(referenced=set())), "watch", "pods", "team")
    assert not permits(needed(Needs(namespaces=("other",), referenced={WEB})), "watch", "pods", "team")


def permits(rules: dict[str, tuple[Rule, ...]], verb: str, resource: str, namespace: str = "", name: str = "") -> bool:
    """Whether these rules permit this, by the rules of RBAC. `resource` as in `gateways.gateway.networking.k8s.io`."""
    plural, _, group = resource.partition(".")
    return any(
        rule.group == group
        and plural in rule.resources
        and verb in rule.verbs
        and (not rule.names or name in rule.names)
        for rule in (*rules.get("", ()), *(rules.get(namespace, ()) if namespace else ()))
    )


@pytest.mark.parametrize("kind", CONFIGURED, ids=lambda kind: kind.resource)
def test_every_kind_is_read_but_what_is_read_by_name(kind):
    rules = needed(Needs())
    is_by_name = kind.kind in ("Secret", "ConfigMap", "ServiceAccount")  # of the last none is read
    assert [permits(rules, verb, kind.resource, "any") for verb in READ] == [not is_by_name] * 3
    assert not any(permits(rules, verb, kind.resource, "any") for verb in ("create", "update", "patch", "delete", "*"))


def test_status_is_written_of_what_has_one():
    rules = needed(Needs())
    for resource in (
        "gatewayclasses/status.gateway.networking.k8s.io", "httproutes/status.gateway.networking.k8s.io",
        "backendtlspolicies/status.gateway.networking.k8s.io", "xbackends/status.gateway.networking.x-k8s.io",
        "backends/status.gateway.networking.k8s.io", "egresspolicies/status.egressproxy.io",
        "filtertypes/status.egressproxy.io",
    ):  # fmt: skip
        assert permits(rules, "patch", resource, "any"), resource
    for resource in ("services/status", "pods/status", "referencegrants/status.gateway.networking.k8s.io"):
        assert not permits(rules, "patch", resource, "any"), resource


def test_nothing_else_is_asked_for():
    resources = {
        (rule.group, each)
        for rules in needed(Needs(referenced={SECRET, PODS})).values()
        for rule in rules
        for each in rule.resources
    }
    for absent in ("customresourcedefinitions", "tokenreviews", "nodes", "*"):
        assert absent not in {resource for _, resource in resources}


def test_secrets_and_config_maps_are_read_by_name_in_their_namespace():
    rules = needed(Needs(referenced={SECRET, ROOTS}))
    assert permits(rules, "get", "secrets", "team", "key")
    assert permits(rules, "watch", "configmaps", "team", "roots")
    for namespace, name in (("team", "other"), ("team", ""), ("other", "key")):
        assert not permits(rules, "list", "secrets", namespace, name)


def test_what_a_configuration_does_not_use_is_not_asked_for():
    rules = needed(Needs(referenced=set()))
    for resource in (
        "pods", "namespaces", "services", "endpointslices.discovery.k8s.io", "clustertrustbundles.certificates.k8s.io",
    ):  # fmt: skip
        assert not permits(rules, "list", resource, "any", "x"), resource
    rules = needed(Needs(referenced={("", "Service", "team", "web"), ("", "Namespace", "", "team")}))
    for resource in ("namespaces", "services", "endpointslices.discovery.k8s.io"):
        assert permits(rules, "list", resource, "any"), resource
    bundle: Key = ("certificates.k8s.io", "ClusterTrustBundle", "", "roots")
    rules = needed(Needs(referenced={PODS, bundle}))
    assert permits(rules, "list", "pods", "any")
    assert permits(rules, "get", "clustertrustbundles.certificates.k8s.io", "", "roots")
    assert not permits(rules, "list", "clustertrustbundles.certificates.k8s.io", "", "others")


def test_watched_namespaces_have_roles_of_their_own():
    web: Key = ("", "Service", "a", "web")
    rules = needed(Needs(namespaces=("a", "b", "team"), referenced={SECRET, PODS, web}, published=("edge", "gateway")))
    for namespace, holds in (("a", True), ("b", True), ("c", False)):
        for resource in ("gateways.gateway.networking.k8s.io", "services", "pods", "endpointslices.discovery.k8s.io"):
            assert permits(rules, "watch", resource, namespace) is holds, (resource, namespace)
    assert permits(rules, "list", "gatewayclasses.gateway.networking.k8s.io")
    assert permits(rules, "get", "secrets", "team", "key")
    assert permits(rules, "get", "services", "edge", "gateway")
    assert not permits(rules, "get", "services", "edge", "other")
    # Events about a GatewayClass are in the namespace `default`.
    assert permits(rules, "create", "events.events.k8s.io", "default")
    assert not permits(rules, "list", "services", "default")
    # What is outside is not read, whatever refers to it.
    assert not permits(needed(Needs(namespaces=("a",), referenced={SECRET})), "get", "secrets", "team", "key")


def test_a_selector_reads_all_secrets_where_it_looks():
    everywhere = needed(Needs(referenced={SECRET}, has_selector=True))
    assert permits(everywhere, "list", "secrets", "any", "other")
    rules = needed(Needs(namespaces=("a",), referenced={SECRET}, has_selector=True))
    assert permits(rules, "list", "secrets", "a", "other")
    assert not permits(rules, "list", "secrets", "team", "other")
    assert not permits(rules, "get", "secrets", "team", "key")


def test_leases_are_where_all_installations_meet_and_the_catalogue_has_its_own_name():
    rules = needed(Needs(namespaces=("a",), classes=("one", "two")))
    for namespace in ("default", "a", "edge"):
        for verb in ("get", "create", "update", "patch"):
            assert permits(rules, verb, "leases.coordination.k8s.io", namespace, "egressproxy-two")
            assert not permits(rules, verb, "leases.coordination.k8s.io", namespace, "kube-scheduler")
    assert permits(needed(Needs()), "update", "leases.coordination.k8s.io", "default", "egressproxy-egressproxy")
    for verb in ("get", "create", "patch"):
        assert permits(rules, verb, "configmaps", "egressproxy-system", "egressproxy-filter-catalog")
        assert not permits(rules, verb, "configmaps", "egressproxy-system", "other")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ("list", "", "secrets", "a", ""),
            "cannot list secrets in namespace a: add to a Role of namespace a of the gateway's service account"
            ' (`egressproxy rbac` prints all of it): {"apiGroups": [""], "resources": ["secrets"],'
            ' "verbs": ["get", "list", "watch"]}',
        ),
        (
            ("watch", "", "secrets", "a", "key"),
            "cannot watch secrets key in namespace a: add to a Role of namespace a of the gateway's service account"
            ' (`egressproxy rbac` prints all of it): {"apiGroups": [""], "resources": ["secrets"],'
            ' "resourceNames": ["key"], "verbs": ["get", "list", "watch"]}',
        ),
        (
            ("patch", "gateway.networking.k8s.io", "gateways/status", "", ""),
            "cannot patch gateways.gateway.networking.k8s.io/status: add to the ClusterRole of the gateway's service"
            ' account (`egressproxy rbac` prints all of it): {"apiGroups": ["gateway.networking.k8s.io"],'
            ' "resources": ["gateways/status"], "verbs": ["patch"]}',
        ),
    ],
)
def test_a_right_that_is_missing_is_told_with_its_rule(asked: tuple[str, str, str, str, str], said: str):
    assert missing_right(*asked) == said


def test_what_is_told_is_what_is_printed():
    for rules in needed(Needs(referenced={SECRET, ROOTS, PODS})).values():
        for rule in rules:
            for resource in rule.resources:
                found = permitting(rule.verbs[-1], rule.group, resource, *rule.names[:1])
                assert (found.verbs, found.names) == (rule.verbs, rule.names)
    assert permitting("delete", "", "pods").to_manifest() == {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["delete"],
    }


def test_each_role_is_bound_to_the_service_account():
    made = [head for head, _ in roles(Needs(namespaces=("a",)), "gw", ("edge", "proxy"))]
    places = {(each["kind"], each["metadata"].get("namespace", "")) for each in made}
    assert {
        ("ClusterRole", ""),
        ("ClusterRoleBinding", ""),
        ("Role", "a"),
        ("RoleBinding", "a"),
        ("Role", "egressproxy-system"),
    } <= places
    for each in made:
        if each["kind"].endswith("Binding"):
            assert (each["roleRef"]["kind"] + "Binding", each["roleRef"]["name"]) == (each["kind"], "gw")
            assert each["subjects"] == [{"kind": "ServiceAccount", "namespace": "edge", "name": "proxy"}]


CONFIG = """
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: api, namespace: team}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: a.example}
    ports: [{number: 443, tls: {mode: Simple, caBundleRef: [{kind: ConfigMap, name: roots}]}}]
"""


def test_the_command_prints_what_these_manifests_need(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    done = CliRunner().invoke(main, ["rbac", "--config", str(file), "--name", "gw"])
    assert done.exit_code == 0, done.output
    found = list(yaml.safe_load_all(done.output))
    (team,) = (each for each in found if each["kind"] == "Role" and each["metadata"]["namespace"] == "team")
    assert team["metadata"]["name"] == "gw"
    assert team["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["roots"], "verbs": list(READ)}
    ]
    assert "# ConfigMaps that the configuration refers to." in done.output


def test_the_command_says_what_it_cannot_know_or_limit(tmp_path: Path):
    assert "egressproxy rbac --config PATH" in CliRunner().invoke(main, ["rbac"]).output
    done = CliRunner().invoke(main, ["rbac", "--secret-selector", "a=b", "--watch-namespace", "x"]).output
    assert "RBAC cannot be limited by labels" in done
    assert "every Secret and ConfigMap in namespace x" in done.replace("\n# ", " ")
    (tmp_path / "bad.yaml").write_text(CONFIG.replace("a.example", "10.0.0.1"), encoding="utf-8")
    refused = CliRunner().invoke(main, ["rbac", "--config", str(tmp_path)])
    assert refused.exit_code == 1
    assert "apiVersion" not in refused.stdout
    assert CliRunner().invoke(main, ["rbac", "--service-account", "x"]).exit_code == 2


def test_the_command_names_the_leases_of_the_classes_that_are_given():
    printed = CliRunner().invoke(main, ["rbac", "--gateway-class", "internal"]).output
    assert "egressproxy-internal-namespaces" in printed
    assert "egressproxy-egressproxy" not in printed
