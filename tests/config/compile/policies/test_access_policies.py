"""XAccessPolicies: what status says of them, and what becomes of their sources and ports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.config.compile.compiler import compile_config
from egressproxy.config.compile.interface import Compiled, Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.doors.catalog import Catalog
from egressproxy.ir.gateway import extensions
from tests.gateway.test_access_policies import BACKEND, GATEWAY, KNOWN, access, asking, rule, served, tunnelled
from tests.support import manifests as m
from tests.support.manifests import Manifest

SPIFFE = "spiffe://cluster.local/ns/team/sa/robot"


def compiled(*objects: Manifest) -> Compiled:
    text = "\n---\n".join(json.dumps(each) for each in objects)
    return compile_config(load_text(text, "a.yaml"), Catalog(), Defaults(("127.0.0.1",)))


def conditions(made: Compiled, name: str = "access") -> dict[str, tuple[str, str, str]]:
    """By type: status, reason and message at the only target."""
    status = made.statuses["agentic.networking.x-k8s.io", "XAccessPolicy", "agents", name]
    (ancestor,) = status["ancestors"]
    assert ancestor["controllerName"] == "egressproxy.io/gateway-controller"
    assert all(each["observedGeneration"] == 1 for each in ancestor["conditions"])
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in ancestor["conditions"]}


def configs(made: Compiled) -> list[dict[str, Any]]:
    found = dict.fromkeys(each for each in extensions(made.spec) if each.type == "egressproxy.io/AccessPolicy:v1")
    return [json.loads(each.config) for each in found]


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_a_policy_in_force_is_accepted_and_programmed(target: Manifest):
    """xaccesspolicy-allow-accepted, xaccesspolicy-extauth-accepted, xaccesspolicy-programmed."""
    found = conditions(compiled(*served(access(rule(), target=target))))
    assert found["Accepted"][:2] == ("True", "Accepted")
    assert found["Programmed"][:2] == ("True", "Programmed")


def test_one_policy_of_a_target_may_have_a_server_asked():
    """xaccesspolicy-extauth-limit: the older one is accepted, and the other one is not."""
    first, second = asking(rule(), name="one"), asking(rule(), name="two")
    first["metadata"]["creationTimestamp"], second["metadata"]["creationTimestamp"] = (
        "2026-01-02T00:00:00Z",
        "2026-01-01T00:00:00Z",
    )
    made = compiled(*served(first, second))
    assert conditions(made, "two")["Accepted"][:2] == ("True", "Accepted")
    status, reason, message = conditions(made, "one")["Accepted"]
    assert (status, reason) == ("False", "LimitPerTargetExceeded")
    assert "XAccessPolicy agents/two" in message
    assert [each["closed"] for each in configs(made) if "closed" in each]


@pytest.mark.parametrize(
    ("policy", "reason", "says"),
    [
        (access(rule(cel={"expression": "request.nope == 'a'"})), "InvalidCEL", "rule r: request.nope is not known"),
        (access(rule(paths=[{"type": "RegularExpression", "value": "("}])), "Invalid", "not valid in RE2"),
        (access(rule(), target={**GATEWAY, "name": "gwy"}), "TargetNotFound", "there is no Gateway agents/gwy"),
        (access(rule(), target={**GATEWAY, "sectionName": "x"}), "TargetNotFound", "has no section x"),
        (
            access(rule(), target={"group": "agentic.networking.x-k8s.io", "kind": "XBackend", "name": "a"}),
            "TargetNotFound",
            "there is no XBackend agents/a",
        ),
        (
            asking(rule(), target=BACKEND) | {"metadata": {"name": "access", "namespace": "agents"}},
            "NotEnforceable",
            "holds on",
        ),
    ],
)
def test_what_cannot_be_enforced_is_told(policy: Manifest, reason: str, says: str):
    status, found, message = conditions(compiled(*served(policy)))["Accepted"]
    assert (status, found) == ("False", reason)
    assert says in message


def test_an_older_version_is_closed_and_told():
    policy = access(target=GATEWAY) | {"apiVersion": "agentic.networking.x-k8s.io/v0alpha0"}
    policy["spec"] = {"targetRefs": [GATEWAY], "rules": [{"name": "a", "authorization": {"type": "InlineTools"}}]}
    made = compiled(*served(policy))
    assert conditions(made)["Accepted"][:2] == ("False", "Invalid")
    assert "write it as agentic.networking.x-k8s.io/v1alpha1" in conditions(made)["Accepted"][2]
    assert {each["closed"] for each in configs(made)} != {""}


def test_sources_that_nobody_can_be_are_told():
    made = compiled(m.gateway(m.http_listener(8080)), access(rule()))
    assert "sources fit nobody" in conditions(made)["Accepted"][2]
    assert "sources fit nobody" not in conditions(compiled(*served(access(rule()))))["Accepted"][2]


@pytest.mark.parametrize(("objects", "port"), [(served, 8080), (tunnelled, 0)])
def test_the_port_is_the_listeners_where_clients_name_none(objects: Any, port: int):
    (found,) = configs(compiled(*objects(access(rule()) if objects is served else rule())))
    assert found["listenerPort"] == port


@pytest.mark.parametrize(("domain", "namespace"), [("cluster.local", "team"), ("other.example", "team@cluster.local")])
def test_a_spiffe_id_is_also_a_service_account_of_the_trust_domain(domain: str, namespace: str):
    made = served(access(rule(source={"type": "SPIFFE", "spiffe": SPIFFE})))
    made[1]["spec"]["identity"] = {**KNOWN, "certificate": {"trustDomains": [domain]}}
    (found,) = configs(compiled(*made))
    (written,) = found["rules"]
    assert (written["spiffe"], written["namespace"], written["serviceAccount"]) == (SPIFFE, namespace, "robot")
    made[1]["spec"]["identity"] = KNOWN
    (found,) = configs(compiled(*made))
    assert "namespace" not in found["rules"][0]
