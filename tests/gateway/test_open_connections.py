"""Connections of clients to all listeners of a process."""

from __future__ import annotations

import sys

import pytest

from egressproxy.gateway import open_connections
from egressproxy.gateway.open_connections import clients_of_process
from tests.gateway.conftest import Start
from tests.gateway.kit import GET, exchange
from tests.support import manifests as m


@pytest.mark.parametrize(
    ("descriptors", "written", "limit", "words"),
    [
        (20_064, None, 10_000, ""),
        (1064, None, 500, "may have 1064 files open, and so 500 connections"),
        (20_064, 15_000, 15_000, ""),
        (20_064, 25_000, 20_000, "--max-connections 25000 is more than the limit of open files allows (20064"),
        (1064, 100, 100, ""),
        (20_064, 0, 20_000, ""),
        (sys.maxsize, None, sys.maxsize, ""),
        (sys.maxsize, 0, sys.maxsize, ""),
        (50, None, 1, "may have 50 files open"),
    ],
)
def test_the_limit_goes_by_what_is_written_and_by_the_descriptors(
    descriptors: int, written: int | None, limit: int, words: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    monkeypatch.setattr(open_connections, "descriptors", lambda: descriptors)
    assert clients_of_process(written).limit == limit
    assert words in caplog.text
    assert bool(words) == bool(caplog.text)


@pytest.mark.parametrize(("descriptors", "most"), [(200, 16), (20_000, 512), (64, 7), (sys.maxsize, 512)])
def test_clients_that_are_told_leave_descriptors_for_the_admin_address(
    descriptors: int, most: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(open_connections, "descriptors", lambda: descriptors)
    assert clients_of_process(None).max_refused == most


def two_ports() -> list[m.Manifest]:
    gateway = m.gateway(m.forward_listener(3128), m.forward_listener(3129, "other"))
    return [gateway, m.policy(["a.example"])]


def test_an_idle_connection_at_another_listener_makes_way(converse: Start):
    talk = converse(two_ports())
    talk.counts_octets = False
    talk.connection_manager.clients.states = lambda: [state for port in talk.ports for state in port.states]
    talk.connection_manager.clients.limit = 4
    idle = [talk.connect(address="127.0.0.66") for _ in range(3)]
    talk.client = talk.connect(port=1, address="127.0.0.7")
    idle[0].is_closed()
    exchange(talk)
    assert talk.connection_manager.clients.total == 4


def test_where_none_is_idle_a_connection_too_many_is_told(converse: Start):
    talk = converse(two_ports())
    talk.counts_octets = False
    talk.connection_manager.clients.limit = 1
    talk.client >> GET
    talk.dialled("a.example", 80)
    other = talk.connect(port=1, address="127.0.0.7")
    (other >> GET).take(rb"HTTP/1.1 503 .*too many connections\n")
    assert talk.metrics.connections_rejected == {"connection_limit": 1}
    (notice,) = talk.metrics.notices.take()
    assert "--max-connections" in notice.message
