from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import dns.name
import dns.rdatatype
import pytest
import pytest_asyncio

from egressproxy.errors import Reason
from egressproxy.upstream.dns_client import MAX_FORGED, WITHOUT_EDNS_S, DnsClient, DnsFailure
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, DnsAnswer
from egressproxy.upstream.dns_server import Server, parse_server
from tests.support.dns import DnsServer, Rule
from tests.support.waiting import WAIT_S


@pytest_asyncio.fixture
async def server() -> AsyncIterator[DnsServer]:
    made = await DnsServer({}).start()
    yield made
    made.stop()


def at(*servers: DnsServer, transport: str = "udp") -> list[Server]:
    return [parse_server(f"127.0.0.1:{server.port}", transport) for server in servers]


async def query(servers: list[Server], name: str = "a.test", kind: str = "A", timeout_s: float = WAIT_S) -> DnsAnswer:
    return await DnsClient().ask(servers, dns.name.from_text(name).to_wire(), dns.rdatatype.from_text(kind), timeout_s)


async def failure(servers: list[Server], **options: Any) -> Reason:
    with pytest.raises(DnsFailure) as caught:
        await query(servers, **options)
    return caught.value.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", Server("10.0.0.1", 53, "udp", "10.0.0.1")),
        ("10.0.0.1:5353", Server("10.0.0.1", 5353, "udp", "10.0.0.1")),
        ("::1", Server("::1", 53, "udp", "::1")),
        ("[::1]", Server("::1", 53, "udp", "::1")),
        ("[::1]:54", Server("::1", 54, "udp", "::1")),
        ("tls://10.0.0.1", Server("10.0.0.1", 853, "tls", "10.0.0.1")),
        ("tls://10.0.0.1:8853#dns.test", Server("10.0.0.1", 8853, "tls", "dns.test")),
        ("tls://[::1]:8853", Server("::1", 8853, "tls", "::1")),
        ("https://10.0.0.1", Server("10.0.0.1", 443, "https", "10.0.0.1", "/dns-query")),
        ("https://[::1]:8443/q/x?a=b#dns.test", Server("::1", 8443, "https", "dns.test", "/q/x?a=b")),
    ],
)
def test_servers_are_read(text: str, expected: Server):
    assert parse_server(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "dns.test", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:x", "10.0.0.1:70000", "[::1", "[::1]53", "[::1]:", "127.1",
     "https://dns.test/q", "quic://10.0.0.1", "tls://dns.test"],
)  # fmt: skip
def test_other_servers_are_refused_with_their_text(text: str):
    with pytest.raises(ValueError, match="DNS server"):
        parse_server(text)


def test_the_transport_of_the_policy_decides_the_port():
    assert parse_server("10.0.0.1", "tls").port == 853


async def test_addresses_come_with_the_least_ttl_of_their_chain(server: DnsServer):
    server.zone.update({"a.test": Rule(("b.test.",), ttl=7), "b.test": Rule(("192.0.2.1", "192.0.2.2"), ttl=60)})
    addresses = ip_address("192.0.2.1"), ip_address("192.0.2.2")
    assert await query(at(server)) == DnsAnswer(addresses, 7, through=("b.test",))


async def test_records_of_other_names_are_ignored(server: DnsServer):
    server.zone["a.test"] = Rule(("192.0.2.1",), extra=(("b.test", "10.0.0.1"),))
    assert (await query(at(server))).addresses == (ip_address("192.0.2.1"),)


async def test_a_name_that_does_not_exist_has_the_soas_ttl(server: DnsServer):
    server.zone["a.test"] = Rule(rcode="NXDOMAIN", soa=17)
    assert await query(at(server)) == DnsAnswer((), 17, is_nxdomain=True)
    server.zone["b.test"] = Rule(("2001:db8::1",))
    assert await query(at(server), "b.test") == DnsAnswer((), 0)


@pytest.mark.parametrize("links", [16, 17])
async def test_chains_are_followed_up_to_a_limit(server: DnsServer, links: int):
    server.zone["a.test"] = Rule(("c1.test.",))
    for n in range(1, links):
        server.zone[f"c{n}.test"] = Rule((f"c{n + 1}.test.",))
    server.zone[f"c{links}.test"] = Rule(("192.0.2.1",))
    if links == 16:
        assert (await query(at(server, transport="tcp"))).addresses
    else:
        assert await failure(at(server, transport="tcp")) is Reason.DNS_ERROR


async def test_a_loop_of_links_is_an_error(server: DnsServer):
    server.zone.update({"a.test": Rule(("b.test.",)), "b.test": Rule(("a.test.",))})
    assert await failure(at(server)) is Reason.DNS_ERROR


async def test_a_truncated_answer_is_asked_for_over_tcp(server: DnsServer):
    server.zone["a.test"] = Rule(("192.0.2.1",), truncated=True)
    assert (await query(at(server))).addresses == (ip_address("192.0.2.1"),)
    assert server.queries["a.test", "A", "tcp"] == 1


async def test_a_very_large_answer_is_bounded(server: DnsServer):
    server.zone["a.test"] = Rule(tuple(f"192.0.{n // 250}.{n % 250 + 1}" for n in range(500)), truncated=True)
    assert len((await query(at(server))).addresses) == 32


@pytest.mark.parametrize("rule", [Rule(("192.0.2.1",), wrong_id=True), Rule(("192.0.2.1",), wrong_question=True),
                                  Rule(silent=True)])  # fmt: skip
async def test_forged_answers_count_as_silence(server: DnsServer, rule: Rule):
    server.zone["a.test"] = rule
    assert await failure(at(server), timeout_s=0.2) is Reason.DNS_TIMEOUT


@pytest.mark.parametrize("rcode", ["FORMERR", "NOTIMP", "SERVFAIL"])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_server_that_does_not_know_edns_is_asked_without_it(server: DnsServer, rcode: str, transport: str):
    server.zone["a.test"] = Rule(("192.0.2.1",), edns_rcode=rcode)
    assert (await query(at(server, transport=transport))).addresses == (ip_address("192.0.2.1"),)
    assert server.queries["a.test", "A", transport] == 2


@pytest.mark.parametrize("rcode", ["SERVFAIL", "REFUSED", "NXDOMAIN"])
async def test_an_error_of_a_server_that_knows_edns_is_its_answer(server: DnsServer, rcode: str):
    server.zone["a.test"] = Rule(rcode=rcode)
    if rcode == "NXDOMAIN":
        assert (await query(at(server))).is_nxdomain
    else:
        assert await failure(at(server)) in (Reason.DNS_SERVFAIL, Reason.DNS_ERROR)
    assert server.plain == 0


async def test_a_second_query_without_edns_still_asks_for_what_is_authentic(server: DnsServer):
    server.zone["a.test"] = Rule(("192.0.2.1",), edns_rcode="FORMERR")
    name = dns.name.from_text("a.test").to_wire()
    with pytest.raises(DnsFailure) as caught:
        await DnsClient().ask(at(server), name, dns.rdatatype.A, WAIT_S, must_be_authentic=True)
    assert caught.value.reason is Reason.DNS_NOT_AUTHENTIC
    assert server.asked_authentic == {"a.test"}


async def test_a_large_answer_without_edns_is_asked_for_over_tcp(server: DnsServer):
    server.zone["a.test"] = Rule(("192.0.2.1",), edns_rcode="FORMERR", truncated=True)
    assert (await query(at(server))).addresses == (ip_address("192.0.2.1"),)
    assert server.queries["a.test", "A", "tcp"] == 1


async def test_the_first_answer_counts_where_the_second_query_has_none(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("egressproxy.upstream.dns_client.PLAIN_S", 0.05)
    server.zone["a.test"] = Rule(("192.0.2.1",), edns_rcode="SERVFAIL", silent_to_plain=True)
    assert await failure(at(server)) is Reason.DNS_SERVFAIL
    assert server.plain == 1


async def test_a_server_that_drops_queries_with_edns_is_asked_without_it(
    server: DnsServer, monkeypatch: pytest.MonkeyPatch
):
    """The second query of the first lookup, and each of the next ones until a while is over."""
    monkeypatch.setattr("egressproxy.upstream.dns_client.HEDGE_S", 0.05)
    server.zone.update({name: Rule(("192.0.2.1",), silent_to_edns=True) for name in ("a.test", "b.test", "c.test")})
    client, asked = DnsClient(), []
    for name in ("a.test", "b.test", "c.test"):
        if name == "c.test":
            monkeypatch.setattr(asyncio.get_running_loop(), "time", later(WITHOUT_EDNS_S))
        answer = await client.ask(at(server), dns.name.from_text(name).to_wire(), 1, WAIT_S)
        assert answer.addresses == (ip_address("192.0.2.1"),)
        asked.append(server.queries[name, "A", "udp"])
    client.close()
    assert asked == [2, 1, 2]
    assert server.plain == 3


async def test_a_server_that_is_slow_once_is_asked_with_edns_again(server: DnsServer, monkeypatch: pytest.MonkeyPatch):
    """What came first was the answer to its query with EDNS."""
    monkeypatch.setattr("egressproxy.upstream.dns_client.HEDGE_S", 0.05)
    rule = Rule(("192.0.2.1",), silent_to_plain=True)
    server.zone.update({"a.test": replace(rule, delay_s=0.1), "b.test": rule})
    client = DnsClient()
    for name in ("a.test", "b.test"):
        assert (await client.ask(at(server), dns.name.from_text(name).to_wire(), 1, WAIT_S)).addresses
    assert server.queries["b.test", "A", "udp"] == 1


def later(seconds: float) -> Callable[[], float]:
    """The clock of the loop, so much later."""
    time_of_loop = asyncio.get_running_loop().time
    return lambda: time_of_loop() + seconds


class Flooding(DnsServer):
    """Answers over UDP with forged datagrams first."""

    def __init__(self, zone: dict[str, Rule], forged: int) -> None:
        super().__init__(zone)
        self.forged = forged

    async def _answers(self, data: bytes, transport: str) -> list[bytes]:
        answers = await super()._answers(data, transport)
        if transport == "tcp":
            return answers
        guessed = int.from_bytes(data[:2], "big")
        return [struct.pack("!H", guessed ^ n) + answers[0][2:] for n in range(1, self.forged + 1)] + answers


@pytest.mark.parametrize(("forged", "over_tcp"), [(MAX_FORGED - 1, 0), (MAX_FORGED, 1)])
async def test_many_forged_answers_lead_to_tcp(forged: int, over_tcp: int):
    """RFC 5452 section 9.2: among many guesses one may be right."""
    server = Flooding({"a.test": Rule(("192.0.2.1",))}, forged)
    await server.start()
    try:
        assert (await query(at(server), timeout_s=10.0)).addresses == (ip_address("192.0.2.1"),)
        assert server.queries["a.test", "A", "tcp"] == over_tcp
    finally:
        server.stop()


async def refusal(servers: list[Server]) -> str:
    with pytest.raises(DnsFailure) as caught:
        await query(servers)
    assert caught.value.reason is Reason.DNS_ERROR
    return str(caught.value)


async def test_a_long_answer_is_not_even_received(server: DnsServer):
    server.zone["a.test"] = Rule(raw=bytes(MAX_REPLY_BYTES))
    assert f"an answer of {MAX_REPLY_BYTES + 2} bytes is not read" in await refusal(at(server, transport="tcp"))


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_an_answer_beyond_the_bounds_is_refused_with_its_reason(server: DnsServer, transport: str):
    section = b"\x01a\x04test\x00\x00\x01\x00\x01"
    server.zone["a.test"] = Rule(raw=struct.pack("!HHHHH", 0x8580, 1, 4000, 0, 0) + section)
    assert "the answer is refused: 4000 records" in await refusal(at(server, transport=transport))


async def test_the_next_server_is_asked_where_an_answer_is_beyond_the_bounds(server: DnsServer):
    section = b"\x01a\x04test\x00\x00\x01\x00\x01"
    server.zone["a.test"] = Rule(raw=struct.pack("!HHHHH", 0x8580, 1, 4000, 0, 0) + section)
    second = await DnsServer({"a.test": Rule(("192.0.2.1",))}).start()
    assert (await query(at(server, second))).addresses
    second.stop()


async def test_of_a_truncated_answer_nothing_is_read(server: DnsServer):
    """RFC 2181 section 9: it may end within a record."""
    section = b"\x01a\x04test\x00\x00\x01\x00\x01"
    cut = struct.pack("!HHHHH", 0x8780, 1, 4000, 0, 0) + section + b"\xc0"

    class Cutting(DnsServer):
        async def _answers(self, data: bytes, transport: str) -> list[bytes]:
            answers = await super()._answers(data, transport)
            return [data[:2] + cut] if transport == "udp" else answers

    cutting = Cutting({"a.test": Rule(("192.0.2.1",))})
    await cutting.start()
    assert (await query(at(cutting))).addresses == (ip_address("192.0.2.1"),)
    cutting.stop()


async def test_a_lost_datagram_is_sent_again(server: DnsServer):
    server.zone["a.test"] = Rule(silent=True)
    asked = asyncio.create_task(query(at(server), timeout_s=2.0))
    await server.seen.wait()
    server.zone["a.test"] = Rule(("192.0.2.1",))
    assert (await asked).addresses
    assert server.count("a.test") == 2


async def test_an_answer_with_a_pointer_loop_fails_fast(server: DnsServer):
    question = b"\x01a\x04test\x00\x00\x01\x00\x01"
    here = 12 + len(question)
    loop = (0xC000 | here).to_bytes(2, "big")
    server.zone["a.test"] = Rule(
        raw=b"\x85\x80\x00\x01\x00\x01\x00\x00\x00\x00" + question + loop + b"\x00\x01\x00\x01" + bytes(8)
    )
    assert await failure(at(server), timeout_s=WAIT_S) is Reason.DNS_ERROR  # not DNS_TIMEOUT


@pytest.mark.parametrize(("rcode", "reason"), [("SERVFAIL", Reason.DNS_SERVFAIL), ("REFUSED", Reason.DNS_ERROR)])
async def test_a_server_that_fails_is_passed_over_at_once(server: DnsServer, rcode: str, reason: Reason):
    server.zone["a.test"] = Rule(rcode=rcode)
    assert await failure(at(server)) is reason
    assert server.count("a.test") == 1
    second = await DnsServer({"a.test": Rule(("192.0.2.1",))}).start()
    started = time.monotonic()
    assert (await query(at(server, second), timeout_s=WAIT_S)).addresses
    assert time.monotonic() - started < WAIT_S / 4, "it is not waited for"
    second.stop()


async def test_a_silent_server_is_helped_out_by_the_next(server: DnsServer):
    server.zone["a.test"] = Rule(silent=True)
    second = await DnsServer({"a.test": Rule(("192.0.2.1",))}).start()
    assert (await query(at(server, second), timeout_s=2.0)).addresses
    second.stop()


async def test_a_dead_server_is_noticed_before_the_time_limit(server: DnsServer):
    dead = at(server)
    server.stop()
    await asyncio.sleep(0)
    for servers in (dead, at(server, transport="tcp")):
        assert await failure(servers, timeout_s=WAIT_S) is Reason.DNS_ERROR  # not DNS_TIMEOUT


async def test_no_server_at_all_is_an_error():
    assert await failure([]) is Reason.DNS_ERROR


async def test_descriptors_are_returned(server: DnsServer):
    import gc
    import os

    server.zone.update({"a.test": Rule(("192.0.2.1",)), "b.test": Rule(silent=True)})
    gc.collect()  # descriptors of other tests
    before = len(os.listdir("/proc/self/fd"))
    await query(at(server))
    await failure(at(server), name="b.test", timeout_s=0.05)
    await asyncio.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before
