from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from egressproxy.errors import Reason, RetrySafety
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.net.loop import new_loop
from egressproxy.net.tls import TlsStream
from egressproxy.net.tls_contexts.contexts import client_tls, server_context
from egressproxy.net.tls_failures import TlsTruncated, tls_fault
from tests.support.pki import Pki
from tests.support.waiting import WAIT_S

PKI = Pki()
SERVERS = {version: server_context(PKI.listener("a.test", "127.0.0.1")) for version in ("1.2", "1.3")}
SERVERS["1.2"].maximum_version = ssl.TLSVersion.TLSv1_2
SERVER = SERVERS["1.3"]
TRUST = BackendTlsIR(ca_pem=PKI.ca_pem)


class Wire(asyncio.Transport):
    """A transport in memory: what is written waits until `carry` hands it to the peer's protocol."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        self.closing = self.aborted = self.lost = self.paused = False
        self.unsent = 0  # what get_write_buffer_size says

    def write(self, data: Any) -> None:
        assert not self.closing
        assert data
        self.sent += data

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True
        self.sent.clear()

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 443) if name == "peername" else default

    def lose(self, exc: Exception | None = None) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.protocol.connection_lost(exc)


class Inner(asyncio.Protocol):
    """Records what it is told."""

    def __init__(self, keeps_open: bool = False) -> None:
        self.heard: list[Any] = []
        self.data = b""
        self.keeps_open = keeps_open
        self.stream: TlsStream | None = None
        self.on_data: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsStream)
        self.stream = transport
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.on_data:
            self.on_data()

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return self.keeps_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(("lost", type(exc) if exc else None))

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")


class Pair:
    """A client and a server TlsStream, and the wires between them."""

    def __init__(self, version: str = "1.3", host: str = "a.test", spec: BackendTlsIR = TRUST, **options: Any) -> None:
        self.told: list[tuple[str, Exception | None]] = []
        self.client_inner, self.server_inner = Inner(**options), Inner(**options)
        tls = client_tls(spec, host)
        self.client = TlsStream(
            tls.context,
            server_side=False,
            server_hostname=tls.server_hostname,
            inner=self.client_inner,
            on_handshake=lambda _s, e: self.told.append(("client", e)),
            verify=tls.verify,
        )
        self.server = TlsStream(
            SERVERS[version],
            server_side=True,
            server_hostname=None,
            inner=self.server_inner,
            on_handshake=lambda _s, e: self.told.append(("server", e)),
        )
        self.client_wire, self.server_wire = Wire(self.client), Wire(self.server)

    def start(self) -> Pair:
        self.client.connection_made(self.client_wire)
        self.server.connection_made(self.server_wire)
        return self

    def carry(self, step: int = 0) -> Pair:
        """Carry bytes both ways, in pieces of `step`, until nothing moves; then closed wires report their end."""
        moved = True
        while moved:
            moved = False
            for source, target in ((self.client_wire, self.server_wire), (self.server_wire, self.client_wire)):
                if source.sent and not target.lost and not target.paused:
                    size = step or len(source.sent)
                    data, source.sent[:] = bytes(source.sent[:size]), source.sent[size:]
                    if not target.closing:
                        target.protocol.data_received(data)
                    moved = True
        for one, other in ((self.client_wire, self.server_wire), (self.server_wire, self.client_wire)):
            if one.closing and not one.lost and not one.sent:
                one.lose()
                if not other.closing and not other.paused:
                    self.end(other)
        return self

    @staticmethod
    def end(wire: Wire) -> None:
        """TCP FIN arrives."""
        if not wire.protocol.eof_received():
            wire.close()
            wire.lose()


@pytest.fixture(params=["1.2", "1.3"])
def pair(request: pytest.FixtureRequest) -> Pair:
    made = Pair(request.param).start().carry()
    assert made.told in ([("client", None), ("server", None)], [("server", None), ("client", None)])
    assert made.client._ssl.version() == f"TLSv{request.param}"
    return made


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_the_handshake_works_in_pieces_of_any_size(step: int):
    made = Pair().start().carry(step)
    assert sorted(made.told) == [("client", None), ("server", None)]
    assert made.client_inner.heard == made.server_inner.heard == ["made"]


def test_data_goes_both_ways(pair: Pair):
    pair.client.write(b"ping")
    pair.carry()
    assert pair.server_inner.data == b"ping"
    pair.server.writelines([b"po", b"ng"])
    pair.carry()
    assert pair.client_inner.data == b"pong"


@pytest.mark.parametrize("size", [1, 16383, 16384, 16385, 300_000])
def test_sizes_around_a_record_arrive_whole(pair: Pair, size: int):
    pair.client.write(memoryview(bytes(i % 251 for i in range(size))))
    pair.carry(5000)
    assert pair.server_inner.data == bytes(i % 251 for i in range(size))


def test_a_small_message_is_one_write_below(pair: Pair):
    pair.client.writelines([b"head", b"body"])
    assert pair.client_wire.sent[:3] == b"\x17\x03\x03"
    assert len(pair.client_wire.sent) == 5 + int.from_bytes(pair.client_wire.sent[3:5], "big")


def test_towards_a_client_little_passes_through_openssl_at_one_time(pair: Pair):
    """Its buffers never shrink, and an idle connection would keep what was said last."""
    held: list[int] = []
    pair.server_inner.on_data = lambda: held.append(pair.server._in.pending)
    sent = bytes(range(256)) * 1024
    pair.client.write(sent)
    pair.carry()
    assert pair.server_inner.data == sent
    assert max(held) <= 16384
    sizes: list[int] = []
    wire = pair.server._transport
    plain = wire.writelines
    wire.writelines = lambda pieces: (sizes.extend(map(len, pieces)), plain(pieces))[1]  # type: ignore[method-assign, func-returns-value, assignment]
    pair.server.write(sent)
    pair.carry()
    assert pair.client_inner.data == sent
    assert len(sizes) == 16
    assert max(sizes) < 17_000


def test_close_notify_is_a_clean_end(pair: Pair):
    pair.server.write(b"all")
    pair.server.close()
    pair.carry()
    assert pair.client_inner.data == b"all"
    assert pair.client_inner.heard == ["made", "eof", ("lost", None)]
    assert pair.server_inner.heard == ["made", ("lost", None)]


def test_a_fin_without_close_notify_is_a_truncation(pair: Pair):
    pair.server.write(b"par")
    pair.carry()
    pair.end(pair.client_wire)
    assert pair.client_inner.data == b"par"
    assert pair.client_inner.heard == ["made", ("lost", TlsTruncated)]


def test_a_fin_in_the_middle_of_a_record_is_a_truncation(pair: Pair):
    pair.server.write(b"partial")
    del pair.server_wire.sent[-3:]
    pair.carry()
    pair.end(pair.client_wire)
    assert pair.client_inner.data == b""
    assert pair.client_inner.heard == ["made", ("lost", TlsTruncated)]


def test_a_reset_is_reported_as_it_is(pair: Pair):
    pair.client_wire.lose(ConnectionResetError())
    assert pair.client_inner.heard == ["made", ("lost", ConnectionResetError)]


def test_a_lost_transport_without_an_error_is_a_truncation(pair: Pair):
    pair.client_wire.lose()
    assert pair.client_inner.heard == ["made", ("lost", TlsTruncated)]


def test_a_forged_record_ends_the_connection_with_an_alert(pair: Pair):
    pair.client.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert pair.client_wire.closing
    assert not pair.client_wire.aborted
    assert pair.client_wire.sent[0] in (0x15, 0x17)
    pair.client_wire.lose()
    assert pair.client_inner.heard == ["made", ("lost", ssl.SSLError)]
    assert pair.client_inner.data == b""


def test_a_forged_record_while_the_peer_does_not_read_aborts(pair: Pair):
    pair.client_wire.unsent = 70_000
    pair.client.data_received(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert pair.client_wire.aborted


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_half_close_keeps_the_other_direction(version: str):
    pair = Pair(version, keeps_open=True).start().carry()
    pair.client.write(b"question")
    pair.client.write_eof()
    pair.client.write(b"never sent")
    pair.carry()
    assert pair.server_inner.data == b"question"
    assert pair.server_inner.heard == ["made", "eof"]
    pair.server.write(b"answer")
    pair.server.write_eof()
    pair.carry()
    assert pair.client_inner.data == b"answer"
    assert pair.client_inner.heard == ["made", "eof"]
    assert not pair.client_wire.closing


def test_a_fin_after_close_notify_leaves_the_other_direction_open():
    pair = Pair(keeps_open=True).start().carry()
    pair.client.write_eof()
    pair.carry()
    pair.end(pair.server_wire)
    pair.server.write(b"answer")
    pair.server.close()
    pair.carry()
    assert pair.client_inner.data == b"answer"
    assert pair.server_inner.heard == ["made", "eof", ("lost", None)]


async def test_half_close_loses_nothing_that_a_paused_reader_has_not_read(pair: Pair):
    pair.client.pause_reading()
    pair.server.write(b"answer")
    pair.client_wire.paused = False  # the bytes are here already when reading is paused
    pair.carry()
    pair.client.write_eof()
    assert pair.client_inner.data == b""
    pair.client.resume_reading()
    await asyncio.sleep(0)
    assert pair.client_inner.data == b"answer"
    pair.carry()
    assert "eof" in pair.server_inner.heard


async def test_a_paused_reader_gets_nothing_until_it_resumes(pair: Pair):
    pair.client_inner.on_data = pair.client.pause_reading
    pair.server.write(bytes(100_000))
    pair.carry()
    assert len(pair.client_inner.data) == 16384
    assert pair.client_wire.paused
    pair.client_inner.on_data = None
    pair.client.resume_reading()
    assert len(pair.client_inner.data) == 16384, "never from within resume_reading"
    await asyncio.sleep(0)
    pair.carry()
    assert len(pair.client_inner.data) == 100_000


async def test_a_truncation_behind_a_paused_reader_is_still_seen(pair: Pair):
    pair.client_inner.on_data = pair.client.pause_reading
    pair.server.write(bytes(40_000))
    pair.carry()
    assert pair.client.eof_received() is True
    pair.client_inner.on_data = None
    pair.client.resume_reading()
    await asyncio.sleep(0)
    assert len(pair.client_inner.data) == 40_000
    assert pair.client_wire.closing
    pair.client_wire.lose()
    assert pair.client_inner.heard[-1] == ("lost", TlsTruncated)


def test_nothing_is_delivered_after_close(pair: Pair):
    pair.client_inner.on_data = pair.client.close
    pair.server.write(bytes(50_000))
    pair.carry()
    assert len(pair.client_inner.data) == 16384
    assert pair.client.is_closing()
    pair.client.write(b"ignored")
    assert pair.client_inner.heard[-1] == ("lost", None)


def test_back_pressure_is_passed_on(pair: Pair):
    pair.client.pause_writing()
    pair.client.resume_writing()
    assert pair.client_inner.heard == ["made", "pause", "resume"]


def test_back_pressure_from_the_handshake_reaches_the_inner_protocol():
    pair = Pair().start()
    pair.client.pause_writing()
    pair.carry()
    assert pair.client_inner.heard == ["made", "pause"]


async def test_a_new_inner_protocol_is_told_of_a_full_buffer_too(pair: Pair):
    pair.client.pause_writing()
    heir = Inner()
    pair.client.set_protocol(heir)
    assert heir.heard == [], "not from within the call"
    await asyncio.sleep(0)
    pair.client.resume_writing()
    assert heir.heard == ["pause", "resume"]


def test_abort_sends_nothing(pair: Pair):
    pair.client.abort()
    assert pair.client_wire.aborted
    pair.client_wire.lose()
    assert pair.client_inner.heard == ["made", ("lost", None)]


def test_extra_info_is_of_the_transport_below_but_for_tls(pair: Pair):
    assert pair.client.get_extra_info("peername") == ("192.0.2.1", 443)
    assert pair.client.get_extra_info("ssl_object") is pair.client._ssl


def test_a_wrong_name_fails_the_handshake_and_the_inner_protocol_never_hears():
    pair = Pair(host="b.test").start().carry()
    told = dict(pair.told)
    assert isinstance(told["client"], ssl.SSLCertVerificationError)
    fault = tls_fault(told["client"])
    assert (fault.reason, fault.status) == (Reason.TLS_CERTIFICATE, 502)
    assert "name" in fault.message
    assert "b.test" not in fault.message
    assert pair.client_inner.heard == []
    assert pair.client_wire.lost


def test_the_verifier_is_part_of_the_handshake():
    pair = Pair(spec=BackendTlsIR(ca_pem=PKI.ca_pem, names=("other.test",))).start().carry()
    told = dict(pair.told)
    assert isinstance(told["client"], ssl.SSLCertVerificationError)
    assert pair.client_inner.heard == []
    assert "other.test" not in tls_fault(told["client"]).message


def test_plain_http_instead_of_a_server_hello_is_a_protocol_error():
    pair = Pair()
    pair.client.connection_made(pair.client_wire)
    pair.client.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    ((_who, error),) = pair.told
    assert error is not None
    fault = tls_fault(error, RetrySafety.SAFE)
    assert (fault.reason, fault.status, fault.retry) == (Reason.TLS_PROTOCOL, 502, RetrySafety.SAFE)
    assert pair.client_inner.data == b""


def test_an_end_during_the_handshake_is_told_once():
    pair = Pair().start()
    pair.end(pair.client_wire)
    pair.client_wire.lose()
    assert [who for who, _ in pair.told] == ["client"]
    assert tls_fault(pair.told[0][1] or OSError()).reason is Reason.TLS_PROTOCOL


def test_a_reset_during_the_handshake_is_told_once():
    pair = Pair().start()
    pair.client_wire.lose(ConnectionResetError())
    assert [who for who, _ in pair.told] == ["client"]


def test_a_handshake_that_takes_too_long_is_a_timeout():
    pair = Pair().start()
    pair.client.abort_handshake()
    assert pair.client_wire.aborted
    pair.client_wire.lose()
    ((_who, error),) = pair.told
    fault = tls_fault(error or OSError())
    assert (fault.reason, fault.status) == (Reason.TLS_TIMEOUT, 504)


def test_abort_handshake_does_nothing_afterwards(pair: Pair):
    pair.client.abort_handshake()
    assert not pair.client_wire.closing


def test_close_within_on_handshake_keeps_the_inner_protocol_out():
    pair = Pair()
    pair.client._on_handshake = lambda stream, _error: stream.close()
    pair.start().carry()
    assert pair.client_inner.heard == []
    assert pair.client_wire.lost


def test_the_inner_protocol_may_be_chosen_by_alpn():
    pair = Pair()
    chosen = Inner()
    pair.client._on_handshake = lambda stream, _error: stream.set_protocol(chosen)
    pair.start().carry()
    assert chosen.heard == ["made"]
    assert pair.client_inner.heard == []


def test_what_comes_with_the_end_of_the_handshake_is_delivered():
    pair = Pair()
    pair.client_inner.connection_made = lambda stream: stream.write(b"at once")  # type: ignore[method-assign,union-attr]
    pair.start().carry()
    assert pair.server_inner.data == b"at once"


def test_writing_before_the_handshake_is_a_mistake():
    pair = Pair().start()
    with pytest.raises(RuntimeError):
        pair.client.write(b"early")


def test_tls_inside_tls(pair: Pair):
    """To an origin through a parent that is reached over TLS."""
    inside = Pair()
    pair.client.set_protocol(inside.client)
    pair.server.set_protocol(inside.server)
    inside.client.connection_made(pair.client)
    inside.server.connection_made(pair.server)
    pair.carry()
    assert sorted(inside.told) == [("client", None), ("server", None)]
    inside.client.write(b"deep" * 10_000)
    pair.carry(4000)
    assert inside.server_inner.data == b"deep" * 10_000
    inside.server.close()
    pair.carry()
    assert inside.client_inner.heard == ["made", "eof", ("lost", None)]


@pytest.fixture
def run() -> Any:
    def runs(main: Any) -> Any:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(main)

    return runs


def test_real_sockets_carry_a_request_and_tell_truncation_from_an_end(run: Any):
    async def ends(cut: bool) -> list[Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        class Origin(Inner):
            def data_received(self, data: bytes) -> None:
                assert self.stream
                self.stream.write(b"x" * 200_000)
                if cut:
                    self.stream._transport.close()
                else:
                    self.stream.close()

        class Client(Inner):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                assert self.stream
                self.stream.write(b"GET")

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                done.set_result(None)

        client = Client()
        tls = client_tls(TRUST, "127.0.0.1")
        server = await loop.create_server(
            lambda: TlsStream(
                SERVER, server_side=True, server_hostname=None, inner=Origin(), on_handshake=lambda _s, _e: None
            ),
            "127.0.0.1",
        )
        port = server.sockets[0].getsockname()[1]
        await loop.create_connection(
            lambda: TlsStream(
                tls.context,
                server_side=False,
                server_hostname=tls.server_hostname,
                inner=client,
                on_handshake=lambda _s, _e: None,
            ),
            "127.0.0.1",
            port,
        )
        await asyncio.wait_for(done, WAIT_S)
        server.close()
        assert len(client.data) == 200_000
        return client.heard

    assert run(ends(cut=False)) == ["made", "eof", ("lost", None)]
    assert run(ends(cut=True)) == ["made", ("lost", TlsTruncated)]
