from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from egressproxy.errors import LimitExceeded, Reason, RetrySafety, UpstreamFault
from egressproxy.ir.policy import DnsIR, Dnssec, Family
from egressproxy.model.addresses import Resolved
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.net.loop import new_loop
from egressproxy.upstream import dns_cache, lookups, system_files
from egressproxy.upstream import resolver as resolver_module
from egressproxy.upstream.new_hostname_rate_limit import KeyedTables
from egressproxy.upstream.resolver import Resolver
from tests.support.dns import DnsServer, Rule
from tests.support.waiting import WAIT_S


class Clock:
    """Stands in for the `time` module of the resolver."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


class Bench:
    """A DNS server, a resolver that asks it, a clock that can be moved, and what the resolver counted."""

    def __init__(self, server: DnsServer, clock: Clock, folder: Path) -> None:
        self.server = server
        self.clock = clock
        self.folder = folder
        self.counted: Counter[str] = Counter()
        self.resolver = self.make()

    def make(self, *, tables: KeyedTables | None = None, **options: Any) -> Resolver:
        spec = replace(DnsIR(servers=(f"127.0.0.1:{self.server.port}",), timeout_s=WAIT_S), **options)
        self.resolver = Resolver(
            spec,
            lambda word: self.counted.update([word]),
            tables=tables,
            resolv_conf=str(self.folder / "resolv.conf"),
            hosts_file=str(self.folder / "hosts"),
        )
        return self.resolver

    async def addresses(self, host: str = "a.test") -> list[str]:
        return [str(a) for a in await self.resolver.resolve(host)]

    async def fault(self, host: str = "a.test") -> UpstreamFault:
        with pytest.raises(UpstreamFault) as caught:
            await self.resolver.resolve(host)
        assert caught.value.retry is RetrySafety.SAFE
        assert f'"{host}"' in caught.value.message
        return caught.value


@pytest_asyncio.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Bench]:
    clock = Clock()
    for module in (resolver_module, system_files):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(resolver_module.Ipv6Route, "exists", lambda _self: True)
    server = await DnsServer({}).start()
    made = Bench(server, clock, tmp_path)
    yield made
    made.resolver.close()
    server.stop()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110   what is waited for comes over a socket
        await asyncio.sleep(0.001)


async def test_both_families_are_asked_for_and_alternate(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "192.0.2.2", "2001:db8::1"))
    assert await bench.addresses() == ["2001:db8::1", "192.0.2.1", "192.0.2.2"]
    assert bench.counted == {"ok": 1}


async def test_without_a_route_for_ipv6_its_addresses_come_last(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resolver_module.Ipv6Route, "exists", lambda _self: False)
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "192.0.2.2", "2001:db8::1"))
    assert await bench.addresses() == ["192.0.2.1", "192.0.2.2", "2001:db8::1"]


@pytest.mark.parametrize(
    ("family", "kind", "address"), [(Family.IPV4, "A", "192.0.2.1"), (Family.IPV6, "AAAA", "2001:db8::1")]
)
async def test_one_family_only_is_asked_for(bench: Bench, family: Family, kind: str, address: str):
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "2001:db8::1"))
    bench.make(family=family, hosts=(("h.test", (ip_address("192.0.2.1"), ip_address("2001:db8::1"))),))
    assert await bench.addresses() == [address]
    assert await bench.addresses("h.test") == [address]
    assert list(bench.server.queries) == [("a.test", kind, "udp")]


async def test_a_fresh_answer_is_given_at_once_without_waiting(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=20)
    assert bench.resolver.cached("a.test") is None
    await bench.addresses()
    assert bench.resolver.cached("a.test") == (ip_address("192.0.2.1"),)
    assert bench.resolver.resolve("a.test").done()
    bench.clock.ahead = 19
    assert bench.resolver.cached("a.test")
    bench.clock.ahead = 21
    assert bench.resolver.cached("a.test") is None
    assert bench.counted == {"ok": 1, "hit": 3}


async def test_ttls_are_kept_within_bounds(bench: Bench):
    bench.server.zone.update(
        {"zero.test": Rule(("192.0.2.1",), ttl=0), "long.test": Rule(("192.0.2.1",), ttl=2**31 - 1)}
    )
    await bench.addresses("zero.test")
    await bench.addresses("long.test")
    bench.clock.ahead = 0.8
    assert bench.resolver.cached("zero.test")
    bench.clock.ahead = 1.1
    assert not bench.resolver.cached("zero.test")
    bench.clock.ahead = 299
    assert bench.resolver.cached("long.test")
    bench.clock.ahead = 301
    assert not bench.resolver.cached("long.test")


async def test_it_is_known_for_how_long_an_answer_holds(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=30)
    assert bench.resolver.fresh_s("a.test") == 0
    await bench.addresses()
    assert 25 < bench.resolver.fresh_s("a.test") <= 30
    bench.clock.ahead = 20
    assert 5 < bench.resolver.fresh_s("a.test") <= 10
    bench.clock.ahead = 40
    assert bench.resolver.fresh_s("a.test") == 0


async def test_many_waiters_make_one_query(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), gate=asyncio.Event())
    waiting = [bench.resolver.resolve("a.test") for _ in range(1000)]
    await bench.server.seen.wait()
    gate = bench.server.zone["a.test"].gate
    assert gate
    gate.set()
    assert {len(found) for found in await asyncio.gather(*waiting)} == {1}
    assert bench.server.count("a.test") == bench.server.count("a.test", "AAAA") == 1
    assert bench.counted == {"ok": 1}


async def test_a_waiter_who_leaves_takes_nobody_along(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), delay_s=0.05)
    first, second = bench.resolver.resolve("a.test"), bench.resolver.resolve("a.test")
    first.cancel()
    assert [str(a) for a in await second] == ["192.0.2.1"]
    assert first.cancelled()


async def test_the_answer_is_remembered_when_everyone_has_left(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",))
    bench.resolver.resolve("a.test").cancel()
    await until(lambda: bench.resolver.cached("a.test"))


@pytest.mark.parametrize(
    ("rule", "reason", "status", "word"),
    [
        (Rule(rcode="NXDOMAIN", soa=5), Reason.DNS_NXDOMAIN, 503, "nxdomain"),
        (Rule(), Reason.DNS_NO_ADDRESS, 503, "no_address"),
        (Rule(rcode="SERVFAIL"), Reason.DNS_SERVFAIL, 503, "servfail"),
        (Rule(rcode="REFUSED"), Reason.DNS_ERROR, 503, "error"),
        (Rule(("a.test.",)), Reason.DNS_ERROR, 503, "error"),
        (Rule(silent=True), Reason.DNS_TIMEOUT, 504, "timeout"),
    ],
)
async def test_failures_have_a_reason_a_status_and_a_word(
    bench: Bench, rule: Rule, reason: Reason, status: int, word: str
):
    bench.make(timeout_s=0.2)
    bench.server.zone["a.test"] = rule
    fault = await bench.fault()
    assert (fault.reason, fault.status) == (reason, status)
    assert "127.0.0.1" not in fault.message
    assert bench.counted == {word: 1}
    again = await bench.fault()
    assert again is not fault
    assert bench.counted == {word: 1, "hit": 1}, "a failure is remembered for a moment"


async def test_negative_answers_live_as_long_as_the_soa_says_up_to_a_limit(bench: Bench):
    bench.server.zone.update(
        {"short.test": Rule(rcode="NXDOMAIN", soa=10), "long.test": Rule(rcode="NXDOMAIN", soa=3600)}
    )
    await bench.fault("short.test")
    await bench.fault("long.test")
    for ahead, short, long in ((9, 1, 1), (11, 2, 1), (31, 3, 2)):
        bench.clock.ahead = ahead
        await bench.fault("short.test")
        await bench.fault("long.test")
        assert (bench.server.count("short.test"), bench.server.count("long.test")) == (short, long)


async def test_a_failing_name_is_asked_for_again_after_a_moment(bench: Bench):
    bench.server.zone["a.test"] = Rule(rcode="SERVFAIL")
    await bench.fault()
    bench.server.zone["a.test"] = Rule(("192.0.2.1",))
    bench.clock.ahead = 1.1
    assert await bench.addresses() == ["192.0.2.1"]


async def test_one_family_is_enough_when_the_other_fails(bench: Bench):
    bench.make(timeout_s=WAIT_S)
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), only="A")
    started = time.monotonic()
    assert await bench.addresses() == ["192.0.2.1"]
    assert time.monotonic() - started < WAIT_S / 2, "the silent family is given up early"


async def test_what_is_known_of_a_family_that_gives_no_answer_stays_as_long_as_a_stale_answer_would(bench: Bench):
    bench.make(max_ttl_s=10.0, stale_ttl_s=30.0)
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "2001:db8::1"), ttl=10)
    assert len(await bench.addresses()) == 2
    bench.server.zone["a.test"] = Rule(("192.0.2.2",), ttl=10, only="A")
    for ahead in (15.0, 30.0):
        bench.clock.ahead = ahead
        assert await bench.addresses() == ["2001:db8::1", "192.0.2.2"]
    bench.clock.ahead = 45.0
    assert await bench.addresses() == ["192.0.2.2"]


async def test_an_answer_that_a_name_has_no_address_of_a_family_is_one(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "2001:db8::1"), ttl=10)
    assert len(await bench.addresses()) == 2
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=10)
    bench.clock.ahead = 15.0
    assert await bench.addresses() == ["192.0.2.1"]


async def test_a_changed_address_is_used_after_the_ttl(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=5)
    await bench.addresses()
    bench.server.zone["a.test"] = Rule(("192.0.2.2",), ttl=5)
    bench.clock.ahead = 4
    assert await bench.addresses() == ["192.0.2.1"]
    bench.clock.ahead = 6
    assert await bench.addresses() == ["192.0.2.2"]


async def test_a_stale_answer_bridges_an_outage_and_then_ends(bench: Bench):
    bench.make(stale_ttl_s=60.0)
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=5)
    await bench.addresses()
    bench.server.zone["a.test"] = Rule(rcode="SERVFAIL")
    bench.clock.ahead = 6
    assert await bench.addresses() == ["192.0.2.1"]
    assert await bench.addresses() == ["192.0.2.1"]
    assert bench.counted == {"ok": 1, "servfail": 1, "stale": 2}
    assert bench.server.count("a.test") == 2, "no query while it backs off"
    bench.clock.ahead = 8
    assert bench.resolver.resolve("a.test").done(), "served at once, refreshed behind"
    await until(lambda: bench.server.count("a.test") == 3)
    bench.clock.ahead = 66
    assert (await bench.fault()).reason is Reason.DNS_SERVFAIL


async def test_a_slow_refresh_does_not_hold_up_those_with_a_stale_answer(bench: Bench):
    bench.make(timeout_s=WAIT_S)
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=5)
    await bench.addresses()
    bench.server.zone["a.test"] = Rule(("192.0.2.2",), gate=asyncio.Event())
    bench.clock.ahead = 6
    started = time.monotonic()
    assert await bench.addresses() == ["192.0.2.1"]
    assert time.monotonic() - started < WAIT_S / 2
    gate = bench.server.zone["a.test"].gate
    assert gate
    gate.set()
    await until(lambda: bench.resolver.cached("a.test") == (ip_address("192.0.2.2"),))


async def test_a_name_that_is_gone_is_not_served_stale(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=5)
    await bench.addresses()
    bench.server.zone["a.test"] = Rule(rcode="NXDOMAIN", soa=5)
    bench.clock.ahead = 6
    assert (await bench.fault()).reason is Reason.DNS_NXDOMAIN


@pytest.mark.parametrize("host", ["localhost", "foo.localhost"])
async def test_localhost_is_loopback_without_a_query(bench: Bench, host: str):
    bench.server.zone["*"] = Rule(("192.0.2.1",))
    assert await bench.addresses(host) == ["::1", "127.0.0.1"]
    assert not bench.server.queries


@pytest.mark.parametrize("host", ["a.invalid", "a.onion"])
async def test_names_that_are_none_of_dns_are_never_asked_for(bench: Bench, host: str):
    bench.server.zone["*"] = Rule(("192.0.2.1",))
    assert (await bench.fault(host)).reason is Reason.DNS_NXDOMAIN
    assert not bench.server.queries


async def test_hosts_of_the_policy_come_before_the_file_and_dns(bench: Bench):
    (bench.folder / "hosts").write_text("10.0.0.2 a.test b.test # c.test\nnonsense a.test\n")
    bench.server.zone["*"] = Rule(("192.0.2.1",))
    bench.make(hosts=(("A.test.", (ip_address("10.0.0.1"),)),))
    assert await bench.addresses("a.test") == ["10.0.0.1"]
    assert await bench.addresses("b.test") == ["10.0.0.2"]
    assert await bench.addresses("c.test") == ["192.0.2.1"]


async def test_why_no_server_is_asked_is_said(bench: Bench):
    (bench.folder / "hosts").write_text("10.0.0.2 b.test\n10.0.0.3 A.test\n")
    bench.make(hosts=(("a.test", (ip_address("10.0.0.1"),)),))
    assert bench.resolver.why_not_asked("a.test") == "dns.hosts has it"
    assert bench.resolver.why_not_asked("b.test") == "the hosts file of this machine has it"
    assert bench.resolver.why_not_asked("x.localhost") == "localhost is loopback"
    assert bench.resolver.why_not_asked("c.test") == ""


async def test_a_changed_hosts_file_is_read_again(bench: Bench):
    path = bench.folder / "hosts"
    path.write_text("10.0.0.2 a.test\n")
    assert await bench.addresses() == ["10.0.0.2"]
    path.write_text("10.0.0.3 a.test\n")
    os.utime(path, (1, 1))
    bench.clock.ahead = 6
    assert await bench.addresses() == ["10.0.0.3"]
    path.unlink()
    bench.server.zone["a.test"] = Rule(("192.0.2.1",))
    bench.clock.ahead = 12
    assert await bench.addresses() == ["192.0.2.1"]


async def test_without_ndots_the_search_list_is_for_single_labels(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    (bench.folder / "resolv.conf").write_text("nameserver 127.0.0.1\nnameserver junk\nsearch one.test two.test\n")
    monkeypatch.setitem(resolver_module.parse_server.__globals__["_PORTS"], "udp", bench.server.port)
    bench.make(servers=())
    bench.server.zone.update({"db.two.test": Rule(("192.0.2.1",)), "db.one": Rule(("192.0.2.2",))})
    assert await bench.addresses("db") == ["192.0.2.1"]
    assert await bench.addresses("db.one") == ["192.0.2.2"]
    assert bench.server.count("db.one.test") == 1
    assert bench.server.count("db") == 0
    assert bench.server.count("db.one.one.test") == 0
    assert (await bench.fault("none")).reason is Reason.DNS_NXDOMAIN
    assert bench.server.count("none") == 1


async def test_names_of_fewer_dots_than_ndots_are_completed_first(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    (bench.folder / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch one.test two.test\noptions ndots:2\n")
    monkeypatch.setitem(resolver_module.parse_server.__globals__["_PORTS"], "udp", bench.server.port)
    bench.make(servers=())
    bench.server.zone.update({
        "db.one.two.test": Rule(("192.0.2.1",)), "db.one": Rule(("192.0.2.2",)), "a.example": Rule(("192.0.2.3",)),
        "a.b.example.one.test": Rule(("192.0.2.4",)), "a.invalid.one.test": Rule(("192.0.2.5",)),
    })  # fmt: skip
    assert await bench.addresses("db.one") == ["192.0.2.1"]
    assert bench.server.count("db.one") == 0
    assert await bench.addresses("a.example") == ["192.0.2.3"]
    assert [bench.server.count(f"a.example{end}") for end in (".one.test", ".two.test", "")] == [1, 1, 1]
    assert (await bench.fault("a.b.example")).reason is Reason.DNS_NXDOMAIN  # two dots: it is asked for as it is
    assert bench.server.count("a.b.example.one.test") == 0
    assert (await bench.fault("a.invalid")).reason is Reason.DNS_NXDOMAIN  # RFC 6761 section 6.4
    assert bench.server.count("a.invalid.one.test") == 0


@pytest.mark.parametrize(("domain", "host"), [("internal", "egress"), ("localhost", "db"), ("invalid", "db")])
async def test_a_search_list_makes_no_name_of_one_that_no_server_is_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, domain: str, host: str
):
    (bench.folder / "resolv.conf").write_text(f"nameserver 127.0.0.1\nsearch {domain} two.test\n")
    monkeypatch.setitem(resolver_module.parse_server.__globals__["_PORTS"], "udp", bench.server.port)
    bench.make(servers=())
    bench.server.zone[f"{host}.{domain}"] = Rule(("192.0.2.66",))
    bench.server.zone[f"{host}.two.test"] = Rule(("192.0.2.1",))
    assert await bench.addresses(host) == ["192.0.2.1"]
    assert bench.server.count(f"{host}.{domain}") == 0
    assert {each.name for each in await bench.resolver.ask_each_server(host)} == {f"{host}.two.test", host}
    assert await bench.resolver.ask_each_server("egress.internal") == []


async def test_a_search_domain_that_fails_is_not_the_names_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    (bench.folder / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch one.test\noptions ndots:5\n")
    broken = Rule(rcode="SERVFAIL")
    monkeypatch.setitem(resolver_module.parse_server.__globals__["_PORTS"], "udp", bench.server.port)
    bench.make(servers=())
    bench.server.zone.update({"a.example.one.test": broken, "a.example": Rule(("192.0.2.3",)), "b.one.test": broken})
    assert await bench.addresses("a.example") == ["192.0.2.3"]
    assert (await bench.fault("b")).reason is Reason.DNS_SERVFAIL  # it may be there


async def test_the_search_list_is_not_used_with_the_policys_servers(bench: Bench):
    (bench.folder / "resolv.conf").write_text("nameserver 127.0.0.9\nsearch one.test\n")
    bench.server.zone["db.one.test"] = Rule(("192.0.2.1",))
    assert (await bench.fault("db")).reason is Reason.DNS_NXDOMAIN
    assert bench.server.count("db") == 1


async def test_without_any_server_it_says_so(bench: Bench):
    bench.make(servers=())
    fault = await bench.fault()
    assert fault.reason is Reason.DNS_ERROR
    assert "no DNS server" in fault.detail


async def test_the_cache_is_bounded_and_forgets_what_was_not_refreshed(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_cache, "MAX_NAMES", 3)
    bench.server.zone["*"] = Rule(("192.0.2.1",), ttl=100)
    for n in range(5):
        await bench.addresses(f"{n}.test")
    assert [bool(bench.resolver.cached(f"{n}.test")) for n in range(5)] == [False, False, True, True, True]


async def test_the_cache_is_bounded_by_what_it_takes(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_cache, "MAX_CACHED_BYTES", 12_000)
    many = tuple(f"192.0.2.{n}" for n in range(32))
    bench.server.zone["*"] = Rule(many, ttl=100)
    for n in range(5):
        await bench.addresses(f"{n}.test")
    assert [bool(bench.resolver.cached(f"{n}.test")) for n in range(5)] == [False, False, True, True, True]
    for _ in range(3):  # what is asked for anew takes the place of its own
        bench.clock.ahead += 1000
        await bench.addresses("4.test")
    bench.server.zone["*"] = Rule(("192.0.2.1",), ttl=100)
    for n in range(30):
        await bench.addresses(f"small-{n}.test")
    kept = [n for n in range(30) if bench.resolver.cached(f"small-{n}.test")]
    assert kept == list(range(30 - len(kept), 30))
    assert len(kept) == 16


async def test_lookups_and_waiters_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 2)
    bench.resolver._lookups.scheduler.waiting.limit = 0
    monkeypatch.setattr(resolver_module, "MAX_WAITERS", 3)
    bench.server.zone["*"] = Rule(("192.0.2.1",), gate=asyncio.Event())
    waiting = [bench.resolver.resolve(name) for name in ("a.test", "b.test", "a.test")]
    assert "too many" in (await bench.fault("c.test")).detail
    assert "too many" in (await bench.fault("a.test")).detail
    gate = bench.server.zone["*"].gate
    assert gate
    gate.set()
    await asyncio.gather(*waiting)
    assert await bench.addresses("c.test") == ["192.0.2.1"]


async def test_one_client_leaves_lookups_and_waiters_for_others(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT", 2)
    monkeypatch.setattr(resolver_module, "MAX_WAITERS_OF_CLIENT", 3)
    bench.resolver._lookups.scheduler.waiting.share = 0
    gate = asyncio.Event()
    bench.server.zone["*"] = Rule(("192.0.2.1",), gate=gate)
    waiting = [bench.resolver.resolve(name, "greedy") for name in ("a.test", "b.other", "a.test")]
    for name in ("c.third", "a.test"):
        with pytest.raises(UpstreamFault, match="could not be resolved") as caught:
            await bench.resolver.resolve(name, "greedy")
        assert "of this client" in caught.value.detail
    waiting += [bench.resolver.resolve(name, "other") for name in ("c.third", "a.test")]
    waiting.append(bench.resolver.resolve("d.fourth"))
    waiting[0].cancel()
    await asyncio.sleep(0)
    waiting.append(bench.resolver.resolve("a.test", "greedy"))  # who has left waits no more
    with pytest.raises(UpstreamFault):
        await bench.resolver.resolve("e.fifth", "greedy")
    gate.set()
    await asyncio.gather(*waiting[1:])
    await bench.resolver.resolve("e.fifth", "greedy")


async def test_clients_take_turns_where_lookups_wait_for_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    gate = asyncio.Event()
    bench.server.zone["*"] = Rule(("192.0.2.1",), gate=gate)
    order: list[str] = []

    def ask(host: str, client: str) -> asyncio.Future[object]:
        asked = bench.resolver.resolve(host, client)
        asked.add_done_callback(lambda done: order.append(host) if not done.cancelled() else None)
        return asked

    waiting = [ask(f"a{number}.{number}", "greedy") for number in range(4)]
    waiting += [ask("b.other", "other"), ask("a3.3", "third")]
    gone = ask("gone.fourth", "fourth")
    gone.cancel()
    gate.set()
    await asyncio.gather(*waiting)
    assert order == ["a0.0", "a1.1", "b.other", "a3.3", "a3.3", "a2.2"], "a3.3 is a wish of two"
    assert not [query for query in bench.server.queries if "gone" in query[0]], "nobody waits for it any more"
    assert repr(bench.resolver._lookups) == "PendingLookups(0 under way, 0 wait)"


async def test_a_lookup_waits_for_its_turn_no_longer_than_for_an_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    bench.make(timeout_s=0.3)
    gate = asyncio.Event()
    bench.server.zone["*"] = Rule(("192.0.2.1",), gate=gate)
    monkeypatch.setattr(bench.resolver, "_find", lambda _host: gate.wait())  # one that does not end in its time
    first = bench.resolver.resolve("a.test")
    assert "too many" in (await bench.fault("b.other")).detail
    assert repr(bench.resolver._lookups) == "PendingLookups(1 under way, 0 wait)"
    assert list(bench.resolver._lookups.known) == ["a.test"]
    first.cancel()
    bench.resolver.close()


async def test_one_client_leaves_lookups_below_a_domain_for_others(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN", 1)
    gate = asyncio.Event()
    bench.server.zone["*"] = Rule(("192.0.2.1",), gate=gate)
    waiting = [bench.resolver.resolve(name, "greedy") for name in ("a.co.uk", "a.test", "b.co.uk")]
    waiting.append(bench.resolver.resolve("c.co.uk", "other"))
    assert repr(bench.resolver._lookups) == "PendingLookups(3 under way, 1 wait)"
    gate.set()
    await asyncio.gather(*waiting)


async def test_names_that_need_no_query_are_answered_while_every_place_for_one_is_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS", 1)
    (bench.folder / "hosts").write_text("10.0.0.2 file.test\n")
    bench.server.zone["*"] = Rule(silent=True)
    bench.make(hosts=(("policy.test", (ip_address("10.0.0.1"),)),))
    bench.resolver._lookups.scheduler.waiting.limit = 0
    waiting = bench.resolver.resolve("a.test")
    assert "too many" in (await bench.fault("b.test")).detail
    assert await bench.addresses("policy.test") == ["10.0.0.1"]
    assert await bench.addresses("file.test") == ["10.0.0.2"]
    assert await bench.addresses("localhost") == ["::1", "127.0.0.1"]
    assert bench.resolver.cached("policy.test") == (ip_address("10.0.0.1"),)
    waiting.cancel()


async def test_the_silent_names_of_one_domain_keep_no_other_domain_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookups, "MAX_LOOKUPS_OF_DOMAIN", 2)
    gate = asyncio.Event()
    bench.server.zone.update({"*": Rule(("192.0.2.1",), gate=gate), "www.good.test": Rule(("192.0.2.2",))})
    waiting = [bench.resolver.resolve(name) for name in ("a.evil.test", "x.b.evil.test")]
    waiting += [bench.resolver.resolve(name) for name in ("c.evil.test", "y.evil.test")]
    assert await bench.addresses("www.good.test") == ["192.0.2.2"]
    assert not [query for query in bench.server.queries if query[0] in ("c.evil.test", "y.evil.test")]
    gate.set()
    await asyncio.gather(*waiting)
    assert await bench.addresses("d.evil.test") == ["192.0.2.1"], "the places are given back"


async def test_one_client_may_ask_for_many_names_of_one_domain_at_once(bench: Bench):
    bench.server.zone["*"] = Rule(("192.0.2.1",))
    names = [f"bucket-{number}.s3.test" for number in range(lookups.MAX_LOOKUPS_OF_CLIENT_IN_DOMAIN + 400)]
    found = await asyncio.gather(*(bench.resolver.resolve(name, "127.0.0.1") for name in names))
    assert found == [(ip_address("192.0.2.1"),)] * len(names)
    assert repr(bench.resolver._lookups) == "PendingLookups(0 under way, 0 wait)"


@pytest.mark.parametrize("host", ["a" * 64 + ".test", ".".join(["a" * 60] * 5), "a..test", "ä.test", ""])
async def test_what_dns_cannot_carry_is_an_error(bench: Bench, host: str):
    assert (await bench.fault(host)).reason is Reason.DNS_ERROR
    assert not bench.server.queries


async def test_an_escape_in_a_name_means_nothing(bench: Bench):
    bench.server.zone["a.b.test"] = Rule(("192.0.2.1",))
    for host in ("a\\.b.test", "a\\046b.test"):
        assert (await bench.fault(host)).reason is Reason.DNS_NXDOMAIN


async def test_closing_ends_every_wait(bench: Bench):
    bench.server.zone["a.test"] = Rule(silent=True)
    waiter = bench.resolver.resolve("a.test")
    await bench.server.seen.wait()
    bench.resolver.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter


async def test_a_coroutine_that_is_no_task_may_wait(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",))
    got: list[Any] = []

    async def life() -> None:
        got.append(await bench.resolver.resolve("a.test"))

    coroutine = life()
    future: Any = coroutine.send(None)
    future._asyncio_future_blocking = False

    def resume(_done: object) -> None:
        with pytest.raises(StopIteration):
            coroutine.send(None)

    future.add_done_callback(resume)
    await until(lambda: got)
    assert got == [(ip_address("192.0.2.1"),)]


async def test_an_address_in_disguise_is_handed_over_as_it_is(bench: Bench):
    bench.server.zone["a.test"] = Rule(("::ffff:127.0.0.1",))
    assert await bench.resolver.resolve("a.test") == (ip_address("::ffff:127.0.0.1"),)


def test_it_works_on_uvloop(tmp_path: Path):
    async def main() -> None:
        server = await DnsServer({"a.test": Rule(("192.0.2.1",), truncated=True)}).start()
        bench = Bench(server, Clock(), tmp_path)
        assert await bench.addresses() == ["192.0.2.1"]
        assert (await bench.fault("none.test")).reason is Reason.DNS_NXDOMAIN
        server.stop()
        await asyncio.sleep(0)
        assert (await bench.fault("other.test")).reason is Reason.DNS_ERROR

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), WAIT_S))


# --- names on the way --------------------------------------------------------------------------------------------
async def test_the_names_on_the_way_to_the_addresses_are_told(bench: Bench):
    bench.server.zone.update({
        "a.test": Rule(("b.test.",)), "b.test": Rule(("c.test.",)), "c.test": Rule(("192.0.2.1", "2001:db8::1")),
    })  # fmt: skip
    found = await bench.resolver.resolve("a.test")
    cached = bench.resolver.cached("a.test")
    assert isinstance(found, Resolved)
    assert isinstance(cached, Resolved)
    assert found.through == cached.through == ("b.test", "c.test")
    assert (await bench.resolver.resolve("c.test")).through == ()  # type: ignore[attr-defined]


async def test_a_name_that_the_search_list_completed_is_told_as_well(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    (bench.folder / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch inner.test\n")
    monkeypatch.setitem(resolver_module.parse_server.__globals__["_PORTS"], "udp", bench.server.port)
    bench.make(servers=())
    bench.server.zone["db.inner.test"] = Rule(("192.0.2.1",))
    found = await bench.resolver.resolve("db")
    assert isinstance(found, Resolved)
    assert found.through == ("db.inner.test",)


# --- what a policy asks for ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (Family.IPV4_PREFERRED, ["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
        (Family.IPV6_PREFERRED, ["2001:db8::1", "192.0.2.1", "192.0.2.2"]),
    ],
)
@pytest.mark.parametrize("has_route", [False, True])
async def test_a_preferred_family_comes_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, family: Family, expected: list[str], has_route: bool
):
    monkeypatch.setattr(resolver_module.Ipv6Route, "exists", lambda _self: has_route)
    bench.server.zone["a.test"] = Rule(("192.0.2.1", "192.0.2.2", "2001:db8::1"))
    bench.server.zone["v4.test"] = Rule(("192.0.2.1",))
    bench.make(family=family, hosts=(("h.test", (ip_address("192.0.2.1"), ip_address("2001:db8::1"))),))
    assert await bench.addresses() == expected
    assert await bench.addresses("v4.test") == ["192.0.2.1"]
    assert await bench.addresses("h.test") == [each for each in expected if each != "192.0.2.2"]


async def test_only_answers_that_are_authentic_count(bench: Bench):
    bench.make(dnssec=Dnssec.REQUIRE, stale_ttl_s=0)
    bench.server.zone["a.test"] = Rule(("192.0.2.1",))
    assert (await bench.fault()).reason is Reason.DNS_NOT_AUTHENTIC
    assert bench.counted == {"not_authentic": 1}
    bench.clock.ahead += 2
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), authentic=True)
    assert await bench.addresses() == ["192.0.2.1"]
    bench.server.zone["none.test"] = Rule(rcode="NXDOMAIN")
    assert (await bench.fault("none.test")).reason is Reason.DNS_NOT_AUTHENTIC
    bench.server.zone["b.test"] = Rule(("192.0.2.1",), authentic=True, only="A")
    assert await bench.addresses("b.test") == ["192.0.2.1"]
    assert bench.server.asked_authentic == {"a.test", "none.test", "b.test"}
    bench.make()
    assert await bench.addresses("a.test") == ["192.0.2.1"]
    bench.server.zone["c.test"] = Rule(("192.0.2.1",))
    await bench.addresses("c.test")
    assert "c.test" not in bench.server.asked_authentic


async def test_how_long_a_negative_answer_lives_is_bounded(bench: Bench):
    bench.server.zone["a.test"] = Rule(rcode="NXDOMAIN", soa=3000)
    for bound, then in ((30.0, 29), (300.0, 299), (0.0, 0.5)):
        bench.make(max_negative_ttl_s=bound)
        asked = bench.server.count("a.test")
        await bench.fault()
        bench.clock.ahead += then
        await bench.fault()
        assert bench.server.count("a.test") == asked + 1
        bench.clock.ahead += 2
        await bench.fault()
        assert bench.server.count("a.test") == asked + 2


async def test_a_name_in_use_is_asked_for_before_its_answer_ends_and_nobody_waits(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=100)
    await bench.addresses()
    bench.clock.ahead += 89
    assert bench.resolver.cached("a.test")
    assert bench.server.count("a.test") == 1
    bench.clock.ahead += 2
    bench.server.zone["a.test"] = Rule(("192.0.2.2",), ttl=100)
    for _ in range(5):
        assert bench.resolver.resolve("a.test").result() == (ip_address("192.0.2.1"),)
    await until(lambda: bench.resolver.cached("a.test") == (ip_address("192.0.2.2"),))
    assert bench.server.count("a.test") == 2
    bench.clock.ahead += 95
    bench.make(prefetch=False)
    await bench.addresses()
    bench.clock.ahead += 95
    assert bench.resolver.cached("a.test")
    assert not bench.resolver._lookups.known


async def test_a_prefetch_that_fails_leaves_the_answer_and_is_not_repeated(bench: Bench):
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=100)
    await bench.addresses()
    bench.server.zone["a.test"] = Rule(rcode="SERVFAIL")
    bench.clock.ahead += 95
    assert bench.resolver.cached("a.test")
    await until(lambda: not bench.resolver._lookups.known)
    assert bench.resolver.cached("a.test")
    assert not bench.resolver._lookups.known
    bench.clock.ahead += 10
    assert await bench.addresses() == ["192.0.2.1"]  # stale


async def test_nothing_is_prefetched_that_no_server_is_asked_for_nor_under_load(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench.make(hosts=(("h.test", (ip_address("192.0.2.1"),)),))
    await bench.addresses("h.test")
    bench.clock.ahead += 4.9
    assert bench.resolver.cached("h.test")
    bench.server.zone["a.test"] = Rule(("192.0.2.1",), ttl=100)
    await bench.addresses()
    monkeypatch.setattr(resolver_module, "MAX_PREFETCHES", 0)
    bench.clock.ahead += 95
    assert bench.resolver.cached("a.test")
    assert not bench.resolver._lookups.known
    assert bench.server.count("h.test") == 0


async def test_new_names_of_a_client_are_bounded_and_known_ones_cost_nothing(bench: Bench):
    bench.server.zone["*"] = Rule(("192.0.2.1",), ttl=5)
    resolver = bench.make(new_names=2, new_names_window_s=60.0)
    for name in ("a.x.test", "b.x.test", "a.x.test"):
        await resolver.resolve(name, "10.0.0.1", "client")
    with pytest.raises(LimitExceeded) as caught:
        await resolver.resolve("c.x.test", "10.0.0.1", "client")
    assert caught.value.reason is Reason.NEW_NAMES
    assert bench.server.count("c.x.test") == 0
    bench.clock.ahead += 7
    await resolver.resolve("a.x.test", "10.0.0.1", "client")  # it has expired, and is known
    await resolver.resolve("c.x.test", "10.0.0.1", "other")
    await resolver.resolve("c.x.test", "10.0.0.1", "client")
    await resolver.resolve("d.x.test", "10.0.0.1")  # asked for again for connections that are there
    await resolver.resolve("d.y.test", "10.0.0.1", "client")
    assert bench.counted["error"] == 1


async def test_a_name_that_the_gateway_or_its_operator_had_looked_up_is_new_to_nobody_over_a_reload(bench: Bench):
    bench.server.zone["*"] = Rule(("192.0.2.1",), ttl=5)
    tables = OwnCounters().keyed
    first = bench.make(new_names=1, new_names_window_s=60.0, tables=tables)
    await first.resolve("a.x.test")  # by `egressproxy dns`, or a health check
    second = bench.make(new_names=1, new_names_window_s=60.0, tables=tables, max_ttl_s=4.0)
    await second.resolve("a.x.test", "10.0.0.1", "client")
    await second.resolve("b.x.test", "10.0.0.1", "client")
    with pytest.raises(LimitExceeded):
        await second.resolve("c.x.test", "10.0.0.1", "client")


async def test_names_that_a_parent_looks_up_count_as_new_ones_too(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resolver_module, "MAX_NAMES", 2)
    resolver = bench.make(new_names=3, new_names_window_s=60.0)
    for name in ("a.x.test", "b.x.test", "a.x.test", "c.x.test", "a.x.test"):
        resolver.count_for_parent(name, "client")
    with pytest.raises(LimitExceeded):
        resolver.count_for_parent("d.x.test", "client")
    resolver.count_for_parent("d.x.test", "other")
    resolver.count_for_parent("d.x.test", "client")
    assert len(resolver._asked_of_parent) == 2
    assert sum(bench.server.queries.values()) == 0
