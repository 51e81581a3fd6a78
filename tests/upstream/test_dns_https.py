"""DNS over HTTPS: one connection for all questions, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address

import dns.name
import dns.rdatatype
import pytest
import pytest_asyncio

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.ir.policy import DnsIR
from egressproxy.upstream import dns_server
from egressproxy.upstream.dns_client import DnsClient, DnsFailure
from egressproxy.upstream.dns_https import DnsHttps
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, DnsAnswer
from egressproxy.upstream.dns_server import parse_server
from egressproxy.upstream.resolver import Resolver
from tests.support.dns import DnsServer, Rule
from tests.support.dns_https import OK, HttpsNameServer
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

ADDRESS = ip_address("192.0.2.1")


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


class Bench:
    def __init__(self, server: HttpsNameServer, pki: Pki) -> None:
        self.server = server
        self.pki = pki
        self.client = DnsClient(tls=BackendTlsIR(ca_pem=pki.ca_pem, ca_source="ConfigMap agents/roots"))

    @property
    def text(self) -> str:
        return f"https://127.0.0.1:{self.server.port}/q#dns.test"

    async def ask(self, name: str = "a.test", text: str = "", timeout_s: float = WAIT_S) -> DnsAnswer:
        servers = [parse_server(text or self.text)]
        return await self.client.ask(servers, dns.name.from_text(name).to_wire(), dns.rdatatype.A, timeout_s)

    async def failure(self, text: str = "") -> DnsFailure:
        with pytest.raises(DnsFailure) as caught:
            await self.ask(text=text)
        return caught.value


@pytest_asyncio.fixture
async def bench(pki: Pki) -> AsyncIterator[Bench]:
    names = DnsServer({"a.test": Rule(("192.0.2.1",), ttl=60)})
    made = Bench(await HttpsNameServer(names, pki.server_context("dns.test")).start(), pki)
    yield made
    made.client.close()
    made.server.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for comes over a socket
            await asyncio.sleep(0.001)


async def test_questions_go_as_rfc_8484_says_and_share_a_connection(bench: Bench):
    assert await bench.ask() == DnsAnswer((ADDRESS,), 60)
    await asyncio.gather(*(bench.ask() for _ in range(20)))
    assert bench.server.connections == 1
    assert len(bench.server.heads) == 21
    head = bench.server.heads[0]
    assert (head[b":method"], head[b":scheme"], head[b":path"]) == (b"POST", b"https", b"/q")
    assert head[b":authority"] == b"dns.test:%d" % bench.server.port
    assert head[b"content-type"] == head[b"accept"] == b"application/dns-message"
    assert int(head[b"content-length"]) % 128 == 0  # RFC 8467


async def test_the_time_in_a_cache_is_taken_from_the_ttl(bench: Bench):
    bench.server.head = (*OK, (b"age", b"45"))
    assert (await bench.ask()).ttl_s == 15
    bench.server.head = (*OK, (b"age", b"450"))
    assert (await bench.ask()).ttl_s == 0


@pytest.mark.parametrize("name", ["#other.test", ""])
async def test_the_server_is_verified(bench: Bench, name: str):
    failure = await bench.failure(f"https://127.0.0.1:{bench.server.port}/q{name}")
    assert failure.reason is Reason.DNS_ERROR
    told = str(failure)
    assert told.startswith(
        f"https://127.0.0.1 port {bench.server.port}: the certificate of the DNS server is for another"
    )
    assert "behind the address of the server: #name" in told
    assert "presented: subject" in told
    assert "dns.test" in told
    assert f"expected: name {name[1:] or '127.0.0.1'}, signed by ConfigMap agents/roots" in told
    assert bench.server.heads == []


async def test_a_server_without_http_2_is_said_to_be_one(pki: Pki, bench: Bench):
    old = await HttpsNameServer(bench.server.names, pki.server_context("dns.test"), alpn=("http/1.1",)).start()
    try:
        failure = await bench.failure(f"https://127.0.0.1:{old.port}/q#dns.test")
        assert "HTTP/2" in str(failure) or "ALPN" in str(failure).upper()
    finally:
        old.stop()


@pytest.mark.parametrize(
    ("head", "body", "told"),
    [
        (((b":status", b"403"),), b"no", "status 403"),
        (((b":status", b"200"), (b"content-type", b"text/html")), b"<html>", "application/dns-message"),
        (OK, b"\0" * 20, "another question"),
        (OK, b"", "another question"),
        (OK, b"\0" * (MAX_REPLY_BYTES + 1), "more than"),
    ],
)
async def test_an_answer_that_is_none_fails_and_the_connection_serves_on(
    bench: Bench, head: tuple[tuple[bytes, bytes], ...], body: bytes, told: str
):
    bench.server.head, bench.server.body = head, body
    if len(body) > 16384:
        bench.server.body = None
        bench.server.names.zone["a.test"] = Rule(raw=b"\0" * 16000)
        told = "another question"
    failure = await bench.failure()
    assert (failure.reason, told in str(failure)) == (Reason.DNS_ERROR, True), str(failure)
    bench.server.head, bench.server.body = OK, None
    bench.server.names.zone["a.test"] = Rule(("192.0.2.1",), ttl=60)
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 1


async def test_a_connection_that_the_server_has_closed_is_opened_again(bench: Bench):
    bench.server.closes_after = 1
    for _ in range(3):
        assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 3


async def test_a_connection_that_ends_under_questions_fails_none_of_them(bench: Bench):
    await bench.ask()
    gate = bench.server.names.zone["a.test"].gate = asyncio.Event()
    asked = [asyncio.create_task(bench.ask()) for _ in range(3)]
    await until(lambda: len(bench.server.heads) == 4)
    bench.server.names.zone["a.test"].gate = None
    bench.server.hang_up()
    gate.set()
    for answer in await asyncio.gather(*asked):
        assert answer.addresses == (ADDRESS,)
    assert bench.server.connections == 2


async def test_questions_beyond_the_streams_of_the_server_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DnsHttps, "max_connections", 1)
    bench.server.max_streams = 2
    await bench.ask()  # the settings are known
    gate = bench.server.names.zone["a.test"].gate = asyncio.Event()
    asked = [asyncio.create_task(bench.ask()) for _ in range(5)]
    await until(lambda: len(bench.server.heads) == 3)
    asked[0].cancel()  # which frees a stream
    await until(lambda: len(bench.server.heads) == 4)
    gate.set()
    answers = await asyncio.gather(*asked[1:])
    assert [answer.addresses for answer in answers] == [(ADDRESS,)] * 4
    assert bench.server.connections == 1


async def test_a_silent_connection_is_not_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "SILENCE_S", 0.0)
    await bench.ask()
    bench.server.names.zone["b.test"] = Rule(silent=True)
    with pytest.raises(DnsFailure) as caught:
        await bench.ask("b.test", timeout_s=0.05)
    assert caught.value.reason is Reason.DNS_TIMEOUT
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 2


async def test_an_idle_connection_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "IDLE_S", 0.01)
    await bench.ask()
    ((connection,),) = (each.connections for each in bench.client._connections.values())
    await until(lambda: connection.is_gone)
    await bench.ask()
    assert bench.server.connections == 2


async def test_a_closed_client_leaves_nobody_waiting(bench: Bench):
    bench.server.names.zone["a.test"].gate = asyncio.Event()
    asked = asyncio.create_task(bench.ask())
    await until(lambda: bench.server.heads)
    (https,) = bench.client._connections.values()
    https.close()
    bench.server.names.zone["a.test"].gate = None
    await asyncio.wait([asked])
    assert asked.exception() is None or isinstance(asked.exception(), DnsFailure)


async def test_nobody_listens(bench: Bench):
    assert "ConnectionRefusedError" in str(await bench.failure("https://127.0.0.1:1/q#dns.test"))


async def test_a_resolver_asks_over_https(bench: Bench):
    bench.server.names.zone["a.test"] = Rule(("192.0.2.1", "2001:db8::1"))
    queries: list[tuple[str, str]] = []
    resolver = Resolver(
        DnsIR(servers=(bench.text,), ca_pem=bench.pki.ca_pem),
        lambda _word: None,
        on_query=lambda *query: queries.append(query[:2]),
    )
    assert set(await resolver.resolve("a.test")) == {ADDRESS, ip_address("2001:db8::1")}
    assert queries == [(f"https://127.0.0.1:{bench.server.port}", "noerror")] * 2
    resolver.close()


async def test_an_authority_that_is_not_known_is_told_with_the_field_to_write(bench: Bench):
    bench.client = DnsClient(tls=BackendTlsIR(ca_pem=Pki().ca_pem))
    told = str(await bench.failure())
    assert "the authority that signed it is not known" in told
    assert "dns.caCertificateRefs" in told
    assert "tls.caBundleRef" not in told


async def test_a_retired_connection_closes_behind_its_questions(bench: Bench):
    await bench.ask()
    gate = bench.server.names.zone["a.test"].gate = asyncio.Event()
    asked = asyncio.create_task(bench.ask())
    await until(lambda: len(bench.server.heads) == 2)
    (https,) = bench.client._connections.values()
    (connection,) = https.connections
    bench.client.retire()
    assert not connection.is_gone
    gate.set()
    assert (await asked).addresses == (ADDRESS,)
    await until(lambda: connection.is_gone)
    assert (await bench.ask()).addresses == (ADDRESS,)
    await until(lambda: not https.connections)
    assert bench.server.connections == 2


async def test_names_that_take_the_server_long_hold_up_no_others(bench: Bench):
    bench.server.names.zone["slow.test"] = Rule(silent=True)
    bench.server.max_streams = 4
    await bench.ask()
    slow = [asyncio.create_task(bench.ask("slow.test")) for _ in range(10)]
    await until(lambda: len(bench.server.heads) >= 11)
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()
    await asyncio.wait(slow)
    assert 3 <= bench.server.connections <= 5


async def test_a_server_that_takes_no_question_at_all_gets_few_connections(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(DnsHttps, "max_connections", 3)
    bench.server.max_streams = 0
    asked = [asyncio.create_task(bench.ask(timeout_s=0.3)) for _ in range(20)]
    await asyncio.wait(asked)
    assert all(isinstance(task.exception(), DnsFailure) for task in asked)
    assert bench.server.connections <= 3


async def test_a_connection_whose_question_was_given_up_before_it_was_there_is_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dns_server, "IDLE_S", 0.01)
    asked = asyncio.create_task(bench.ask())
    await until(lambda: bench.client._connections)
    (https,) = bench.client._connections.values()
    await until(lambda: https.connections)
    asked.cancel()
    await until(lambda: bench.server.connections == 1)
    await until(lambda: not https.connections)
