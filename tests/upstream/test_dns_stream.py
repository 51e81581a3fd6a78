"""DNS over TCP and TLS: connections that questions share, and what becomes of those that end."""

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
from egressproxy.upstream import dns_server, dns_stream
from egressproxy.upstream.dns_client import DnsClient, DnsFailure
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, DnsAnswer
from egressproxy.upstream.dns_server import ServerConnections, parse_server
from egressproxy.upstream.dns_stream import DnsStream
from tests.support.dns import DnsServer, Rule
from tests.support.dns_stream import StreamNameServer
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

ADDRESS = ip_address("192.0.2.1")


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


class Bench:
    def __init__(self, server: StreamNameServer, transport: str, ca_pem: str) -> None:
        self.server = server
        self.transport = transport
        self.client = DnsClient(tls=BackendTlsIR(ca_pem=ca_pem, ca_source="ConfigMap agents/roots"))

    @property
    def text(self) -> str:
        at = f"127.0.0.1:{self.server.port}"
        return f"tls://{at}#dns.test" if self.transport == "tls" else at

    @property
    def stream(self) -> ServerConnections:
        (found,) = self.client._connections.values()
        return found

    async def ask(self, name: str = "a.test", text: str = "", timeout_s: float = WAIT_S) -> DnsAnswer:
        servers = [parse_server(text or self.text, "tcp")]
        return await self.client.ask(servers, dns.name.from_text(name).to_wire(), dns.rdatatype.A, timeout_s)

    async def ask_all(self, number: int) -> list[DnsAnswer]:
        return list(await asyncio.gather(*[self.ask(f"n{each}.test") for each in range(number)]))

    async def failure(self, name: str = "a.test", text: str = "", timeout_s: float = WAIT_S) -> DnsFailure:
        with pytest.raises(DnsFailure) as caught:
            await self.ask(name, text, timeout_s)
        return caught.value


@pytest_asyncio.fixture(params=["tcp", "tls"])
async def bench(request: pytest.FixtureRequest, pki: Pki) -> AsyncIterator[Bench]:
    names = DnsServer({"*": Rule(("192.0.2.1",), ttl=60)})
    context = pki.server_context("dns.test") if request.param == "tls" else None
    made = Bench(await StreamNameServer(names, context).start(), request.param, pki.ca_pem)
    yield made
    made.client.close()
    made.server.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for comes over a socket
            await asyncio.sleep(0.001)


async def test_questions_share_a_connection_one_after_the_other_and_at_once(bench: Bench):
    for _ in range(3):
        assert (await bench.ask()).addresses == (ADDRESS,)
    answers = await bench.ask_all(50)
    assert {answer.addresses for answer in answers} == {(ADDRESS,)}
    assert bench.server.connections == 1


async def test_beyond_the_questions_of_one_connection_another_is_opened(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DnsStream, "max_questions", 2)
    monkeypatch.setattr(DnsStream, "max_connections", 3)
    gate = asyncio.Event()
    bench.server.names.zone["*"].gate = gate
    asked = asyncio.create_task(bench.ask_all(20))
    await until(lambda: sum(bench.server.names.queries.values()) == 20)
    assert bench.server.connections == 3
    gate.set()
    assert len(await asked) == 20


async def test_answers_may_come_in_any_order(bench: Bench):
    gate = asyncio.Event()
    bench.server.names.zone["slow.test"] = Rule(("192.0.2.2",), gate=gate)
    slow = asyncio.create_task(bench.ask("slow.test"))
    await until(lambda: bench.server.names.count("slow.test"))
    assert (await bench.ask()).addresses == (ADDRESS,)
    gate.set()
    assert (await slow).addresses == (ip_address("192.0.2.2"),)
    assert bench.server.connections == 1


async def test_a_name_that_takes_long_holds_up_nothing_where_the_server_answers_in_turn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dns_server, "STALLED_S", 0.0)
    bench.server.in_order = True
    gate = asyncio.Event()
    bench.server.names.zone["slow.test"] = Rule(("192.0.2.2",), gate=gate)
    slow = asyncio.create_task(bench.ask("slow.test"))
    await until(lambda: bench.server.names.count("slow.test"))
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert not slow.done()
    gate.set()
    assert (await slow).addresses == (ip_address("192.0.2.2"),)
    assert bench.server.connections == 2


async def test_a_connection_that_the_server_has_closed_is_opened_again(bench: Bench):
    await bench.ask()
    bench.server.hang_up()
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 2


@pytest.mark.parametrize("closes_after", [1, 3])
async def test_a_server_that_closes_after_some_answers_gets_so_many_questions_at_once(bench: Bench, closes_after: int):
    bench.server.closes_after = closes_after
    for _ in range(3):
        answers = await bench.ask_all(40)
        assert {answer.addresses for answer in answers} == {(ADDRESS,)}
    assert bench.stream._depth <= closes_after


async def test_a_server_that_never_answers_on_a_connection_is_not_asked_again(bench: Bench):
    bench.server.names.zone["a.test"] = Rule(silent=True)
    asked = asyncio.create_task(bench.failure())
    await until(lambda: bench.server.names.count("a.test"))
    bench.server.hang_up()
    told = await asked
    assert (told.reason, "closed the connection" in str(told)) == (Reason.DNS_ERROR, True)
    assert bench.server.names.count("a.test") == 1


async def test_a_silent_connection_is_not_used_again(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "SILENCE_S", 0.0)
    bench.server.names.zone["a.test"] = Rule(silent=True)
    assert (await bench.failure(timeout_s=0.05)).reason is Reason.DNS_TIMEOUT
    assert (await bench.ask("b.test")).addresses == (ADDRESS,)


async def test_an_answer_that_comes_too_late_is_nobodys(bench: Bench):
    gate = asyncio.Event()
    bench.server.names.zone["late.test"] = Rule(("192.0.2.2",), gate=gate)
    late = asyncio.create_task(bench.ask("late.test"))
    await until(lambda: bench.server.names.count("late.test"))
    late.cancel()
    await asyncio.wait([late])
    (connection,) = bench.stream.connections
    assert isinstance(connection, DnsStream)
    assert len(connection._given_up) == 1
    gate.set()
    await until(lambda: not connection._given_up)
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 1


async def test_a_connection_with_many_questions_that_were_given_up_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dns_stream, "MAX_GIVEN_UP", 1)
    bench.server.names.zone["a.test"] = Rule(silent=True)
    asked = asyncio.create_task(bench.ask())
    await until(lambda: bench.server.names.count("a.test"))
    asked.cancel()
    await asyncio.wait([asked])
    await bench.ask("b.test")
    assert bench.server.connections == 2


async def test_an_idle_connection_is_closed(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "IDLE_S", 0.0)
    await bench.ask()
    await until(lambda: not bench.server.open)
    assert bench.stream.connections == []


async def test_a_retired_connection_closes_behind_its_questions(bench: Bench):
    await bench.ask()
    gate = bench.server.names.zone["slow.test"] = Rule(("192.0.2.2",), gate=asyncio.Event())
    slow = asyncio.create_task(bench.ask("slow.test"))
    await until(lambda: bench.server.names.count("slow.test"))
    bench.client.retire()
    assert len(bench.stream.connections) == 1
    assert gate.gate is not None
    gate.gate.set()
    await slow
    await until(lambda: not bench.server.open)
    assert (await bench.ask()).addresses == (ADDRESS,)
    await until(lambda: not bench.server.open)


async def test_a_closed_client_leaves_nobody_waiting(bench: Bench):
    bench.server.names.zone["a.test"] = Rule(silent=True)
    asked = asyncio.create_task(bench.failure())
    await until(lambda: bench.server.names.count("a.test"))
    bench.client.close()
    assert "closed" in str(await asked)
    assert bench.stream.connections == []


@pytest.mark.parametrize("raw", [b"\0" * 20, b"\x81\x80\0\1\0\0\0\0\0\0\1b\4test\0\0\1\0\1"])
async def test_an_answer_to_another_question_ends_the_connection(bench: Bench, raw: bytes):
    bench.server.names.zone["a.test"] = Rule(raw=raw)
    assert "another question" in str(await bench.failure())
    assert (await bench.ask("b.test")).addresses == (ADDRESS,)
    assert bench.server.connections == 2


async def test_a_long_answer_fails_its_question_alone(bench: Bench):
    gate = asyncio.Event()
    bench.server.names.zone["long.test"] = Rule(raw=b"\0" * MAX_REPLY_BYTES)
    bench.server.names.zone["slow.test"] = Rule(("192.0.2.2",), gate=gate)
    await bench.ask()
    slow = asyncio.create_task(bench.ask("slow.test"))
    await until(lambda: bench.server.names.count("slow.test"))
    assert "is not read" in str(await bench.failure("long.test"))
    gate.set()
    assert (await slow).addresses == (ip_address("192.0.2.2"),)
    assert bench.server.names.count("slow.test") == 2


async def test_nobody_listens(bench: Bench):
    told = await bench.failure(text="tls://127.0.0.1:1#dns.test")
    assert "ConnectionRefusedError" in str(told)


@pytest.mark.parametrize("bench", ["tls"], indirect=True)
async def test_a_server_that_cannot_be_verified_is_told_with_what_it_presented_and_what_was_expected(bench: Bench):
    at = f"tls://127.0.0.1:{bench.server.port}"
    for name, expected in (("#other.test", "other.test"), ("", "127.0.0.1")):
        told = str(await bench.failure(text=at + name))
        assert told.startswith(f"tls://127.0.0.1 port {bench.server.port}: the certificate of the DNS server is for")
        assert "presented: subject" in told
        assert "names dns.test, issuer" in told
        assert f"expected: name {expected}, signed by ConfigMap agents/roots" in told
    bench.client = DnsClient(tls=BackendTlsIR(ca_pem=Pki().ca_pem))
    told = str(await bench.failure())
    assert "the authority that signed it is not known" in told
    assert "dns.caCertificateRefs" in told


async def test_an_expired_certificate_is_told(pki: Pki):
    from egressproxy.net.tls_contexts.contexts import server_context

    expired = server_context(pki.listener("dns.test", expired=True), ("dot",))
    server = await StreamNameServer(DnsServer({}), expired).start()
    bench = Bench(server, "tls", pki.ca_pem)
    assert "has expired on " in str(await bench.failure())
    bench.client.close()
    server.stop()


async def test_bytes_that_become_no_answer_count_as_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "SILENCE_S", 0.0)
    accepted = trickled = 0

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted, trickled
        accepted += 1
        await reader.read(1)
        writer.write(b"\x10\x00")  # an answer of 4,096 bytes
        while not writer.transport.is_closing():
            writer.write(b"\0")
            trickled += 1
            await asyncio.sleep(0.001)

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    client = DnsClient()
    servers = [parse_server(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "tcp")]
    for asked in (1, 2):
        with pytest.raises(DnsFailure) as caught:
            await client.ask(servers, dns.name.from_text("a.test").to_wire(), dns.rdatatype.A, 0.2)
        assert caught.value.reason is Reason.DNS_TIMEOUT
        assert trickled > 1
        assert accepted >= asked
        await until(lambda: not any(each.connections for each in client._connections.values()))
    server.close()


async def test_a_server_that_sends_what_nobody_has_asked_for_is_left():
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(2), "big")
        number = (int.from_bytes((await reader.readexactly(size))[:2], "big") + 1) % 65536
        writer.write((b"\x00\x0c" + number.to_bytes(2, "big") + bytes(10)) * (dns_stream.MAX_STRAYS + 1))

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    client = DnsClient()
    servers = [parse_server(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "tcp")]
    with pytest.raises(DnsFailure, match="nobody has asked for"):
        await client.ask(servers, dns.name.from_text("a.test").to_wire(), dns.rdatatype.A, WAIT_S)
    server.close()
