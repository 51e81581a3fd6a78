"""RequestGate: who is admitted where not all can be."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.gateway.overload.request_gate import RequestGate, Tenant
from egressproxy.ir.policy import Priority
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange


def ask(
    gate: RequestGate, address: str = "10.0.0.1:5", priority: Priority = Priority.NORMAL, *, listener: str = "l",
    namespace: str = "-",
) -> Tenant | None:  # fmt: skip
    """What was admitted, or None."""
    identity = ANONYMOUS if namespace == "-" else CallerIdentity(namespace)
    try:
        return gate.admit(Exchange(address, "ns/gw", listener, 0.0, identity), priority)
    except LimitExceeded:
        return None


def fill(gate: RequestGate, *addresses: str, times: int = 1000, **how: str) -> int:
    """Ask so many times from each, in turns. Returns how many were admitted."""
    return sum(ask(gate, address, **how) is not None for _ in range(times) for address in addresses)


def test_a_refusal_says_when_to_come_back_and_not_to_all_the_same():
    gate, said = RequestGate(1), set()
    ask(gate)
    for _ in range(100):
        with pytest.raises(LimitExceeded) as refused:
            gate.admit(Exchange("10.0.0.2:1", "ns/gw", "l", 0.0), Priority.NORMAL)
        assert (refused.value.reason, refused.value.status) == (Reason.OVERLOADED, 503)
        said.add(refused.value.retry_after_s)
    assert said == {1, 2, 3}


def test_without_a_limit_all_are_admitted_and_counted():
    gate = RequestGate()
    assert fill(gate, "10.0.0.1:1", times=5000) == gate.active == 5000
    assert gate.shed == {}


def test_nothing_is_left_of_requests_that_have_ended():
    gate = RequestGate(100)
    admitted = [ask(gate, f"10.0.{number}.7:1", listener=f"l{number % 3}") for number in range(80)]
    admitted += [ask(gate, namespace=f"n{number}") for number in range(8)]
    for tenant in admitted:
        assert tenant is not None
        tenant.leave()
    assert (gate.active, gate.tenants) == (0, {})


@pytest.mark.parametrize(("limit", "admitted"), [(1, 1), (4, 4), (16, 12), (1600, 1186)])
def test_one_tenant_alone_gets_three_quarters_of_a_limit_and_all_of_a_low_one(limit: int, admitted: int):
    gate = RequestGate(limit)
    assert fill(gate, "10.0.0.1:1", times=5000) == admitted


def test_several_that_want_all_get_as_much_as_each_other():
    gate = RequestGate(1000)
    addresses = ["10.1.0.1:1", "10.2.0.1:1", "10.3.0.1:1", "10.4.0.1:1"]
    fill(gate, *addresses)
    held = [ask_held(gate, address) for address in addresses]
    assert max(held) - min(held) <= 2
    assert sum(held) > 800


def ask_held(gate: RequestGate, address: str) -> int:
    origin = address.rpartition(":")[0]
    return sum(tenant.held for key, tenant in gate.tenants.items() if key[-1] == origin)


def test_who_comes_later_with_little_is_served_at_once():
    gate = RequestGate(100)
    fill(gate, "10.0.0.1:1")
    for _ in range(200):
        few = [ask(gate, "10.0.9.1:1") for _ in range(5)]
        for tenant in few:
            assert tenant is not None
            tenant.leave()
        assert fill(gate, "10.0.0.1:1", times=10) <= 1


def test_under_load_from_both_the_small_one_is_refused_next_to_nothing():
    gate, turns = RequestGate(100), random.Random(1)
    held: dict[str, list[Tenant]] = {"10.0.0.1:1": [], "10.0.9.1:1": []}
    most, answered = {"10.0.0.1:1": 1000, "10.0.9.1:1": 5}, Counter[tuple[str, bool]]()
    for _ in range(20_000):
        address = turns.choice(list(held))
        mine = held[address]
        if mine and turns.random() < 0.4:
            mine.pop(0).leave()
        elif len(mine) < most[address]:
            tenant = ask(gate, address)
            answered[address, tenant is not None] += 1
            if tenant is not None:
                mine.append(tenant)
    assert answered["10.0.9.1:1", True] > 1000
    assert answered["10.0.9.1:1", False] == 0
    assert answered["10.0.0.1:1", False] > 1000


@pytest.mark.parametrize("template", ["10.0.0.{}:1", "[2001:db8:7:{:x}::1]:1"])
def test_many_addresses_of_one_network_have_no_more_than_one(template: str):
    gate = RequestGate(1000)
    flood = [template.format(number) for number in range(200)]
    fill(gate, *flood, times=20)
    assert fill(gate, "192.0.2.1:1", times=30) == 30
    assert fill(gate, "[2001:db8:8::1]:1", times=10) == 10


def test_many_networks_of_unknown_clients_leave_room_for_those_that_are_known():
    gate = RequestGate(1000)
    flood = [f"10.{number}.{number}.7:1" for number in range(250)]
    fill(gate, *flood, times=20)
    assert fill(gate, "10.0.0.1:1", times=40, namespace="payments") == 40


def test_one_listener_leaves_room_for_another():
    gate = RequestGate(1000)
    fill(gate, *(f"10.{number}.{number}.7:1" for number in range(250)), times=20, listener="one")
    assert fill(gate, "10.3.3.7:1", times=40, listener="two") == 40


def test_addresses_of_one_ipv6_network_of_64_bits_are_one_tenant():
    gate = RequestGate()
    for number in range(100):
        ask(gate, f"[2001:db8::{number:x}]:1")
    assert len(gate.tenants) == 4  # listener, unknown, network, client


def test_low_priority_is_refused_first_and_high_last():
    gate = RequestGate(160)
    addresses = [f"10.{number}.0.1:1" for number in range(160)]
    by_priority = {}
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
        for address in addresses:
            ask(gate, address, priority)
        by_priority[priority] = gate.active
    assert by_priority == {Priority.LOW: 112, Priority.NORMAL: 140, Priority.HIGH: 149}
    assert {("priority", "low"), ("priority", "normal"), ("requests", "high")} <= gate.shed.keys()


def test_there_are_never_more_than_the_limit_says():
    for limit in (1, 2, 3, 7, 16, 100):
        gate = RequestGate(limit)
        fill(gate, *(f"10.{number}.0.1:1" for number in range(200)), times=3)
        assert gate.active <= limit
        assert gate.active > 0


def test_what_was_in_progress_before_counts_beyond_the_limit():
    gate = RequestGate()
    early = [ask(gate) for _ in range(50)]
    gate.set_limit(10)
    assert ask(gate, "10.9.0.1:1", Priority.HIGH) is None
    for tenant in early[:45]:
        assert tenant is not None
        tenant.leave()
    assert ask(gate, "10.9.0.1:1", Priority.HIGH) is not None


def test_a_closed_gate_admits_nothing_and_one_under_pressure_nothing_of_low_priority():
    gate = RequestGate()
    gate.set_limit(0, is_closed=True)
    assert ask(gate, priority=Priority.HIGH) is None
    gate.set_limit(100, is_pressed=True)
    assert ask(gate, priority=Priority.LOW) is None
    assert ask(gate) is not None
    assert gate.shed == {("memory", "high"): 1, ("priority", "low"): 1}


def test_a_client_without_an_address_is_a_tenant_too():
    gate = RequestGate(10)
    assert ask(gate, "-") is not None
