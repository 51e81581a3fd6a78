"""Conversations: the real data plane between a client and origins that a test speaks for, byte by byte.

talk = conversation(MANIFESTS)
talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"
talk.dialled("a.example", 80)
talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
talk.client << b"HTTP/1.1 204 No Content\r\nVia: 1.1 gw\r\n\r\n"

Everything between the two transports is what runs in production. On the wire "memory" the transports, the dialer and
the clock are fakes, on a real loop; on "sockets" they are real ones over loopback, on uvloop. A test that runs on both
proves the fakes. The resolver is a fake on both: every name has an address of its own.

What is volatile is made constant: the pseudonym in Via is `gw`, request ids are `test-1`, `test-2` …, and Date lines
that the gateway generates are checked and taken out.

`close` (the fixtures call it) lets everybody leave and then checks what has to hold after any conversation: nothing is
leaked, nothing was logged as an error, and metrics, access log and the bytes on the wire agree.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address
from typing import Any, NoReturn, TypeVar, cast

import yaml

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import load_text
from egressproxy.doors.catalog import Catalog
from egressproxy.doors.products import build
from egressproxy.errors import UpstreamFault
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.settings import CalledBackendRef, FilterConfig
from egressproxy.gateway.backends.network import Network, NetworkReports
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.connection_manager import HttpConnectionManager
from egressproxy.gateway.listeners.bound_port import BoundPort
from egressproxy.gateway.open_connections import OpenConnections
from egressproxy.ir.gateway import ConfigIR
from egressproxy.model.authority import IPAddress
from egressproxy.net.listening import bind
from egressproxy.net.loop import new_loop
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_contexts.verify_callbacks import can_take_any_certificate
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics
from egressproxy.upstream.dialer import Dialer
from tests.support.compiling import compile_valid
from tests.support.manifests import DUMPER, Manifest
from tests.support.waiting import WAIT_S

PIECE = 64 * 1024
#: More than an exchange takes from any octet to the next one that somebody else has to send.
TURNS = 100
DATE = re.compile(rb"\r\nDate: ([A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT)")
FILTER_TYPE = "test.example/Scripted:v1"
T = TypeVar("T")


# --- configuration -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ScriptedConfig(FilterConfig):
    use: str
    calls: tuple[CalledBackendRef, ...] = ()


def scripted_filter(name: str, phase: str = "request-headers", calls: Sequence[Manifest] = (), **more: Any) -> Manifest:
    """The `extensions` entry that places the filter given to `conversation(filters={name: …})`.

    `calls` are backendRefs: the filter gets what it can call as its attribute `calls`.
    """
    config = {"use": name, "calls": list(calls)} if calls else {"use": name}
    return {"name": name, "type": FILTER_TYPE, "phase": phase, "config": config, **more}


def scripted_type(filters: dict[str, Filter]) -> FilterType:
    def make(context: FilterContext) -> Filter:
        made = filters[cast(ScriptedConfig, context.config).use]
        if context.calls:
            made.calls = context.calls  # type: ignore[attr-defined]
        return made

    def refs(config: ScriptedConfig) -> tuple[tuple[str, CalledBackendRef], ...]:
        return tuple((f"calls[{number}]", ref) for number, ref in enumerate(config.calls))

    every = frozenset(Phase)
    return FilterType(FILTER_TYPE, every, ScriptedConfig, make, also=every, backend_refs=refs)


def compiled_spec(written: str | ConfigIR | Iterable[Manifest], catalog: Catalog | None = None) -> ConfigIR:
    """YAML text, manifests or a spec, as the data plane needs it."""
    if isinstance(written, ConfigIR):
        return written
    text = written if isinstance(written, str) else yaml.dump_all(written, Dumper=DUMPER)
    defaults = Defaults(("127.0.0.1",), can_take_any_certificate=can_take_any_certificate, experimental=True)
    return compile_valid(load_text(text, "test.yaml"), catalog or Catalog(), defaults).spec


# --- what stands around the data plane -----------------------------------------------------------------------------
class Records:
    """What the access log writes, as dictionaries."""

    def __init__(self) -> None:
        self.dropped = 0
        self.written = 0
        self.access_log = AccessLog(self)
        self._lines: list[dict[str, Any]] = []

    def put(self, chunk: bytes, lines: int) -> None:
        self._lines += map(json.loads, chunk.splitlines())
        self.written += lines

    def reopen(self) -> None: ...

    def close(self, timeout_s: float) -> None: ...

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Those of every exchange that has ended."""
        self.access_log.flush()
        return self._lines


class Names:
    """A resolver: every name has an address, unless it is held back (`hold`) or has addresses set (`zone`)."""

    def __init__(self) -> None:
        self.zone: dict[str, tuple[IPAddress, ...]] = {}
        self.ttl: dict[str, float] = {}
        self.held: dict[str, list[asyncio.Future[tuple[IPAddress, ...]]]] = {}
        self.faults: dict[str, Callable[[], UpstreamFault]] = {}

    def addresses(self, host: str) -> tuple[IPAddress, ...]:
        return self.zone.setdefault(host, (IPv4Address("93.184.216.1") + len(self.zone),))

    def name_of(self, address: IPAddress) -> str:
        return next((name for name, known in self.zone.items() if address in known), str(address))

    def hold(self, host: str) -> None:
        self.held[host] = []

    def fresh_s(self, host: str) -> float:
        """A name whose life nobody has set (`ttl`) holds for ever."""
        return self.ttl.get(host, math.inf)

    def known(self, host: str) -> tuple[IPAddress, ...] | None:
        return self.zone.get(host)

    def cached(self, host: str) -> tuple[IPAddress, ...] | None:
        return None

    def resolve(self, host: str, _client: str = "", _identity: str = "") -> asyncio.Future[tuple[IPAddress, ...]]:
        future: asyncio.Future[tuple[IPAddress, ...]] = asyncio.get_running_loop().create_future()
        if host in self.held:
            self.held[host].append(future)
        elif host in self.faults:
            future.set_exception(self.faults[host]())
        else:
            future.set_result(self.addresses(host))
        return future


class Dial:
    """One call of the dialer."""

    def __init__(self, endpoints: Sequence[tuple[IPAddress, int]], factory: Callable[[], asyncio.Protocol]) -> None:
        self.endpoints = list(endpoints)
        self.factory = factory
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class MemoryDialer:
    """Keeps dials until the test answers them."""

    def __init__(self) -> None:
        self.dials: list[Dial] = []

    def dial(
        self,
        endpoints: Sequence[tuple[IPAddress, int]],
        factory: Callable[[], asyncio.Protocol],
        *,
        timeout_s: float,
        source: Any = None,
    ) -> asyncio.Future[Any]:
        self.dials.append(Dial(endpoints, factory))
        return self.dials[-1].future


class SocketDialer:
    """The real dialer, with every destination led to one server on loopback."""

    def __init__(self) -> None:
        self.dialer = Dialer()
        self.dials: list[Dial] = []
        self.port = 0

    def dial(self, endpoints: Any, protocol_factory: Any, *, timeout_s: float, source: Any = None) -> Any:
        self.dials.append(Dial(endpoints, protocol_factory))
        return self.dialer.dial([(IPv4Address("127.0.0.1"), self.port)], protocol_factory, timeout_s=timeout_s)


# --- the ends ------------------------------------------------------------------------------------------------------
class Peer(ABC):
    """One end of a connection that the test speaks for: `>>` sends, `<<` says what has to have come."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.received = bytearray()
        self.total = 0  # bytes that ever came, as they were
        self.has_eof = False  # the gateway has ended its side, or closed
        self.is_gone = False  # the connection is closed altogether
        self.error: BaseException | None = None
        self.sent_eof = False

    def __rshift__(self, data: bytes) -> Peer:
        self.talk.act(lambda: self._send(data))
        return self

    def __lshift__(self, expected: bytes) -> Peer:
        self.talk.until(lambda: len(self._clean()) >= len(expected) or self.has_eof)
        got = self._clean()
        assert got[: len(expected)] == expected, f"got {got[: len(expected) + 200]!r}, expected {expected[:4000]!r}"
        self.received[:] = got[len(expected) :]
        return self

    def take(self, pattern: bytes) -> re.Match[bytes]:
        """Wait for bytes that match this pattern from the first one on, and take them."""
        found: list[re.Match[bytes] | None] = [None]

        def look() -> bool:
            found[0] = re.match(pattern, self._clean(), re.DOTALL)
            return found[0] is not None or self.has_eof

        self.talk.until(look)
        match = found[0]
        assert match is not None, f"got {self._clean()[:1000]!r}, expected {pattern!r}"
        self.received[:] = self._clean()[match.end() :]
        return match

    def answer(self) -> tuple[int, bytes, dict[str, str], dict[str, Any]]:
        """A whole response of the gateway's own: status, phrase, fields, and the `error` of its JSON body."""
        head = self.take(rb"HTTP/1.1 (\d{3}) ([^\r]*)\r\n(.*?)\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head[3].decode().split("\r\n"))
        body = self.take(rb".{%d}" % int(fields.get("Content-Length", "0")))[0]
        return int(head[1]), head[2], fields, json.loads(body)["error"] if body else {}

    @property
    def got(self) -> bytes:
        """What has come and was not yet expected."""
        return self._clean()

    def hears_nothing(self) -> None:
        self.talk.settle()
        assert not self._clean(), self._clean()[:1000]

    def is_closed(self) -> None:
        """The gateway has closed, and said nothing more before."""
        self.talk.until(lambda: self.has_eof or self.is_gone)
        assert self.has_eof or self.is_gone, "the connection is open"
        assert not self._clean(), self._clean()[:1000]

    def is_open(self) -> None:
        self.talk.settle()
        assert not self.has_eof
        assert not self.is_gone

    def _clean(self) -> bytes:
        for match in DATE.finditer(self.received):
            age = time.time() - parsedate_to_datetime(match[1].decode()).timestamp()
            assert -2 < age < 60, match[1]
        return DATE.sub(b"", bytes(self.received))

    @abstractmethod
    def _send(self, data: bytes) -> None: ...

    @abstractmethod
    def ends(self) -> None:
        """FIN: this side says no more."""

    @abstractmethod
    def leaves(self) -> None:
        """Closed altogether, as a process that ends closes its sockets."""

    @abstractmethod
    def resets(self) -> None: ...


class MemoryPeer(Peer):
    """The other end of a MemoryTransport. `stalls` stops reading, `reads_on` takes what has gathered."""

    transport: MemoryTransport

    def _send(self, data: bytes) -> None:
        self.transport.deliver(data)

    def ends(self) -> None:
        self.sent_eof = True
        self.talk.act(lambda: self.transport.deliver(None))

    def leaves(self) -> None:
        self.talk.act(lambda: self.transport.lose(None))

    def resets(self) -> None:
        self.talk.act(lambda: self.transport.lose(ConnectionResetError("reset")))

    def stalls(self) -> None:
        self.transport.is_stalled = True

    def reads_on(self) -> None:
        self.transport.is_stalled = False
        self.talk.act(self.transport.drain)


class MemoryTransport(asyncio.Transport):
    """The gateway's transport in memory, as strict as uvloop's: misuse raises."""

    def __init__(self, peer: MemoryPeer, protocol: asyncio.Protocol, name: tuple[str, int]) -> None:
        super().__init__()
        self._peer = peer
        peer.transport = self
        self._protocol = protocol
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._incoming: list[bytes | None] = []
        self._buffer: list[bytes] = []
        self._size = 0
        self._high = PIECE
        self.is_stalled = False
        self.is_paused = False
        self.was_aborted = False
        self._is_write_paused = False
        self._closing = False
        self._eof = False
        self._is_lost = False

    # the wire's side
    def deliver(self, data: bytes | None) -> None:
        pieces: list[bytes | None] = [None]
        if data is not None:
            pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        self._incoming += pieces
        self._pump()

    def _pump(self) -> None:
        while self._incoming and not self.is_paused and not self._closing:
            piece = self._incoming.pop(0)
            if piece is not None:
                self._protocol.data_received(piece)
            elif not self._protocol.eof_received():
                self.close()

    def lose(self, error: Exception | None) -> None:
        self._closing = True
        self._buffer.clear()
        self._size = 0
        self._lost(error)

    def drain(self) -> None:
        """The peer has taken everything."""
        buffered, self._buffer, self._size = self._buffer, [], 0
        for piece in buffered:
            self._peer.received += piece
            self._peer.total += len(piece)
        if self._is_write_paused:
            self._is_write_paused = False
            self._protocol.resume_writing()
        if not self._buffer:
            if self._eof:
                self._peer.has_eof = True
            if self._closing:
                self._loop.call_soon(self._lost, None)

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._peer.has_eof = True
        self._peer.is_gone = True
        self._protocol.connection_lost(error)

    # the protocol's side
    def write(self, data: Any) -> None:
        assert not self._eof, "write after write_eof"
        assert isinstance(data, bytes | bytearray | memoryview)
        if self._closing or not data:
            return
        if not self.is_stalled:
            self._peer.received += data
            self._peer.total += len(data)
            return
        self._buffer.append(bytes(data))
        self._size += len(data)
        if self._size > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._loop.call_soon(self._lost, None)

    def abort(self) -> None:
        self.was_aborted = True
        self._buffer.clear()
        self._size = 0
        self._closing = True
        self._loop.call_soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._eof or self._closing:
            return
        self._eof = True
        if not self._buffer:
            self._peer.has_eof = True

    def pause_reading(self) -> None:
        assert not self._closing, "pause_reading on a closing transport"
        self.is_paused = True

    def resume_reading(self) -> None:
        assert not self._closing, "resume_reading on a closing transport"
        if self.is_paused:
            self.is_paused = False
            self._loop.call_soon(self._pump)

    def is_reading(self) -> bool:
        return not self.is_paused and not self._closing

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (self._high // 4, self._high)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or PIECE

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def speak_for(self, peer: tuple[str, int]) -> None:
        self._name = peer

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._name if name == "peername" else default


class SocketPeer(Peer, asyncio.Protocol):
    """A real socket's end."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.total += len(data)

    def eof_received(self) -> bool:
        self.has_eof = True
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.has_eof = self.is_gone = True
        self.error = error

    def _send(self, data: bytes) -> None:
        self.transport.write(data)

    def ends(self) -> None:
        self.sent_eof = True
        self.talk.act(self.transport.write_eof)

    def leaves(self) -> None:
        self.talk.act(self.transport.close)

    def resets(self) -> None:
        def reset() -> None:
            if not self.is_gone:
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()

        self.talk.act(reset)


# --- the conversation ----------------------------------------------------------------------------------------------
def conversation(
    written: str | ConfigIR | Iterable[Manifest], *, filters: dict[str, Filter] | None = None, wire: str = "memory"
) -> Conversation:
    """Start a data plane with this configuration and connect one client. `wire` is "memory" or "sockets"."""
    return Conversation(written, filters or {}, is_memory=wire == "memory")


class Conversation:
    """A running data plane. `client` is the first client, `origin` the origin connection that was dialled last."""

    origin: Peer

    def __init__(
        self, written: str | ConfigIR | Iterable[Manifest], filters: dict[str, Filter], *, is_memory: bool
    ) -> None:
        self.is_memory = is_memory
        # In memory nothing is waited for but what the loop itself has yet to do, which asyncio's own loop shows.
        self.loop = asyncio.SelectorEventLoop() if is_memory else new_loop()
        self.catalog = Catalog((scripted_type(filters),))
        self.log = Records()
        self.names = Names()
        self.metrics = Metrics("0")
        self.failures: list[str] = []
        self.expects_failures = False
        self.counts_octets = True  # whether `close` compares the bytes on the wire with those in the log
        self.clients: list[Peer] = []
        self.origins: list[Peer] = []
        self._accepted: list[SocketPeer] = []
        self._servers: list[asyncio.Server] = []
        self._handler = _Errors(self.failures)
        logging.getLogger("egressproxy").addHandler(self._handler)
        self.loop.set_exception_handler(lambda _loop, context: self.failures.append(str(context)))
        self.dialer: MemoryDialer | SocketDialer = MemoryDialer() if is_memory else SocketDialer()
        self.run(self._start(compiled_spec(written, self.catalog)))
        self.client = self.connect()

    async def _start(self, spec: ConfigIR) -> None:
        self.wheel = TimerWheel()
        self.network = Network(self.loop, self.wheel, b"gw", NetworkReports(self.metrics.count_dns))
        self.network.dialer = self.dialer  # type: ignore[assignment]
        self.network.resolver = lambda _spec: self.names  # type: ignore[method-assign, assignment, return-value]
        self.connection_manager = HttpConnectionManager(
            Accounting(self.wheel, self.log.access_log, b"gw", self.metrics)
        )
        self.connection_manager.accounting._id_prefix = "test-"
        self.snapshot = build(spec, self.catalog, self.network, self.metrics, None)
        for cluster in self.snapshot.clusters.values():
            cluster.start()
        self.snapshot.filters.seal()
        self.ports: list[BoundPort] = []
        for port in self.snapshot.ports.values():
            sock = socket.socket() if self.is_memory else bind("127.0.0.1", 0)
            bound = BoundPort(sock, port, self.connection_manager, self.metrics, self._no_dns, None)
            self.ports.append(bound)
            if not self.is_memory:
                bound.start()
        if isinstance(self.dialer, SocketDialer):
            self.wheel.start(self.loop)
            server = await self.loop.create_server(self._accept_origin, "127.0.0.1", 0)
            self.dialer.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)

    def _no_dns(self, _state: OpenConnections) -> NoReturn:
        raise AssertionError("queries of DNS are asked of a NameServer: tests/gateway/listeners/test_name_server.py")

    def _accept_origin(self) -> SocketPeer:
        peer = SocketPeer(self)
        self._accepted.append(peer)
        return peer

    def reload(self, written: str | ConfigIR | Iterable[Manifest]) -> None:
        """Swap the snapshot, as Gateway does; the same ports."""
        old = self.snapshot

        def swap() -> None:
            spec = compiled_spec(written, self.catalog)
            self.snapshot = build(spec, self.catalog, self.network, self.metrics, old)
            for bound, port in zip(self.ports, self.snapshot.ports.values(), strict=True):
                bound.serve(port)
            old.leaf_caches.replaced_by(self.snapshot.leaf_caches, self.metrics.interceptions)
            for key, cluster in old.clusters.items():
                if key not in self.snapshot.clusters:
                    cluster.retire()
            for cluster in self.snapshot.clusters.values():
                cluster.start()
            self.snapshot.filters.seal()

        self.act(swap)

    # --- the loop ------------------------------------------------------------------------------------------------
    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def act(self, action: Callable[[], object]) -> None:
        """Do something on the loop, and let what follows from it happen."""

        async def acting() -> None:
            action()

        self.run(acting())
        self.settle()

    def settle(self) -> None:
        """Until nothing is left to run at once (memory), or for a moment and some turns of the loop (sockets).

        What is written to loopback is there at once, or after the moment where the kernel is busy. The turns then carry
        it through the gateway, however long this process has to wait for its core.
        """

        async def turn() -> None:
            if not self.is_memory:
                await asyncio.sleep(0.001)
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                return
            for _ in range(10_000):
                await asyncio.sleep(0)
                if not self.loop._ready:  # type: ignore[attr-defined]
                    return
            raise AssertionError("the loop does not come to rest")

        self.run(turn())

    def until(self, condition: Callable[[], bool]) -> bool:
        """Run until it holds; False if it does not within WAIT_S (memory: at rest)."""
        self.settle()
        if self.is_memory and not self._waits_for_timers():
            return condition()

        async def wait() -> bool:
            end = self.loop.time() + WAIT_S
            while not condition():
                if self.loop.time() > end:
                    return False
                await asyncio.sleep(0.001)
            return True

        return self.run(wait())

    def _waits_for_timers(self) -> bool:
        has_tasks = any(not task.done() for task in asyncio.all_tasks(self.loop))
        return has_tasks or self.snapshot.authenticators.checks.is_busy

    def after(self, seconds: float) -> None:
        """Time passes on the timer wheel (memory only), tick by tick."""
        assert self.is_memory
        end = self.wheel.now + seconds
        while self.wheel.now < end:
            now = min(self.wheel.now + 0.1, end)
            self.act(lambda now=now: self.wheel.advance(now))  # type: ignore[misc]

    # --- the ends ------------------------------------------------------------------------------------------------
    def connect(self, port: int = 0, address: str = "10.0.0.9") -> Peer:
        """One more client; `port` is the index of the bound port. Of `address` sockets know those of loopback alone."""
        bound = self.ports[port]
        if not self.is_memory:
            listening = bound._sock.getsockname()[1]
            local = (address, 0) if address.startswith("127.") else None
            dial = self.loop.create_connection(lambda: SocketPeer(self), "127.0.0.1", listening, local_addr=local)
            _, client = self.run(dial)
            self.clients.append(client)
            self.settle()
            return client
        peer = MemoryPeer(self)

        def accept() -> None:
            protocol = cast(asyncio.Protocol, bound._accept())
            protocol.connection_made(MemoryTransport(peer, protocol, (address, 50000 + len(self.clients))))

        self.act(accept)
        self.clients.append(peer)
        return peer

    def pending_dial(self) -> Dial | None:
        """The oldest dial that was not answered (memory), or not looked at."""
        self.until(lambda: bool(self.dialer.dials))
        return self.dialer.dials[0] if self.dialer.dials else None

    def dialled(self, host: str, port: int) -> Peer:
        """The gateway has dialled this destination: accept. `origin` is this connection from now on."""
        dial = self._next_dial(host, port)
        peer: Peer
        if self.is_memory:
            peer = MemoryPeer(self)

            def accept() -> None:
                protocol = dial.factory()
                transport = MemoryTransport(peer, protocol, (str(dial.endpoints[0][0]), port))
                protocol.connection_made(transport)
                dial.future.set_result((transport, protocol, dial.endpoints[0]))

            self.act(accept)
        else:
            self.until(lambda: len(self._accepted) > 0)
            peer = self._accepted.pop(0)
        self.origins.append(peer)
        self.origin = peer
        return peer

    def refused(self, host: str, port: int, error: UpstreamFault) -> None:
        """The gateway has dialled this destination, in vain (memory only)."""
        assert error.__traceback__ is None, "it was raised before: it keeps alive whatever it went through"
        dial = self._next_dial(host, port)
        self.act(lambda: dial.future.set_exception(error))

    def _next_dial(self, host: str, port: int) -> Dial:
        dial = self.pending_dial()
        assert dial is not None, f"nothing was dialled; the client got {self.client.got[:600]!r}"
        self.dialer.dials.pop(0)
        address, number = dial.endpoints[0]
        assert (self.names.name_of(address), number) == (host, port)
        return dial

    def no_dial(self) -> None:
        self.settle()
        assert not self.dialer.dials, [dial.endpoints for dial in self.dialer.dials]

    # --- what the data plane says of itself ----------------------------------------------------------------------
    def log_nothing(self) -> None:
        """For what serves too many exchanges to keep a line of each."""
        self.connection_manager.accounting.access_log = AccessLog("off")

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.log.lines

    def record(self, index: int = -1) -> dict[str, Any]:
        """A line of the access log, once it is there."""
        count = index + 1 if index >= 0 else -index
        self.until(lambda: len(self.log.lines) >= count)
        return self.log.lines[index]

    def targets(self) -> list[Any]:
        known: list[Any] = []
        for cluster in self.snapshot.clusters.values():
            for one in filter(None, (cluster, cluster.parent)):
                known += one.targets.known.values()
        return known

    def pools(self) -> list[Any]:
        return [target.pool for target in self.targets()]

    @property
    def open(self) -> int:
        """Upstream connections that the pools count."""
        return sum(sum(target.counts()) for target in self.targets())

    @property
    def idle(self) -> int:
        return sum(target.counts()[1] for target in self.targets())

    def series(self, name: str) -> int:
        """The sum of one counter over all series: an integer field, or the values of a dictionary."""
        values = [getattr(series, name) for series in self.metrics._series.values()]
        return sum(sum(value.values()) if isinstance(value, dict) else value for value in values)

    # --- the end -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Everybody leaves; then what holds after every conversation is checked."""
        try:
            checks = [each.checks for each in self.snapshot.clusters.values() if each.checks is not None]
            self.act(lambda: [each.stop() for each in checks])
            self.everybody_leaves()
            self._check()
        finally:
            logging.getLogger("egressproxy").removeHandler(self._handler)
            self.run(self._stop())
            self.loop.close()

    def everybody_leaves(self) -> None:
        """Clients and origins close their connections, and the gateway has seen it."""
        for peer in (*self.clients, *self.origins, *self._accepted):
            if not peer.is_gone:
                peer.leaves()
        self.until(self._is_empty)

    def _is_empty(self) -> bool:
        asked = any(sum(cluster.counts()) for cluster in self.snapshot.clusters.values())
        return not (self.open or asked or any(bound.open_connections or bound.state.tunnels for bound in self.ports))

    def _check(self) -> None:
        for bound in self.ports:
            assert not bound.state.connections
            assert bound.state.tunnels == 0
            assert bound.state.per_client == {}
            assert not bound.state.tunnels_of
        for shares in (
            self.connection_manager.clients,
            self.network.mirror_requests,
            self.network.copied_bytes,
            self.network.opened,
        ):
            assert shares.total == 0, shares
        for target in self.targets():
            pool = target.pool
            assert target.shared is None or target.shared.is_empty, target.shared
            for shared in () if target.shared is None else getattr(target.shared, "_of", {"": target.shared}).values():
                assert not shared._pool._held.total, shared
            assert pool.open == 0, pool
            assert not pool.idle_count, pool
            assert not pool._held.total, pool
            assert not pool.waiting, pool
        assert not [dial for dial in self.dialer.dials if self.is_memory and not dial.future.done()], "a dial goes on"
        assert self.series("tunnels_active") == 0
        assert self.series("requests") == len(self.records)
        begun = [number for series in self.metrics._series.values() for number in series.first_bytes]
        assert min(begun, default=0) >= 0
        assert sum(begun) == sum(record["status"] not in (0, 499) for record in self.records), self.records
        assert self.series("bytes_in") == sum(record["bytes_in"] for record in self.records)
        assert self.series("bytes_out") == sum(record["bytes_out"] for record in self.records)
        if self.counts_octets:
            assert self.series("bytes_out") == sum(client.total for client in self.clients), self.records
        tasks = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert not tasks, tasks
        assert self.expects_failures or not self.failures, "\n".join(self.failures)

    async def _stop(self) -> None:
        self.wheel.stop()
        for bound in self.ports:
            bound.stop_accepting()
        for server in self._servers:
            server.close()
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)


class _Errors(logging.Handler):
    def __init__(self, failures: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        self._failures.append(logging.Formatter().format(record))
