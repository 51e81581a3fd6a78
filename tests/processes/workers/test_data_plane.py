"""What each process that serves may have, and what a reload costs it."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from egressproxy.errors import NotAnswered
from egressproxy.gateway.overload.process_limits import ProcessLimits
from egressproxy.processes.workers import data_plane
from egressproxy.processes.workers.data_plane import MANY_CONNECTIONS, DataPlane, collect_garbage, process_limits
from egressproxy.run_options import RunOptions


def test_memory_is_that_of_the_cgroup_unless_an_option_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_plane, "memory_for_each", lambda workers: 800 // workers)
    assert process_limits(RunOptions(workers=4)) == ProcessLimits(None, 0, 200)
    assert process_limits(RunOptions(workers=4, max_memory=0)) == ProcessLimits(None, 0, 0)
    written = RunOptions(workers=4, max_memory=500, max_requests=10, max_connections=20)
    assert process_limits(written) == ProcessLimits(20, 10, 500)


@pytest.mark.parametrize(("connections", "generation"), [(MANY_CONNECTIONS, 2), (MANY_CONNECTIONS + 1, 0)])
def test_with_many_connections_a_reload_looks_at_the_youngest_objects_alone(connections: int, generation: int):
    looked: list[int] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    gc.callbacks.append(look)
    try:
        collect_garbage(connections)
    finally:
        gc.callbacks.remove(look)
    assert looked[0] == generation


class Empty(DataPlane):
    """A process in which nothing is in service yet."""

    async def ask_all(self, name: str, *arguments: object) -> list[bytes]:
        raise NotAnswered("nothing is in service yet")


async def test_what_a_process_without_a_configuration_shows_is_nothing():
    assert await Empty().ask_some("shown", "limits") == []  # type: ignore[abstract]
