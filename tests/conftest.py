"""For all tests: how long they take on how many cores, and property tests that are given the time they need.

In the pipeline (`CI`) property tests try the same examples every time.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings

from egressproxy.net import sockets, tls
from egressproxy.net.loop import loop_name, new_loop
from egressproxy.protocols.http1 import downstream_states as connection_states
from egressproxy.protocols.http1.downstream import DownstreamConnection
from egressproxy.protocols.http2 import downstream_states as stream_states
from egressproxy.protocols.http2.downstream_stream import DownstreamStream
from egressproxy.protocols.tunnel import tunnel
from egressproxy.protocols.tunnel.socket_tunnel import SocketEnd
from egressproxy.protocols.tunnel.transport_tunnel import TransportEnd
from tests.support import states

#: What the first line says of the whole suite: how many tests, and the time of one core that they take. Roughly.
TESTS, CORE_S = 17_600, 2400.0
FEWEST_WORKERS, MOST_WORKERS = 2, 8  # much of what is tested are other processes, and waits
SELECTING = ("keyword", "lf", "failedfirst", "stepwise", "usepdb")

settings.register_profile("developer", deadline=None)
settings.register_profile("pipeline", deadline=None, derandomize=True)
settings.load_profile("pipeline" if os.environ.get("CI") else "developer")


#: Files of tests whose subject is the loop, or what is directly on it.
ON_BOTH_LOOPS = (
    "test_loop.py",
    "test_poller.py",
    "test_sockets.py",
    "test_socket_tunnel.py",
    "test_flow_control.py",
    "test_dialer.py",
    "test_timers.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the loop of the product; those whose subject is the loop, on the other one, too."""
    if item.path.name in ON_BOTH_LOOPS:
        return {loop_name(): new_loop, "asyncio": asyncio.SelectorEventLoop}
    return {loop_name(): new_loop}


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes `-n auto` (`make test`) stands for: one per core, and none beside this one for a selection."""
    return min(max(_cores(), FEWEST_WORKERS), MOST_WORKERS) if _is_whole(config) else 0


def pytest_report_header(config: pytest.Config) -> str | None:
    workers = config.getoption("numprocesses", None)
    if hasattr(config, "workerinput") or not workers or not _is_whole(config) or config.option.markexpr == "slow":
        return None
    at_once = min(workers, _cores())
    minutes = math.ceil(CORE_S / at_once / 60)
    cores = f"{at_once} cores" if at_once > 1 else "one core"
    return f"the whole suite: {TESTS:,} tests and more, about {minutes} minutes on {cores} that have nothing else to do"


def pytest_configure() -> None:
    """Connections take no step that is not in the table of their states."""
    states.check(sockets.SocketTransport, states.tables(sockets)[0])
    states.check(tls.TlsStream, states.tables(tls)[0])
    states.check(DownstreamConnection, states.tables(connection_states)[0])
    states.check(DownstreamStream, states.tables(stream_states)[0])
    of_tunnels, of_ends = states.tables(tunnel)
    states.check(tunnel.Tunnel, of_tunnels)
    states.check(SocketEnd, of_ends)
    states.check(TransportEnd, of_ends)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """A step that was illegal fails its test, even where somebody has swallowed the error."""
    found = states.ILLEGAL[:]
    states.ILLEGAL.clear()
    assert not found, found


def pytest_collection_finish() -> None:
    """The thousands of tests and their modules stay to the end: tests that look for garbage need not look there."""
    gc.collect()
    gc.freeze()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _is_whole(config: pytest.Config) -> bool:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return not named and not any(config.getoption(option, None) for option in SELECTING)
