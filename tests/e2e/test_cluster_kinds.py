"""Every kind that is read of an API server: created, changed, broken and deleted under load. The real one is asked in
tests/clients/test_cluster_kinds.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from egressproxy.config.served_kinds import CONFIGURED
from tests.support.api_server import ApiServer
from tests.support.cluster_access import ClusterAccess, kind_of
from tests.support.cluster_cases import cluster_world, play, put_base, under_load
from tests.support.process import GatewayProcess

pytestmark = pytest.mark.process


async def test_each_kind_is_in_force_as_it_is_and_a_broken_one_takes_no_other_with_it(tmp_path: Path):
    server = ApiServer()
    async with server.running():
        file = tmp_path / "kubeconfig"
        file.write_text(server.kubeconfig())
        api = ClusterAccess(server.url, "token")
        arguments = ("--source", "kubernetes", "--kubeconfig", str(file))
        gateway = GatewayProcess(tmp_path / "gateway", None, arguments=arguments, environment={"POD_NAMESPACE": "team"})

        def played() -> None:
            with under_load() as load, cluster_world(load.origin_port) as world:
                kinds = {kind_of(case.object) for case in world.cases}
                # The first is never read; what the second does no answer shows (tests/clients/test_opentelemetry).
                others = {"ServiceAccount", "XTelemetryPolicy"}
                assert {kind.kind for kind in CONFIGURED if kind not in kinds} == others
                put_base(api, world, world.cases)
                with gateway, load.on(world):
                    play(api, world, world.cases, can_delete=lambda _case: True)

        await asyncio.to_thread(played)
