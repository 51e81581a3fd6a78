"""DNS over HTTPS from a server that means harm: what it sends is bounded, and holds neither memory nor questions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from ipaddress import ip_address

import dns.name
import dns.rdatatype
import pytest
import pytest_asyncio
from h2.settings import SettingCodes

from egressproxy.errors import Reason
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.upstream import dns_https, dns_server
from egressproxy.upstream.dns_client import DnsClient, DnsFailure
from egressproxy.upstream.dns_message import MAX_REPLY_BYTES, DnsAnswer
from egressproxy.upstream.dns_server import parse_server
from tests.support.dns import DnsServer, Rule
from tests.support.dns_https import OK, HttpsNameServer
from tests.support.http2 import Http2Server
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

ADDRESS = ip_address("192.0.2.1")
#: What it does in place of an answer to a question: its side of the connection, the stream, and where it writes.
Deed = Callable[[Http2Server, int, asyncio.StreamWriter], None]


class HostileServer(HttpsNameServer):
    """`deed` is done in place of the next answers, as often as it is set; the sides of all connections are `sides`."""

    deed: Deed | None = None
    max_streams = 100

    async def _answer(self, h2: Http2Server, stream: int, wire: bytes, writer: asyncio.StreamWriter) -> None:
        if self.deed is None:
            await super()._answer(h2, stream, wire, writer)
        elif not writer.transport.is_closing():
            self.deed(h2, stream, writer)
            writer.write(h2.outgoing())


class Bench:
    def __init__(self, server: HostileServer, pki: Pki) -> None:
        self.server = server
        self.client = DnsClient(tls=BackendTlsIR(ca_pem=pki.ca_pem))

    async def ask(self, timeout_s: float = WAIT_S) -> DnsAnswer:
        servers = [parse_server(f"https://127.0.0.1:{self.server.port}/q#dns.test")]
        return await self.client.ask(servers, dns.name.from_text("a.test").to_wire(), dns.rdatatype.A, timeout_s)

    async def failure(self, timeout_s: float = WAIT_S) -> DnsFailure:
        with pytest.raises(DnsFailure) as caught:
            await self.ask(timeout_s)
        return caught.value

    @property
    def connection(self) -> dns_https.DnsHttps:
        """The last one."""
        (https,) = self.client._connections.values()
        connection = https.connections[-1]
        assert isinstance(connection, dns_https.DnsHttps)
        return connection


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


@pytest_asyncio.fixture
async def bench(pki: Pki) -> AsyncIterator[Bench]:
    names = DnsServer({"a.test": Rule(("192.0.2.1",), ttl=60)})
    server = HostileServer(names, pki.server_context("dns.test"))
    made = Bench(server, pki)
    await server.start()
    yield made
    made.client.close()
    server.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110   what is waited for comes over a socket
            await asyncio.sleep(0.001)


def ok(h2: Http2Server, stream: int) -> None:
    h2.h2.send_headers(stream, list(OK))


async def test_it_is_told_that_nothing_may_be_pushed_and_a_server_that_does_is_left(bench: Bench):
    told: list[int] = []

    def push(h2: Http2Server, stream: int, _writer: asyncio.StreamWriter) -> None:
        told.append(h2.h2.remote_settings[SettingCodes.ENABLE_PUSH])
        h2.h2.remote_settings._settings[SettingCodes.ENABLE_PUSH][0] = 1  # it does not care
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"dns.test"), (b":path", b"/")]
        h2.h2.push_stream(stream, stream + 1, fields)

    bench.server.deed = push
    failure = await bench.failure()
    assert told[0] == 0
    assert (failure.reason, "breaks HTTP/2" in str(failure)) == (Reason.DNS_ERROR, True), str(failure)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (((b":status", b"302"), (b"location", b"https://127.0.0.1:1/q")), "status 302"),
        ((*OK, (b"content-encoding", b"gzip")), "content encoding"),
        (((b":status", b"200"),), "application/dns-message"),
        (((b":status", b"200"), (b"content-type", b"application/dns-message, text/html")), "application/dns-message"),
    ],
)
async def test_nothing_is_followed_unpacked_or_guessed(bench: Bench, head: tuple[tuple[bytes, bytes], ...], told: str):
    bench.server.head = head
    failure = await bench.failure()
    assert (failure.reason, told in str(failure)) == (Reason.DNS_ERROR, True), str(failure)
    bench.server.head = OK
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 1


@pytest.mark.parametrize("rule", [Rule(("192.0.2.9",), wrong_id=True), Rule(("192.0.2.9",), wrong_question=True)])
async def test_an_answer_to_another_question_is_none(bench: Bench, rule: Rule):
    bench.server.names.zone["a.test"] = rule
    failure = await bench.failure(timeout_s=1.0)
    assert failure.reason in (Reason.DNS_ERROR, Reason.DNS_TIMEOUT)
    bench.server.names.zone["a.test"] = Rule(("192.0.2.1",))
    assert (await bench.ask()).addresses == (ADDRESS,)


async def test_of_an_answer_that_does_not_end_no_more_is_kept_than_an_answer_may_have(bench: Bench):
    kept: list[int] = []

    def pour(h2: Http2Server, stream: int, writer: asyncio.StreamWriter) -> None:
        ok(h2, stream)
        for _ in range(3):
            h2.h2.send_data(stream, bytes(16000))
        (question,) = bench.connection._calls.values()
        question.answer.add_done_callback(lambda _: kept.append(len(question.body)))

    bench.server.deed = pour
    assert "more than" in str(await bench.failure())
    assert kept[0] <= MAX_REPLY_BYTES + 16384
    bench.server.deed = None
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 1


async def test_a_head_of_many_fields_is_not_read(bench: Bench):
    bench.server.head = (*OK, *[(b"x", b"")] * 400)
    assert "breaks HTTP/2" in str(await bench.failure())


async def test_interim_heads_without_end_are_left(bench: Bench):
    def hint(h2: Http2Server, stream: int, _writer: asyncio.StreamWriter) -> None:
        for _ in range(20):
            h2.h2.send_headers(stream, [(b":status", b"103")])

    bench.server.deed = hint
    assert "much, and no answer" in str(await bench.failure())


async def test_frames_without_end_that_bring_no_answer_are_left(bench: Bench):
    def flood(h2: Http2Server, stream: int, _writer: asyncio.StreamWriter) -> None:
        ok(h2, stream)
        for _ in range(dns_https.MAX_EVENTS + 1):
            h2.h2.send_data(stream, b"")

    bench.server.deed = flood
    assert "much, and no answer" in str(await bench.failure())
    bench.server.deed = None
    assert (await bench.ask()).addresses == (ADDRESS,)


async def test_a_server_that_does_not_read_what_it_makes_us_say_is_left(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_https, "MAX_EVENTS", 1 << 30)
    stopped = asyncio.Event()

    def ping(h2: Http2Server, _stream: int, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        # What the kernel keeps for both is little: what is not read is seen sooner.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = bench.connection._transport
        assert ours is not None
        ours.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        frames = b"".join(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8) for _ in range(1000))

        connection = bench.connection

        async def go_on() -> None:
            while not connection.is_gone:
                writer.write(frames)
                await writer.drain()
                await asyncio.sleep(0)
            stopped.set()

        bench.going = asyncio.create_task(go_on())  # type: ignore[attr-defined]

    bench.server.deed = ping
    assert "does not read" in str(await bench.failure())
    await stopped.wait()


async def test_questions_that_a_server_takes_none_of_leave_nothing_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dns_https.DnsHttps, "max_connections", 1)
    bench.server.max_streams = 1
    await bench.ask()
    bench.server.deed = lambda _h2, _stream, _writer: None
    asked = [asyncio.create_task(bench.ask()) for _ in range(50)]
    await until(lambda: len(bench.connection._waiting) == 49)
    connection = bench.connection
    (asking,) = connection._calls.values()
    for each in list(connection._waiting):
        each.answer.cancel()
    await until(lambda: not connection._waiting)
    assert list(connection._calls.values()) == [asking]
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)


async def test_a_retired_connection_closes_though_a_question_that_was_given_up_had_waited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dns_https.DnsHttps, "max_connections", 1)
    bench.server.max_streams = 1
    await bench.ask()
    bench.server.deed = lambda _h2, _stream, _writer: None
    asked = [asyncio.create_task(bench.ask()) for _ in range(2)]
    await until(lambda: len(bench.connection._waiting) == 1)
    connection = bench.connection
    bench.client.retire()
    for question in [*connection._waiting, *connection._calls.values()]:
        question.answer.cancel()
    await until(lambda: connection.is_gone)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)


async def test_a_server_that_pings_and_does_not_answer_counts_as_silent(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dns_server, "SILENCE_S", 0.0)
    await bench.ask()
    bench.server.deed = lambda h2, _stream, _writer: h2.h2.ping(bytes(8))
    assert (await bench.failure(timeout_s=0.2)).reason is Reason.DNS_TIMEOUT
    bench.server.deed = None
    assert (await bench.ask()).addresses == (ADDRESS,)
    assert bench.server.connections == 2


async def test_a_server_that_ends_each_stream_or_connection_is_an_error_and_leaves_nobody_waiting(bench: Bench):
    bench.server.deed = lambda h2, stream, _writer: h2.h2.reset_stream(stream)
    assert "refused the stream" in str(await bench.failure())
    bench.server.deed = lambda h2, _stream, _writer: h2.h2.close_connection()
    assert "ended the connection" in str(await bench.failure())
    assert bench.server.connections == 2


async def test_of_closed_streams_little_is_remembered(bench: Bench):
    for _ in range(150):
        await bench.ask()
    assert len(bench.connection._h2._closed_streams) <= 128
    assert bench.server.connections == 1
