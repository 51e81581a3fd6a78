"""What happens to the gateway and to its API server, a real one: rights that lack, replicas that end, a store that is
away. Clients are served all the time.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from egressproxy.kubernetes.access import Needs, Rule, needed, roles
from egressproxy.kubernetes.lease import DURATION_S, RENEW_S
from tests.support.cluster_cases import Case, SteadyLoad, World, become, cluster_world, put_base, under_load
from tests.support.process import GatewayProcess
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)
WANTED = {
    ("", "Secret", "team", "cert"), ("", "ConfigMap", "team", "ca"), ("", "ConfigMap", "team", "own-ca"),
    ("", "Service", "team", "two"), ("", "Pod", "", ""), ("", "Namespace", "", ""),
}  # fmt: skip
NEEDS = Needs(referenced=WANTED, classes=("mine",))
#: With all of which nothing is served: a policy that is not read may be one that denies.
CLOSES = {"gateway.networking.k8s.io", "egressproxy.io", "agentic.networking.x-k8s.io"}
#: Nothing is written there before another route leads to an XBackend, or without such a policy.
UNWRITTEN = {"xbackends/status", "xtelemetrypolicies/status", "xaccesspolicies/status"}
CLOSED = {"404", "500", "502", "503", "closed", "grpc 12", "grpc 14"}


@contextmanager
def _set_up(folder: Path) -> Iterator[tuple[RealApiServer, World, list[Case], SteadyLoad]]:
    """A server with everything in the state that is good."""
    with real_api_server(folder) as server, under_load() as load, cluster_world(load.origin_port) as world:
        server.install_kinds()
        cases = [case for case in world.cases if case.object["kind"] != "ClusterTrustBundle"]
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "egressproxy-system"}})
        for case in cases:
            if case.object["kind"] == "Namespace":
                become(server, case, "good")
        put_base(server, world, cases)
        for case in cases:
            become(server, case, "good")
        yield server, world, cases, load


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealApiServer, World, list[Case], SteadyLoad]]:
    with _set_up(tmp_path_factory.mktemp("apiserver")) as made:
        yield made


def gateway_of(folder: Path, kubeconfig: Path, address: str, *, must_be_ready: bool = True) -> GatewayProcess:
    arguments = ("--source", "kubernetes", "--kubeconfig", str(kubeconfig), "--bind", address)
    environment = {"POD_NAMESPACE": "team", "POD_NAME": f"at-{address}"}
    return GatewayProcess(folder, None, arguments=arguments, environment=environment, must_be_ready=must_be_ready)


def differences(world: World, cases: list[Case], address: str) -> dict[str, str]:
    """What clients get that is not what they have to."""
    found = {case.label: (world.ask(case, address), case.gets["good"]) for case in cases}
    return {label: got for label, (got, expected) in found.items() if got != expected}


# --- rights ----------------------------------------------------------------------------------------------------------
def _grant(server: RealApiServer, account: str, lacks: Rule | None) -> None:
    """Apply what `egressproxy rbac` prints, but for one rule."""
    for manifest, rules in roles(NEEDS, account, ("team", account)):
        made = {**manifest, "rules": [each.to_manifest() for each in rules if each != lacks]} if rules else manifest
        namespace = manifest["metadata"].get("namespace")
        place = f"namespaces/{namespace}/" if namespace else ""
        path = f"/apis/rbac.authorization.k8s.io/v1/{place}{manifest['kind'].lower()}s/{account}"
        query = "fieldManager=test&force=true"
        status, told = server.request("PATCH", f"{path}?{query}", made, "application/apply-patch+yaml")
        assert status in (200, 201), told


def _lacks(
    server: RealApiServer, world: World, cases: list[Case], folder: Path, number: int, namespace: str, rule: Rule
) -> None:
    account, address = f"lacks-{number}", f"127.0.1.{number + 1}"
    server.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "team"}})
    _grant(server, account, rule)
    kubeconfig = server.kubeconfig_of(server.token_of("team", account), folder / f"{account}.kubeconfig")
    is_closed = rule.verbs[0] == "get" and rule.group in CLOSES
    gateway = gateway_of(folder / account, kubeconfig, address, must_be_ready=not is_closed)
    if is_closed:
        gateway.launch()
    else:
        gateway.start()
    try:
        if rule.verbs == ("patch",):  # of status: there has to be something that no other gateway writes
            wait_until(lambda: "-namespaces)" in gateway.stderr, f"{rule}: it does not get the Lease")
            for case in cases:
                if case.object["apiVersion"].startswith(rule.group) and case.object["kind"].endswith(
                    ("Route", "Backend")
                ):
                    made = {**case.object["metadata"], "name": account}
                    server.put({**case.object, "metadata": made})
        # As the rule is for one resource of them, where a rule has several.
        wanted = [f'"resources": ["{each}"' for each in rule.resources]
        denied = next(case for case in cases if case.object["kind"] == "Pod")  # an Event
        wait_until(
            lambda: world.ask(denied, address) and any(map(gateway.stderr.__contains__, wanted)), f"{rule} is not told"
        )
        if is_closed:
            assert set(differences(world, cases, address).values()) <= {"closed"}
        else:
            wait_until(lambda: gateway.metric("egress_kubernetes_problems") or rule.names, f"{rule}: no problem")
            found = differences(world, cases, address)
            assert set(found.values()) <= CLOSED, (rule, found)
            assert len(found) < 6, (rule, found)
        _grant(server, account, None)
        if rule.verbs[0] == "patch":
            return  # of status, which is tried again after some minutes
        wait_until(lambda: not differences(world, cases, address), f"{rule}: it does not heal")
    finally:
        gateway.stop()


def test_a_right_that_lacks_is_told_and_opens_nothing(set_up: Any, tmp_path: Path):
    """Each rule that `egressproxy rbac` prints, and none of the others. It heals without a restart."""
    server, world, cases, _ = set_up
    rules = [
        (namespace, rule)
        for namespace, found in needed(NEEDS).items()
        for rule in found
        if not UNWRITTEN.issuperset(rule.resources)
    ]
    assert len(rules) > 15
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(_lacks, server, world, cases, tmp_path, number, *each) for number, each in enumerate(rules)]
        for each in done:
            each.result()


# --- replicas --------------------------------------------------------------------------------------------------------
def _versions(server: RealApiServer, cases: list[Case]) -> dict[str, str]:
    """The resource version of each object that has a status."""
    objects = [each for case in cases for each in (case.object, *case.given)]
    found = [server.find(each) for each in objects]
    return {
        f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["resourceVersion"]
        for each in found
        if each is not None and "status" in each and each["kind"] not in ("Service", "Pod", "Namespace")
    }


def _holder(server: RealApiServer) -> str:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/egressproxy-mine-namespaces"
    _, found = server.request("GET", path)
    return str(found["spec"]["holderIdentity"] or "")


def test_of_two_replicas_one_writes_and_the_other_follows_when_it_is_killed(set_up: Any, tmp_path: Path):
    server, world, cases, load = set_up
    route = next(case for case in cases if case.object["kind"] == "HTTPRoute")
    addresses = ("127.0.0.1", "127.0.0.2")
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(gateway_of(tmp_path / address, server.kubeconfig, address)) for address in addresses
        )
        gateways = dict(zip(addresses, (one, two), strict=True))

        def settled(within_s: float) -> None:
            """Return once nothing is written any more; what is written without end fails."""
            deadline = time.monotonic() + within_s
            while True:
                before = _versions(server, cases)
                time.sleep(3)
                if _versions(server, cases) == before:
                    return
                assert time.monotonic() < deadline, "status is written again and again"

        wait_until(lambda: _holder(server), "nobody writes")
        with load.on(world, addresses[1]):
            settled(60)
            # The process alone that asks the API server: another one takes its place, or the other gateway's.
            was = _holder(server)
            writer = gateways[was.partition("_")[0].removeprefix("at-")]
            (child,) = [pid for pid in children_of(writer.pid) if _name(pid) == "egress-cluster"]
            os.kill(child, signal.SIGKILL)
            become(server, route, "broken")
            wait_until(lambda: route.says in server.conditions(route.about), "nobody says what is broken")
            assert _holder(server) not in ("", was)
            settled(60)
            become(server, route, "good")
        # All of it: its children end with it.
        was = _holder(server)
        here = was.partition("_")[0].removeprefix("at-")
        with load.on(world, next(each for each in addresses if each != here)):
            os.kill(gateways[here].pid, signal.SIGKILL)
            began = time.monotonic()
            become(server, route, "broken")
            wait_until(lambda: route.says in server.conditions(route.about), "nobody says what is broken")
            assert time.monotonic() - began < DURATION_S + 3 * RENEW_S
            assert _holder(server) not in ("", was)
            settled(60)
        become(server, route, "good")


def children_of(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found[1:]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


# --- the server ------------------------------------------------------------------------------------------------------
def test_what_is_in_force_stays_while_the_api_server_and_its_store_are_away(set_up: Any, tmp_path: Path):
    server, world, cases, load = set_up
    policy = next(case for case in cases if case.object["kind"] == "EgressPolicy")
    with gateway_of(tmp_path / "gateway", server.kubeconfig, "127.0.0.1") as gateway, load.on(world):
        wait_until(lambda: not differences(world, cases, "127.0.0.1"))
        for and_etcd in (False, True):
            become(server, policy, "changed")
            wait_until(lambda: world.ask(policy) == "403", "the deny is not in force")
            server.stop(and_etcd=and_etcd)
            deadline = time.monotonic() + 4
            while time.monotonic() < deadline:
                assert set(differences(world, cases, "127.0.0.1").values()) == {"403"}
            server.start()
            wait_until(lambda: not gateway.metric("egress_kubernetes_problems"), "it does not find the server again")
            assert world.ask(policy) == "403"
            become(server, policy, "good")
            wait_until(lambda: world.ask(policy) == policy.gets["good"], "what is new is not in force")
