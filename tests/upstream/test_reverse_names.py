"""The names of addresses: what agrees, and how they are asked for."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import pytest

from egressproxy.errors import Reason
from egressproxy.ir.policy import DnsIR
from egressproxy.upstream import lookups, reverse_names
from egressproxy.upstream.dns_client import DnsFailure
from egressproxy.upstream.dns_message import DnsAnswer
from egressproxy.upstream.reverse_names import AddressNames, ReverseNames, agrees

ADDRESS = ip_address("192.0.2.7")


@pytest.mark.parametrize(
    ("names", "host", "through", "expected"),
    [
        (["a.example"], "a.example", (), True),
        (["other.example", "a.example"], "a.example", (), True),
        (["lb-7.a.example"], "a.example", (), True),
        (["example"], "a.example", (), False),
        (["aa.example"], "a.example", (), False),
        (["b.example"], "a.example", (), False),
        (["lb.cdn.test"], "a.example", ("x.example", "cdn.test"), True),
        ([], "a.example", (), False),
        (["a.test", ""], "a.example", ("",), False),  # a CNAME record to the root
    ],
)
def test_a_name_agrees_that_is_the_host_or_below_it(
    names: list[str], host: str, through: tuple[str, ...], expected: bool
):
    assert agrees(names, host, through) is expected


class Servers:
    """Answers of servers, by name; each waits for `gate`, where there is one."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: DnsAnswer | DnsFailure = DnsAnswer((), 60, names=("a.example",))
        self.gate: asyncio.Event | None = None

    async def __call__(self, pointer: str) -> DnsAnswer:
        self.asked.append(pointer)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, DnsFailure):
            raise self.answer
        return self.answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(reverse_names, "time", made)
    return made


async def test_names_are_asked_for_once_and_kept_for_their_life(clock: Clock):
    servers = Servers()
    names = ReverseNames(servers, DnsIR(), 5.0)
    first, second = names.resolve(ADDRESS, "one"), names.resolve(ADDRESS, "two")
    assert await first == await second == AddressNames(("a.example",))
    assert servers.asked == ["7.2.0.192.in-addr.arpa"]
    clock.now += 59
    assert names.resolve(ADDRESS).done()
    clock.now += 2
    servers.answer = DnsAnswer((), 60, names=("b.example",))
    assert (await names.resolve(ADDRESS)).names == ("b.example",)
    assert await names.resolve(ip_address("2001:db8::7")) == AddressNames(("b.example",))
    assert servers.asked[-1].endswith(".8.b.d.0.1.0.0.2.ip6.arpa")


@pytest.mark.parametrize(
    ("answer", "reason", "life_s"),
    [
        (DnsAnswer((), 900, is_nxdomain=True), Reason.OK, 30),
        (DnsAnswer((), 5), Reason.OK, 5),
        (DnsFailure(Reason.DNS_TIMEOUT, "silence"), Reason.DNS_TIMEOUT, 1),
    ],
)
async def test_an_address_without_names_and_a_failure_are_kept_for_a_while(
    clock: Clock, answer: DnsAnswer | DnsFailure, reason: Reason, life_s: float
):
    servers = Servers()
    servers.answer = answer
    names = ReverseNames(servers, DnsIR(), 5.0)
    found = await names.resolve(ADDRESS)
    assert (found.names, found.reason) == ((), reason)
    clock.now += life_s - 0.5
    assert names.resolve(ADDRESS).done()
    clock.now += 1
    assert not names.resolve(ADDRESS).done()
    names.close()


async def test_a_fault_of_ours_leaves_nobody_waiting():
    names = ReverseNames(lambda pointer: 1 / 0, DnsIR(), 5.0)  # type: ignore[arg-type, return-value]
    assert (await names.resolve(ADDRESS)).reason is Reason.DNS_ERROR


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reverse_names, "MAX_KNOWN", 3)
    servers = Servers()
    servers.answer = DnsAnswer((), 60, names=tuple(f"n{number}.example" for number in range(32)))
    names = ReverseNames(servers, DnsIR(), 5.0)
    for number in range(5):
        found = await names.resolve(ip_address(f"192.0.2.{number}"))
        assert len(found.names) == reverse_names.MAX_NAMES
    assert len(names._known) == 3


async def test_who_leaves_does_not_end_the_question_of_others():
    servers = Servers()
    servers.gate = asyncio.Event()
    names = ReverseNames(servers, DnsIR(), 5.0)
    one, two = names.resolve(ADDRESS, "one"), names.resolve(ADDRESS, "two")
    one.cancel()
    servers.gate.set()
    assert (await two).names == ("a.example",)


async def test_more_questions_than_there_may_be_are_a_failure(monkeypatch: pytest.MonkeyPatch):
    servers = Servers()
    servers.gate = asyncio.Event()
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    monkeypatch.setattr(lookups, "MAX_QUEUED", 0)
    names = ReverseNames(servers, DnsIR(), 5.0)
    first = names.resolve(ADDRESS)
    assert (await names.resolve(ip_address("192.0.2.8"))).reason is Reason.DNS_ERROR
    servers.gate.set()
    assert (await first).names == ("a.example",)
