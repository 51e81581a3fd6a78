"""The destinations of a cluster: how many, and which make way for others."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any, cast

import pytest

from egressproxy.errors import LimitExceeded
from egressproxy.gateway.backends import upstream_hosts
from egressproxy.gateway.backends.upstream_hosts import (
    MAX_TARGETS_OF_CLIENT,
    UpstreamHost,
    UpstreamHosts,
    tenant_of_client,
)
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.net.timers import TimerWheel
from egressproxy.upstream.pool import PoolTicket
from tests.gateway.conftest import Start
from tests.gateway.kit import ESTABLISHED, GET, OK, OK_PASSED, connect, exchange, forward, visit
from tests.support.builds import of_sources


@of_sources
def test_silent_destinations_of_one_client_close_forwarding_for_nobody_else(
    converse_on: Start, monkeypatch: pytest.MonkeyPatch
):
    bounded(monkeypatch, 5, 2, of_client=2)
    talk = converse_on(forward(allow=("*.example",)))
    for host in ("a.example", "b.example", "c.example"):
        greedy = talk.connect(address="127.0.0.66")
        greedy >> GET.replace(b"a.example", host.encode())
        if host != "c.example":
            talk.dialled(host, 80)
    status, _, fields, error = greedy.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "queue_full", "1")
    assert "this client" in error["message"]
    for host in ("d.example", "e.example", "f.example", "a.example"):  # each makes way for the next
        visit(talk, host)
    for silenced in talk.clients[1:3]:
        silenced.resets()


@of_sources
def test_a_client_with_its_share_of_destinations_uses_those_of_others(converse: Start, monkeypatch: pytest.MonkeyPatch):
    bounded(monkeypatch, 5, 2, of_client=1)
    talk = converse(forward(allow=("*.example",)))
    visit(talk, "b.example")
    greedy = talk.connect(address="127.0.0.66")
    greedy >> GET
    talk.dialled("a.example", 80)
    other, talk.client = talk.client, talk.connect(address="127.0.0.66")
    talk.client >> GET.replace(b"a.example", b"b.example")
    talk.origins[0].take(rb"GET / .*?\r\n\r\n")
    talk.origins[0] >> OK
    talk.client << OK_PASSED
    other.is_open()


@of_sources
def test_the_destinations_of_a_client_that_it_no_longer_uses_make_way_for_its_others(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    bounded(monkeypatch, 100, 1, of_client=2)
    talk = converse(forward(allow=("*.example",)))
    for host in ("a.example", "b.example", "c.example", "d.example", "a.example"):
        visit(talk, host)
    (only,) = talk.snapshot.clusters.values()
    assert len(only.targets.known) == 2
    assert {len(own) for own in only.targets._of_client.values()} == {2}


def bounded(monkeypatch: pytest.MonkeyPatch, known: int, freed: int, *, of_client: int = 0) -> None:
    monkeypatch.setattr(upstream_hosts, "MAX_TARGETS", known)
    monkeypatch.setattr(upstream_hosts, "MAX_TARGETS_OF_CLIENT", of_client or known)
    monkeypatch.setattr(upstream_hosts, "FREED_TARGETS", freed)


@of_sources
def test_the_oldest_idle_destinations_make_way_for_a_new_one(converse_on: Start, monkeypatch: pytest.MonkeyPatch):
    bounded(monkeypatch, 4, 2)
    talk = converse_on(forward(allow=("*.example",)))
    for host in ("a.example", "b.example", "c.example", "d.example"):
        visit(talk, host)
    assert talk.idle == 4
    first, second, third, fourth = talk.origins
    visit(talk, "e.example")
    first.is_closed()
    second.is_closed()
    third.is_open()
    fourth.is_open()
    assert (talk.open, talk.idle) == (3, 3)
    visit(talk, "a.example")


@of_sources
def test_a_destination_in_use_makes_way_for_nobody(converse: Start, monkeypatch: pytest.MonkeyPatch):
    bounded(monkeypatch, 2, 2)
    talk = converse(forward(allow=("*.example",)))
    others = [talk.connect(), talk.connect()]
    for client, host in zip(others, ("a.example", "b.example"), strict=True):
        client >> GET.replace(b"a.example", host.encode())
        talk.dialled(host, 80)
    talk.client >> GET.replace(b"a.example", b"c.example")
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"], fields["Retry-After"]) == (503, "queue_full", "1")
    for client, origin in zip(others, talk.origins, strict=True):
        origin.take(rb"GET / .*?\r\n\r\n")
        origin >> OK
        client << OK_PASSED
    visit(talk, "c.example")
    assert talk.open == 1


@of_sources
def test_tunnels_take_no_place_among_the_destinations(converse_on: Start, monkeypatch: pytest.MonkeyPatch):
    bounded(monkeypatch, 1, 1)
    talk = converse_on(forward(allow=("*.example",)))
    exchange(talk)
    for host in ("b.example", "c.example"):
        client = talk.connect()
        client >> connect(f"{host}:22")
        talk.dialled(host, 22)
        client << ESTABLISHED
    assert len(talk.pools()) == 1
    assert talk.idle == 1


def test_the_bounds_hold_where_they_cannot_be_patched():
    """A client gets its 1,024 destinations, none of which it uses, over and over; in use, no more than those."""
    targets = UpstreamHosts("all", cast(Any, None), TimerWheel(), None)
    address = IPv4Address("192.0.2.1")

    def name(client: str, port: int) -> UpstreamHost:
        return targets.named(client, Authority("192.0.2.1", port, address), None)

    for port in range(1, 1400):
        name("greedy", port)
        assert len(targets.known) <= MAX_TARGETS_OF_CLIENT
    for number, target in enumerate(list(targets.known.values())):
        target.pool.count(PoolTicket(str(number)))
    while len(targets.known) < MAX_TARGETS_OF_CLIENT:
        name("greedy", 2000 + len(targets.known)).pool.count(PoolTicket("greedy"))
    with pytest.raises(LimitExceeded, match="this client has connections to too many destinations"):
        name("greedy", 9)
    assert name("other", 9).client == "other"


def test_no_tls_session_serves_two_tenants():
    targets = UpstreamHosts("agents/x", cast(Any, None), TimerWheel(), None, partition=tenant_of_client)
    one, other = (targets.configured(host, 443, BackendTlsIR()) for host in ("192.0.2.1", "192.0.2.2"))
    first = one.resumption_of(asks("one"))
    assert first is not None
    assert one.resumption_of(asks("one")) is first
    assert first not in (one.resumption_of(asks("two")), other.resumption_of(asks("one")))


def asks(namespace: str) -> Exchange:
    return Exchange("192.0.2.9:1", "-", "-", 0.0, CallerIdentity(namespace, "default"))
