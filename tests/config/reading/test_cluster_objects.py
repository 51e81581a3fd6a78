"""Objects of a cluster: one that cannot be read takes no other with it, and opens nothing."""

from __future__ import annotations

import json
import zlib
from copy import deepcopy
from typing import Any

import pytest

from egressproxy.config.compile.status.status_warnings import all_warnings
from egressproxy.config.reading.load import ResourceSet, read_all
from egressproxy.config.reading.problems import Severity
from egressproxy.processes.loader.answer import handed_over
from egressproxy.processes.loader.compilation import compiled

GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "gw", "namespace": "default"},
    "spec": {
        "gatewayClassName": "egressproxy",
        "listeners": [{"name": "forward", "port": 3128, "protocol": "egressproxy.io/forward-proxy"}],
    },
}


def policy(name: str, **spec: Any) -> dict[str, Any]:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    return {
        "apiVersion": "egressproxy.io/v1alpha1",
        "kind": "EgressPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"targetRefs": [target], **spec},
    }


ALLOW = policy("allow", destinations={"allow": [{"hostnames": ["a.example"]}]})


def read(*objects: dict[str, Any], paths: tuple[Any, ...] = ()) -> ResourceSet:
    return read_all(paths, None, zlib.compress(b"\n".join(json.dumps(each).encode() for each in objects)))


def told(resources: ResourceSet) -> list[str]:
    return [f"{each.severity}: {each}" for each in (*resources.problems, *resources.warnings)]


def test_an_object_that_cannot_be_read_takes_no_other_with_it():
    backend = {"apiVersion": "egressproxy.io/v1alpha1", "kind": "Backend", "metadata": {"name": "b"}, "spec": {"x": 1}}
    backend["metadata"] = {"name": "b", "namespace": "default"}
    resources = read(GATEWAY, backend, ALLOW)
    assert [str(each) for each in resources.objects] == ["Gateway default/gw", "EgressPolicy default/allow"]
    assert not resources.problems
    assert all(each.severity is Severity.UNSERVED for each in resources.warnings)
    assert any("Backend default/b: spec.x" in each for each in told(resources))


def test_a_policy_that_cannot_be_read_denies_everything_at_its_targets():
    wrong = policy("wrong", destinations={"deny": [{"hostnames": ["b.example"], "colour": "red"}]})
    wrong["more"] = "of a later version"
    resources = read(GATEWAY, ALLOW, wrong)
    assert not resources.problems
    made = compiled(resources, ("127.0.0.1",))
    (listener,) = made.spec.listeners
    assert listener.default_backend is not None
    assert listener.default_backend.backend is None
    assert "cannot-be-read" in listener.default_backend.error
    assert any(
        "EgressPolicy default/wrong: its targets are closed until it can be read" in each for each in told(resources)
    )


def test_a_policy_of_a_kind_that_is_not_read_closes_its_targets():
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": GATEWAY["metadata"]["name"]}
    limit = {
        "apiVersion": "agentic.networking.x-k8s.io/v1alpha1", "kind": "XLimitPolicy",
        "metadata": {"name": "limit", "namespace": "default"}, "spec": {"targetRefs": [target]},
    }  # fmt: skip
    resources = read(GATEWAY, ALLOW, limit)
    assert not resources.problems
    (listener,) = compiled(resources, ("127.0.0.1",)).spec.listeners
    assert listener.default_backend is not None
    assert listener.default_backend.backend is None
    assert "XLimitPolicy default/limit" in listener.default_backend.error
    assert any(
        "XLimitPolicy default/limit: it is left out, and its targets are closed" in each for each in told(resources)
    )


@pytest.mark.parametrize("is_foreign", [False, True])
def test_the_status_of_a_policy_that_cannot_be_read_says_what_is_wrong_with_it(is_foreign):
    wrong = policy("wrong", addresses={"allow": [{"cidrs": ["10.0.0.0/33"]}]})
    objects = [GATEWAY, ALLOW, wrong]
    if is_foreign:
        wrong["metadata"]["namespace"] = "team"
        wrong["spec"]["targetRefs"][0]["namespace"] = "default"
        objects.append({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
            "metadata": {"name": "teams", "namespace": "default"},
            "spec": {
                "from": [{"group": "egressproxy.io", "kind": "EgressPolicy", "namespace": "team"}],
                "to": [{"group": "gateway.networking.k8s.io", "kind": "Gateway"}],
            },
        })  # fmt: skip
    resources = read(*objects)
    made = compiled(resources, ("127.0.0.1",))
    (status,) = [value for key, value in made.statuses.items() if key[3] == "wrong"]
    (condition,) = status["ancestors"][0]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Accepted", "False", "Invalid")
    fault = "spec.addresses.allow[0].cidrs[0]: 10.0.0.0/33: the prefix is longer than the 32 bits (write /32 or less)"
    assert condition["message"].startswith(f"it cannot be read: {fault}")
    assert condition["message"].endswith("; its targets are closed until it can be read")
    found = [str(each) for each in all_warnings(resources, made) if each.object.startswith("EgressPolicy")]
    assert len(found) == len(set(found)) == 2
    assert not any("extension" in each for each in found)


def test_the_status_of_a_route_that_cannot_be_read_says_what_is_wrong_with_it():
    resources = read(GATEWAY, ALLOW, route("HTTPRoute", "wrong", {"matches": ADMIN, "filters": [LATER]}))
    made = compiled(resources, ("127.0.0.1",))
    (status,) = [value for key, value in made.statuses.items() if key[3] == "wrong"]
    (condition,) = status["parents"][0]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Accepted", "False", "Invalid")
    assert "it cannot be read: spec.rules[0].filters[0]" in condition["message"]


def test_the_remedy_for_a_secret_that_is_not_read_is_one_for_a_cluster():
    key = {"name": "key", "type": "egressproxy.io/CredentialInjector:v1", "config": {"secretRef": {"name": "s"}}}
    made = compiled(read(GATEWAY, policy("keys", extensions=[key])), ("127.0.0.1",))
    (status,) = [value for name, value in made.statuses.items() if name[3] == "keys"]
    assert "create it, or, if it is there, let the gateway's service account read it" in json.dumps(status)


def test_a_policy_whose_targets_cannot_be_read_closes_what_it_may_target():
    wrong = policy("wrong", destinations={"deny": [{"hostnames": ["b.example"]}]})
    wrong["spec"]["targetRefs"] = [{"kind": 7}]
    far = deepcopy(GATEWAY)
    far["metadata"] = {"name": "far", "namespace": "far"}
    far["spec"]["listeners"][0]["port"] = 3129
    resources = read(GATEWAY, far, wrong, ALLOW)
    assert any("the targets cannot be read" in each for each in told(resources))
    assert not resources.problems
    made = compiled(resources, ("127.0.0.1",))
    closed = {each.gateway: each.default_backend for each in made.spec.listeners}
    assert "cannot-be-read" in closed["default/gw"].error
    assert closed["far/far"] is None or "cannot-be-read" not in closed["far/far"].error


def test_targets_that_can_be_read_stay_closed_beside_one_that_cannot():
    wrong = policy("wrong", destinations={"deny": [{"hostnames": ["b.example"], "colour": "red"}]})
    wrong["spec"]["targetRefs"].append({"kind": 7})
    wrong["metadata"]["namespace"] = "team"
    wrong["spec"]["targetRefs"][0]["namespace"] = "default"
    resources = read(GATEWAY, wrong)
    assert not resources.problems
    (found,) = [each for each in resources.objects if each.KIND == "EgressPolicy"]
    assert [(each.kind, each.name) for each in found.spec.target_refs] == [("Gateway", "gw")]


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "egressproxy.io/BodyLimit:v1", "config": {"colour": "red"}},
        {"type": "egressproxy.io/BodyLimit:v1", "config": {"colour": "red"}, "failOpen": True},
        {"type": "BodyLimit", "phase": "connect", "config": {"maxBytes": 1}},
        {"type": "egressproxy.io/Audit:v1", "config": {"folder": "/tmp/audit"}},
    ],
)
def test_an_extension_that_cannot_be_configured_closes_its_place_and_refuses_nothing(entry):
    wrong = policy("wrong", extensions=[{"name": "x", "phase": "request-headers", **entry}])
    made = compiled(read(GATEWAY, ALLOW, wrong), ("127.0.0.1",))
    (listener,) = made.spec.listeners
    assert listener.default_backend.backend is None
    assert "extension x" in listener.default_backend.unknown_extension
    (status,) = [value for key, value in made.statuses.items() if key[3] == "wrong"]
    assert "UnsupportedExtensionType" in json.dumps(status)


def test_the_catalogue_that_the_gateway_writes_is_no_error():
    name, namespace = "egressproxy-filter-catalog", "egressproxy-system"
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}
    assert not compiled(read(GATEWAY, {**ours, "data": {"x": "y"}}), ("127.0.0.1",)).problems


def test_a_policy_of_trust_that_cannot_be_read_trusts_nobody():
    wrong = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "BackendTLSPolicy",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "web"}], "validation": {"hostnames": "x"}},
    }
    (made,) = [each for each in read(GATEWAY, wrong).objects if each.KIND == "BackendTLSPolicy"]
    assert made.spec.validation.hostname == "policy-cannot-be-read.invalid"


def test_an_object_of_a_file_stands_in_place_of_one_of_the_cluster(tmp_path):
    file = tmp_path / "own.json"
    file.write_text(json.dumps(policy("allow", destinations={"allow": []})))
    resources = read(GATEWAY, ALLOW, paths=(file,))
    (found,) = [each for each in resources.objects if each.KIND == "EgressPolicy"]
    assert found.origin.file == str(file)
    assert any("stands in its place" in each for each in told(resources))


def test_nothing_in_the_cluster_is_no_error():
    assert not read().problems


@pytest.mark.parametrize("levels", [150, 900, 9000])
def test_an_object_that_is_nested_too_deeply_takes_no_other_with_it(levels):
    wrong = policy("wrong", extensions=[{"name": "x", "type": "vendor.example/X:v1", "config": "CONFIG"}])
    deep = '{"a":' * levels + "1" + "}" * levels
    line = json.dumps(wrong).replace('"CONFIG"', deep).encode()
    others = [json.dumps(each).encode() for each in (GATEWAY, ALLOW)]
    resources = read_all((), None, zlib.compress(b"\n".join([*others, line])))
    assert any("EgressPolicy default/wrong: it has more than 100 levels" in each for each in told(resources))
    made = compiled(resources, ("127.0.0.1",))
    assert handed_over(resources, made, None).shown
    assert made.spec.listeners[0].default_backend.backend is None


def route(kind: str, name: str, *rules: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"parentRefs": [{"name": "gw"}], "hostnames": ["a.example"], "rules": list(rules), **spec},
    }


ADMIN = [{"path": {"type": "PathPrefix", "value": "/admin"}}]
LATER = {"type": "OfALaterVersion"}


@pytest.mark.parametrize("matches", [ADMIN, [*ADMIN, LATER]])
def test_a_route_that_cannot_be_read_answers_for_its_hosts_and_no_other_does(matches):
    wrong = route("HTTPRoute", "wrong", {"matches": matches, "filters": [LATER]})
    resources = read(GATEWAY, ALLOW, wrong)
    assert not resources.problems
    (listener,) = compiled(resources, ("127.0.0.1",)).spec.listeners
    (served,) = listener.http_routes
    assert served.hostnames == ("a.example",)
    (rule,) = served.rules
    assert not [each for each in rule.backends if each.backend is not None]
    assert any("HTTPRoute default/wrong: it answers with errors" in each for each in told(resources))


def test_a_stream_that_cannot_be_read_is_closed():
    resources = read(GATEWAY, ALLOW, route("TLSRoute", "wrong", {"backendRefs": [LATER]}))
    (listener,) = compiled(resources, ("127.0.0.1",)).spec.listeners
    (served,) = listener.tls_routes
    assert [each.backend for each in served.backends] == [None]


def test_a_route_whose_hosts_cannot_be_read_is_left_out():
    resources = read(GATEWAY, ALLOW, route("HTTPRoute", "wrong", hostnames=[7]), route("TCPRoute", "wrong", more=1))
    assert [each.KIND for each in resources.objects] == ["Gateway", "EgressPolicy"]
    assert not resources.problems


@pytest.mark.parametrize("metadata", [{}, {"creationTimestamp": "2020-01-01T00:00:00Z"}])
def test_no_object_of_a_cluster_takes_what_one_of_a_file_has(tmp_path, metadata):
    file = tmp_path / "own.json"
    file.write_text(json.dumps(GATEWAY))
    other = {**GATEWAY, "metadata": {"name": "a", "namespace": "a", **metadata}}
    made = compiled(read(other, paths=(file,)), ("127.0.0.1",))
    assert [each.gateway for each in made.spec.listeners] == ["default/gw"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rules": [{"name": "r", "colour": "red"}]},
        {"rules": [{"name": "r", "authorization": None}]},
        {"action": "Deny"},
        {"targetRefs": "gw"},
    ],
)
def test_an_access_policy_that_cannot_be_read_allows_nothing_at_its_targets(wrong: dict[str, Any]):
    made = policy("wrong", **{"action": "Allow", "rules": [], **wrong})
    made |= {"apiVersion": "agentic.networking.x-k8s.io/v1alpha1", "kind": "XAccessPolicy"}
    resources = read(GATEWAY, ALLOW, made)
    assert not resources.problems
    (found,) = [each for each in resources.objects if each.KIND == "XAccessPolicy"]
    assert found.spec.rules == ()
    assert ("Gateway", "gw") in [(each.kind, each.name) for each in found.spec.target_refs]
    (listener,) = compiled(resources, ("127.0.0.1",)).spec.listeners
    assert [each.config for each in listener.extensions] == ['{"delegates":false,"listenerPort":0,"rules":[]}']
