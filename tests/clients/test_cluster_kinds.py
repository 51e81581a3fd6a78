"""Every kind that is read of an API server, on a real one: created, changed, broken and deleted under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_cases import become, cluster_world, play, put_base, under_load
from tests.support.process import GatewayProcess
from tests.support.real_api_server import RealApiServer, real_api_server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApiServer]:
    with real_api_server(tmp_path_factory.mktemp("apiserver")) as made:
        made.install_kinds()
        yield made


@pytest.mark.timeout(300)
def test_each_kind_is_in_force_as_it_is_and_kubectl_says_what_became_of_it(server: RealApiServer, tmp_path: Path):
    """But for ClusterTrustBundle, which it is too old for. Namespaces stay without the controller that ends them."""
    arguments = ("--source", "kubernetes", "--kubeconfig", str(server.kubeconfig))
    gateway = GatewayProcess(tmp_path / "gateway", None, arguments=arguments, environment={"POD_NAMESPACE": "team"})
    with under_load() as load, cluster_world(load.origin_port) as world:
        cases = [case for case in world.cases if case.object["kind"] != "ClusterTrustBundle"]
        for case in cases:
            if case.object["kind"] == "Namespace":
                become(server, case, "broken")
        put_base(server, world, cases)
        with gateway, load.on(world):
            # What a schema does not admit is refused there; those of `_without_schema` admit all.
            for case in (each for each in cases if "unreadable" in each.states):
                path = server.path(case.object).rpartition("/")[0]
                status, told = server.request("POST", f"{path}?dryRun=All", case.states["unreadable"])
                assert status in (201, 400, 422), (case.label, told)
                if status == 201:
                    assert not path.startswith("/apis/egressproxy.io"), case.label
                else:
                    del case.states["unreadable"]  # type: ignore[attr-defined]
            play(server, world, cases, can_delete=lambda case: case.object["kind"] != "Namespace")
            route = next(case for case in cases if case.object["kind"] == "HTTPRoute")
            become(server, route, "broken")
            wait_until(lambda: world.ask(route) == "500")

            def described() -> str:
                return server.kubectl("describe", "httproute", "-n", "team", route.label)

            wait_until(lambda: {"BackendNotFound", "BackendInvalid"} <= {*described().split()}, "it is not described")
            assert server.kubectl("get", "gateways.gateway.networking.k8s.io", "-n", "team", "gw").split()[-2:-1] == [
                "True"
            ]
