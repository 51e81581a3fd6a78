"""What systemd gives and is told. (Real activation: tests/e2e/test_restarts.py.)"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from egressproxy.processes.takeover import service_manager
from egressproxy.processes.takeover.service_manager import ServiceManager, given_descriptors


def test_descriptors_are_found_by_their_number_with_their_names(monkeypatch: pytest.MonkeyPatch):
    first, second = 500, 501
    for number in (first, second):
        os.dup2(1, number, inheritable=True)
    monkeypatch.setattr(service_manager, "FIRST_DESCRIPTOR", first)
    environment = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "http", "PATH": "/bin"}
    assert given_descriptors(environment) == [(first, "http"), (second, "unknown")]
    assert environment == {"PATH": "/bin"}
    assert not os.get_inheritable(first)
    assert not os.get_inheritable(second)
    os.closerange(first, second + 1)


@pytest.mark.parametrize(
    "environment", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}]
)
def test_those_of_another_process_are_none_of_ours(environment: dict[str, str]):
    assert given_descriptors(environment) == []


@pytest.mark.parametrize("is_abstract", [True, False])
def test_what_is_told(is_abstract: bool, tmp_path: Path):
    path = f"@egressproxy-{os.getpid()}-{time.monotonic_ns()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{path[1:]}" if is_abstract else path)
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
        told = ServiceManager(environment)
        assert environment == {}, "children are not the service"
        assert told.watchdog_s == 1.5
        told.ready("all is well")
        told.reloading()
        told.stopping(2.5, "draining")
        told.alive()
        said = [manager.recv(1000).decode() for _ in range(4)]
    assert said[0] == "READY=1\nSTATUS=all is well"
    first, second = said[1].split("\n")
    assert first == "RELOADING=1"
    assert 0 <= time.monotonic() * 1e6 - int(second.removeprefix("MONOTONIC_USEC=")) < 60e6
    assert said[2:] == ["STOPPING=1\nEXTEND_TIMEOUT_USEC=2500000\nSTATUS=draining", "WATCHDOG=1"]
    told.ready("nobody listens any more")


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "1"}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_where_nobody_asks_nothing_is_told(environment: dict[str, str]):
    told = ServiceManager(environment)
    assert told.watchdog_s == 0
    told.ready("nobody")


def test_the_watchdog_of_another_process_is_not_fed():
    told = ServiceManager({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    assert told.watchdog_s == 0
    told.alive()
