"""For all tests: their tiers, how many of them run at once, and how much is tried of a property.

`make test` runs the quick ones, `make test-all` every tier. Property tests try more, and the same every time, with
`--hypothesis-profile=pipeline`.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

import egressproxy.doors.catalog
import egressproxy.doors.products  # noqa: F401 (as every process of the product)
from egressproxy.net import socket_states, tls_states
from egressproxy.net.loop import loop_name, new_loop
from egressproxy.net.sockets import SocketTransport
from egressproxy.net.tls import TlsStream
from egressproxy.protocols.http1 import downstream_states as connection_states
from egressproxy.protocols.http1.request_connection import RequestConnection
from egressproxy.protocols.http2 import downstream_states as stream_states
from egressproxy.protocols.http2.request_stream import RequestStream
from egressproxy.protocols.tunnel import tunnel
from egressproxy.protocols.tunnel.socket_tunnel import SocketEnd
from egressproxy.protocols.tunnel.transport_tunnel import TransportEnd
from tests.support import states

TESTS = Path(__file__).parent
#: As in the Makefile.
QUICK = "not (process or clients or machine or compiled or nightly)"
#: The dear tests, by their folder: what they need beside an interpreter. All others are quick, and are `make test`.
TIERS = {
    "e2e": "process",
    "conformance": "process",
    "clients": "clients",
    "deploy": "clients",
    "machine": "machine",
    "benchmarks": "machine",
    "differential": "compiled",
}
#: What `make test` takes on two idle cores.
QUICK_MINUTES = 3
FEWEST_WORKERS, MOST_WORKERS = 2, 8  # much of what is tested are other processes, and waits
SELECTING = ("keyword", "lf", "failedfirst", "stepwise", "usepdb")

settings.register_profile("quick", deadline=None, max_examples=15)
settings.register_profile("pipeline", deadline=None, max_examples=150, derandomize=True)
settings.load_profile("quick")


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
    """How many processes `-n auto` (`make test`) stands for: one per core, and none beside this one for a selection.
    Two more where real processes and clients are tested: these tests wait for half of their time.
    """
    if not _is_whole(config):
        return 0
    return min(max(_cores(), FEWEST_WORKERS), MOST_WORKERS) + 2 * (config.option.markexpr != QUICK)


def pytest_report_header(config: pytest.Config) -> str | None:
    if hasattr(config, "workerinput") or not _is_whole(config) or config.option.markexpr != QUICK:
        return None
    return f"all that needs no process, and a dozen answers of a real one: {QUICK_MINUTES} minutes on two idle cores"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What `make test` leaves out need not be read."""
    is_left_out = collection_path.parent == TESTS and collection_path.name in TIERS
    return True if is_left_out and config.option.markexpr == QUICK else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is in the tier of its folder."""
    for item in items:
        tier = TIERS.get(item.path.relative_to(TESTS).parts[0])
        if tier is not None:
            item.add_marker(tier)


def pytest_configure() -> None:
    """Connections take no step that is not in the table of their states."""
    states.check(SocketTransport, socket_states, states.tables(socket_states)[0])
    states.check(TlsStream, tls_states, states.tables(tls_states)[0])
    states.check(RequestConnection, connection_states, states.tables(connection_states)[0])
    states.check(RequestStream, stream_states, states.tables(stream_states)[0])
    of_tunnels, of_ends = states.tables(tunnel)
    states.check(tunnel.Tunnel, tunnel.TunnelState, of_tunnels)
    states.check(SocketEnd, tunnel.EndState, of_ends)
    states.check(TransportEnd, tunnel.EndState, of_ends)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A step that was illegal fails its test, even where somebody has swallowed the error.

    What a module of tests leaves stays to the end: to look for garbage would take longer with each of them.
    """
    found = states.ILLEGAL[:]
    states.ILLEGAL.clear()
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    assert not found, found


def pytest_collection() -> None:
    """Collecting the tests makes hardly any garbage: to look for it again and again takes a sixth of that time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """The thousands of tests and their modules stay to the end: tests that look for garbage need not look there."""
    gc.enable()
    gc.collect()
    gc.freeze()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _is_whole(config: pytest.Config) -> bool:
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    return not named and not any(config.getoption(option, None) for option in SELECTING)
