"""What is written into `status`, by whom, and what of others stays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubernetes.lease import DURATION_S, Lease, LeasePlace, LeasesElsewhere, lease_place, lease_places
from egressproxy.kubernetes.object_store import ObjectStore, Scope, stored
from egressproxy.kubernetes.status_writer import AGAIN_S, CONTROLLER, StatusWriter, gateway_status, merged
from egressproxy.run_options import ClusterOptions
from tests.kubernetes.kit import client_of
from tests.support.api_server import ApiServer
from tests.support.waiting import until

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def condition(kind: str, status: str = "True", time: str = EARLY) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": kind, "message": "", "lastTransitionTime": time}


def parent(name: str, controller: str, *conditions: dict[str, Any]) -> dict[str, Any]:
    return {"parentRef": {"name": name}, "controllerName": controller, "conditions": list(conditions)}


def test_a_status_that_says_the_same_is_not_written_whatever_its_times():
    ours = {"parents": [parent("gw", CONTROLLER, condition("Accepted", time=LATE))]}
    assert merged({"parents": [parent("gw", CONTROLLER, condition("Accepted"))]}, ours) is None


def test_days_of_a_trial_are_told_apart_by_their_date():
    days = [{"date": f"2026-01-0{day}", "decisions": day} for day in (1, 2)]
    assert merged({"trial": {"days": days}}, {"trial": {"days": days}}) is None
    assert merged({"trial": {"days": days[:1]}}, {"trial": {"days": days}}) == {"trial": {"days": days}}


def test_a_condition_that_turns_has_the_new_time():
    now = {"conditions": [condition("Accepted"), condition("Programmed")]}
    ours = {"conditions": [condition("Accepted", time=LATE), condition("Programmed", "False", LATE)]}
    assert merged(now, ours) == {"conditions": [condition("Accepted"), condition("Programmed", "False", LATE)]}


def test_entries_of_other_controllers_stay():
    other = parent("elsewhere", "example.com/other", condition("Accepted"))
    ours = {"parents": [parent("gw", CONTROLLER, condition("Accepted"))]}
    assert merged({"parents": [other]}, ours) == {"parents": [other, *ours["parents"]]}
    assert merged({"parents": [*ours["parents"], other]}, ours) is None  # in whatever order
    assert merged({"parents": [*ours["parents"], other]}, {}) == {"parents": [other]}
    assert merged({"parents": [other]}, {}) is None


def test_conditions_of_other_domains_stay_and_ours_go():
    others = condition("example.com/Budget")
    ours = {"conditions": [condition("Accepted")]}
    assert merged({"conditions": [condition("Accepted"), others]}, ours) is None
    assert merged({"conditions": [condition("Accepted"), condition("egressproxy.io/Denied")]}, ours) == ours


def test_fields_that_the_server_adds_are_no_difference():
    now = {"conditions": [condition("Accepted")], "listeners": [{"name": "a", "attachedRoutes": 0, "more": 1}]}
    assert merged(now, {"listeners": [{"name": "a", "attachedRoutes": 0}]}) is None
    assert merged(now, {"listeners": [{"name": "a", "attachedRoutes": 2}]}) == {
        "listeners": [{"name": "a", "attachedRoutes": 2}]
    }


GATEWAYS = Scope(next(kind for kind in CONFIGURED if kind.kind == "Gateway"))
KEY = ("gateway.networking.k8s.io", "Gateway", "default", "gw")
GATEWAY = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "gw"}, "spec": {}}


def seen(store: ObjectStore, server: ApiServer) -> None:
    """What a watch would bring."""
    for value in server.objects.values():
        if value["kind"] == "Gateway":
            store.put(GATEWAYS, *stored(value, GATEWAYS, "v1"))


async def test_a_status_is_written_once_and_only_by_who_may(tmp_path):
    server, store = ApiServer(), ObjectStore()
    server.put(GATEWAY)
    seen(store, server)
    async with server.running():
        client = await client_of(tmp_path, server)
        allowed = [0.0]
        writer = StatusWriter(client, store, lambda _key: allowed[0])
        writer.show({KEY: json.dumps({"conditions": [condition("Accepted")]}).encode()})
        await writer.write()
        assert server.asked("PATCH") == []
        allowed[0] = 5.0
        assert not await writer.write()
        assert server.objects["gateways", "default", "gw"]["status"] == {"conditions": [condition("Accepted")]}
        await writer.write()
        seen(store, server)
        await writer.write()
        assert len(server.asked("PATCH", "/gateways/gw/status", "fieldManager=egressproxy")) == 1
        await client.close()


async def test_an_object_that_was_changed_meanwhile_is_written_when_it_is_seen(tmp_path):
    server, store = ApiServer(), ObjectStore()
    server.put(GATEWAY)
    seen(store, server)
    server.put({**GATEWAY, "spec": {"gatewayClassName": "egressproxy"}})
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 5.0)
        writer.show({KEY: json.dumps({"conditions": [condition("Accepted")]}).encode()})
        assert await writer.write()  # something is left
        assert "status" not in server.objects["gateways", "default", "gw"]
        seen(store, server)
        assert not await writer.write()
        assert server.objects["gateways", "default", "gw"]["status"]
        await client.close()


async def test_a_missing_right_is_told_once(tmp_path):
    server, store = ApiServer(), ObjectStore()
    server.put(GATEWAY)
    seen(store, server)
    server.forbidden.add("gateways")
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 5.0)
        writer.show({KEY: json.dumps({"conditions": [condition("Accepted")]}).encode()})
        await writer.write()
        await writer.write()
        assert len(server.asked("PATCH")) == 1
        (problem,) = writer.problems
        assert problem.startswith(
            "cannot patch gateways.gateway.networking.k8s.io/status in namespace default: add to a Role of namespace"
        )
        assert '"resources": ["gateways/status"], "verbs": ["patch"]' in problem
        await client.close()


async def test_one_of_two_holds_a_lease_and_the_other_follows(tmp_path):
    server, now = ApiServer(), [1000.0]
    async with server.running():
        client = await client_of(tmp_path, server)
        one, two = (Lease(client, "infra", "egress", name, lambda: now[0]) for name in ("one", "two"))
        await one.step()
        await two.step()
        assert one.left_s() == 10.0
        assert not two.left_s()
        now[0] += 9.0
        await one.step()  # renewed
        await two.step()
        now[0] += 9.0
        assert one.left_s() == 1.0
        await two.step()
        assert not two.left_s()
        now[0] += 2.0  # the first one is gone: it stops to write before anybody else may
        assert not one.left_s()
        await two.step()
        assert not two.left_s()
        now[0] += 5.0
        await two.step()
        assert two.left_s()
        await one.step()
        assert not one.left_s()
        assert server.objects["leases", "infra", "egress"]["spec"]["leaseTransitions"] == 1
        await client.close()


async def test_a_lease_that_may_not_be_had_is_told_with_the_rule(tmp_path):
    server = ApiServer()
    server.forbidden.add("leases")
    async with server.running():
        client = await client_of(tmp_path, server)
        lease = Lease(client, "infra", "egress", "one")
        task = asyncio.create_task(lease.run())
        await until(lambda: lease.problem)
        assert lease.problem.startswith(
            "cannot get leases.coordination.k8s.io egress in namespace infra: add to a Role of"
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def test_a_lease_is_given_back_at_the_end(tmp_path):
    server = ApiServer()
    async with server.running():
        client = await client_of(tmp_path, server)
        one, two = (Lease(client, "infra", "egress", name) for name in ("one", "two"))
        await one.step()
        task = asyncio.create_task(one.run())
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await two.step()
        assert two.left_s()
        await client.close()


async def test_of_two_leases_nobody_has_one_and_waits_for_the_other(tmp_path):
    server = ApiServer()
    async with server.running():
        client = await client_of(tmp_path, server)
        first = [Lease(client, "egress", name, "first") for name in ("a", "b")]
        second = [Lease(client, "egress", name, "second") for name in ("a", "b")]
        await first[0].step()
        await second[1].step()  # it came first to the other class
        for held in (first, second):
            held[1].after = held[0]
        for _ in range(3):
            for each in (*second, *first):
                await each.step()
        assert [each.left_s() > 0 for each in (*first, *second)] == [True, True, False, False]
        await client.close()


async def test_a_status_that_was_forbidden_is_tried_again_and_in_other_namespaces_at_once(tmp_path):
    server, store, now = ApiServer(), ObjectStore(), [0.0]
    server.put(GATEWAY)
    other = {**GATEWAY, "metadata": {"name": "gw", "namespace": "other"}}
    server.put(other)
    seen(store, server)
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 10.0, clock=lambda: now[0])
        ours = json.dumps({"conditions": [condition("Accepted")]}).encode()
        server.forbidden.add("gateways")
        writer.show({KEY: ours})
        await writer.write()
        assert "namespace default" in writer.problems[0]
        server.forbidden.clear()
        writer.show({KEY: ours, (*KEY[:2], "other", "gw"): ours})
        await writer.write()
        assert "status" in server.objects["gateways", "other", "gw"]
        assert "status" not in server.objects["gateways", "default", "gw"]
        now[0] = AGAIN_S + 1
        await writer.write()
        assert "status" in server.objects["gateways", "default", "gw"]
        assert not writer.problems
        await client.close()


async def test_what_is_gone_is_not_remembered(tmp_path):
    server, store = ApiServer(), ObjectStore()
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 10.0)
        for number in range(3):
            server.objects.clear()
            server.put({**GATEWAY, "metadata": {"name": f"gw{number}"}})
            store.replace(GATEWAYS, {})
            seen(store, server)
            writer.show({(*KEY[:3], f"gw{number}"): json.dumps({"conditions": [condition("Accepted")]}).encode()})
            await writer.write()
        assert len(writer._settled) == len(writer._written) == 1
        await client.close()


X_BACKENDS = Scope(next(kind for kind in CONFIGURED if kind.kind == "XBackend"))
X_BACKEND = {
    "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": {"name": "b"}, "spec": {},
}  # fmt: skip
X_KEY = ("gateway.networking.x-k8s.io", "XBackend", "default", "b")


def ancestor(name: str, controller: str, *conditions: dict[str, Any], ref: str = "ancestorRef") -> dict[str, Any]:
    return {ref: {"name": name}, "controllerName": controller, "conditions": list(conditions)}


def test_of_controllers_only_our_own_is_applied():
    """The list is merged by name: who applies the entry of another one owns it, too, and it would never go."""
    other = {"name": "example.com/other", "conditions": [condition("Accepted")]}
    mine = {"name": CONTROLLER, "conditions": [condition("Accepted")]}
    assert merged({"controllers": [other]}, {"controllers": [mine]}) == {"controllers": [mine]}
    assert merged({"controllers": [other, mine]}, {"controllers": [mine]}) is None
    assert merged({"controllers": [other, mine]}, {}) == {"controllers": []}
    assert merged({"controllers": [other]}, {}) is None
    turned = {"name": CONTROLLER, "conditions": [condition("Accepted", "False", LATE)]}
    assert merged({"controllers": [other, mine]}, {"controllers": [turned]}) == {"controllers": [turned]}


def test_ancestors_of_other_controllers_stay():
    other = ancestor("gw", "example.com/other", condition("Accepted"))
    mine = ancestor("gw", CONTROLLER, condition("Accepted"))
    assert merged({"ancestors": [other]}, {"ancestors": [mine]}) == {"ancestors": [other, mine]}
    assert merged({"ancestors": [other, mine]}, {"ancestors": []}) == {"ancestors": [other]}  # no Gateway uses it now


@pytest.mark.parametrize(
    ("section", "reference"), [("ancestors", "ancestorRef"), ("ancestors", "parentRef"), ("parents", "parentRef")]
)
async def test_a_backend_has_the_names_of_the_definition_that_the_server_has(tmp_path, section, reference):
    server, store = ApiServer(), ObjectStore()
    server.fields["xbackends"] = (section, reference)
    for name in ("b", "c"):
        store.put(X_BACKENDS, *stored(server.put({**X_BACKEND, "metadata": {"name": name}}), X_BACKENDS, "v1alpha1"))
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 10.0)
        ours = json.dumps({"ancestors": [ancestor("gw", CONTROLLER, condition("Accepted"))]}).encode()
        writer.show({X_KEY: ours, (*X_KEY[:3], "c"): ours})
        while await writer.write():
            assert len(server.asked("PATCH")) < 10
        wanted = {section: [ancestor("gw", CONTROLLER, condition("Accepted"), ref=reference)]}
        assert [server.objects["xbackends", "default", name]["status"] for name in ("b", "c")] == [wanted] * 2
        await client.close()


async def test_a_definition_without_room_for_a_status_is_asked_no_more(tmp_path):
    server, store = ApiServer(), ObjectStore()
    server.fields["xbackends"] = ("conditions", "")
    store.put(X_BACKENDS, *stored(server.put(X_BACKEND), X_BACKENDS, "v1alpha1"))
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda _key: 10.0)
        writer.show({X_KEY: json.dumps({"ancestors": [ancestor("gw", CONTROLLER, condition("Accepted"))]}).encode()})
        for _ in range(5):
            await writer.write()
        assert len(server.asked("PATCH")) == 3
        await client.close()


# --- installations in several namespaces ------------------------------------------------------------------------------
def test_installations_meet_at_leases_wherever_they_run():
    everywhere = ClusterOptions(lease_namespace="meet")
    some = ClusterOptions(namespaces=("a", "b"), lease_namespace="meet")
    of_class = ("gateway.networking.k8s.io", "GatewayClass", "", "egressproxy")
    in_a, in_c = (("gateway.networking.k8s.io", "Gateway", name, "gw") for name in ("a", "c"))
    assert lease_place(everywhere, of_class) == lease_place(some, of_class) == LeasePlace("meet")
    assert lease_place(everywhere, in_a) == lease_place(everywhere, in_c) == LeasePlace("meet", is_of_all=True)
    assert lease_place(some, in_a) == LeasePlace("a")
    assert lease_places(some) == (LeasePlace("meet"), LeasePlace("a"), LeasePlace("b"))
    assert lease_places(ClusterOptions(namespaces=("meet",), lease_namespace="meet")) == (LeasePlace("meet"),)


async def test_a_namespace_is_left_to_an_installation_that_holds_a_lease_there(tmp_path):
    server, now = ApiServer(), [1000.0]
    async with server.running():
        client = await client_of(tmp_path, server)
        own = Lease(client, "team", "egress", "one", lambda: now[0])
        elsewhere = LeasesElsewhere(client, "egress", lambda: now[0])
        assert elsewhere.may_be_held("other")  # it has not looked yet
        await own.step()
        assert await elsewhere.look()
        assert elsewhere.may_be_held("team")
        assert not elsewhere.may_be_held("other")
        for _ in range(4):  # it is renewed
            now[0] += DURATION_S / 2
            await own.step()
            assert not await elsewhere.look()
            assert elsewhere.may_be_held("team")
        for _ in range(3):  # and then no more
            now[0] += DURATION_S / 2
            await elsewhere.look()
        assert not elsewhere.may_be_held("team")
        now[0] += DURATION_S + 1  # what was seen is too old
        assert elsewhere.may_be_held("other")
        server.forbidden.add("leases")
        await elsewhere.look()
        assert not elsewhere.may_be_held("team")
        assert "cannot be listed" in elsewhere.problem
        await client.close()


async def test_a_status_is_written_where_that_is_permitted_alone(tmp_path):
    server, store = ApiServer(), ObjectStore()
    for namespace in ("default", "other"):
        server.put({**GATEWAY, "metadata": {"name": "gw", "namespace": namespace}})
    seen(store, server)
    async with server.running():
        client = await client_of(tmp_path, server)
        writer = StatusWriter(client, store, lambda key: 0.0 if key is not None and key[2] == "other" else 5.0)
        ours = json.dumps({"conditions": [condition("Accepted")]}).encode()
        writer.show({KEY: ours, (*KEY[:2], "other", "gw"): ours})
        assert not await writer.write()
        assert "status" in server.objects["gateways", "default", "gw"]
        assert "status" not in server.objects["gateways", "other", "gw"]
        await client.close()


# --- the addresses of a Gateway behind a Service ---------------------------------------------------------------------
LB = {"type": "IPAddress", "value": "203.0.113.1", "routability": "External"}
OWN = {"type": "IPAddress", "value": "10.96.0.9", "routability": "Cluster"}


def shown(bound: list[dict[str, str]], addresses: list[dict[str, str]]) -> tuple[list[dict[str, str]], str]:
    """`status.addresses`, and the reason of AddressesAssigned."""
    condition = {"type": "AddressesAssigned", "status": "True", "reason": "Assigned", "observedGeneration": 1}
    status = json.dumps({"addresses": bound, "conditions": [condition]}).encode()
    made = json.loads(gateway_status(status, addresses, (), "now"))
    return made["addresses"], made["conditions"][0]["reason"]


def test_a_service_shows_its_outermost_addresses_where_no_scope_is_asked_for():
    bound = [{"type": "IPAddress", "value": "0.0.0.0"}]
    assert shown(bound, [LB, OWN]) == ([{"type": "IPAddress", "value": "203.0.113.1"}], "Assigned")
    assert shown(bound, [OWN]) == ([{"type": "IPAddress", "value": "10.96.0.9"}], "Assigned")
    assert shown(bound, []) == (bound, "Assigned")


def test_a_scope_is_that_of_the_service_and_never_of_another_address():
    cluster = [{"type": "IPAddress", "value": "0.0.0.0", "routability": "Cluster"}]
    both = [*cluster, {"type": "IPAddress", "value": "0.0.0.0", "routability": "External"}]
    assert shown(cluster, [LB, OWN]) == ([OWN], "Assigned")
    assert shown(both, [LB, OWN]) == ([LB, OWN], "Assigned")
    assert shown(cluster, [LB]) == ([], "NotAssigned")
    assert shown(both, [LB]) == ([LB], "PartiallyAssigned")
    assert shown(cluster, []) == ([], "NotAssigned")
