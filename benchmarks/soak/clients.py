"""Clients of a mixed load: each scenario is one connection, or a few, and knows what has to come of it.

A scenario returns how many requests it made, and raises Unexpected for anything that is not as it should be. Clients
that vanish, and upstreams that misbehave, are as it should be: what counts is that the gateway says so, in time.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchmarks.soak.http2_peer import Http2Peer
from benchmarks.soak.origins import EVENT, KIB, Origins
from benchmarks.soak.subject import Subject

RUN = 20  # requests on a kept-alive connection
HOSTS = ("plain.soak.example", "tls.soak.example")
LIMIT_S = 40.0  # for one scenario: nothing in the gateway may wait longer than its own timeouts
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
#: How an answer that the upstream broke off has to end: without its end.
BROKEN = (ConnectionError, EOFError)


class Unexpected(Exception):
    """What came is not what has to come."""


class Peer:
    """A client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, context: ssl.SSLContext | None = None, name: str | None = None) -> Peer:
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def vanish(self) -> None:
        """A reset in place of an end."""
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport: Any = self.writer.transport
        transport.abort()

    async def head(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            raise Unexpected(f"no response head: {head[:100]!r}")
        return int(found[1]), head

    async def body(self, head: bytes) -> bytes:
        """The whole body; raises EOFError or ConnectionError where it is broken off."""
        if _CHUNKED.search(head):
            pieces: list[bytes] = []
            while True:
                size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                piece = await self.reader.readexactly(size + 2)
                if not size:
                    return b"".join(pieces)
                pieces.append(piece[:-2])
        length = _LENGTH.search(head)
        return await self.reader.readexactly(int(length[1])) if length else b""

    async def answer(self) -> tuple[int, bytes]:
        status, head = await self.head()
        while status < 200:
            status, head = await self.head()
        return status, await self.body(head)

    async def expect(self, status: int | tuple[int, ...], body: bytes | None = None) -> None:
        came, octets = await self.answer()
        wanted = (status,) if isinstance(status, int) else status
        if came not in wanted:
            raise Unexpected(f"{came} in place of {wanted}: {octets[:150]!r}")
        if body is not None and octets != body:
            raise Unexpected(f"another body, of {len(octets)} bytes: {octets[:60]!r}")

    async def expect_end(self) -> None:
        """Nothing more comes, and the connection ends; a reset is an end, too."""
        with suppress(ConnectionError):
            if rest := await self.reader.read():
                raise Unexpected(f"more than was asked for: {rest[:60]!r}")

    async def expect_broken(self) -> None:
        """A failure that the gateway tells of, or an answer without its end: never one that looks whole."""
        try:
            status, body = await self.answer()
        except BROKEN:
            return
        if status < 500:
            raise Unexpected(f"a broken answer looks whole: {status}, {len(body)} bytes")


Scenario = Callable[["Load"], Awaitable[int]]


@dataclass
class Load:
    """Scenarios by their weight, `lanes` at a time, at most `rate` requests a second. No choices: the whole mixture."""

    subject: Subject
    origins: Origins
    rate: float
    lanes: int
    chance: random.Random
    choices: Sequence[tuple[Scenario, float]] = ()
    requests: int = 0
    scenarios: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # by kind: requests that are none, how origins and names fail
    unexpected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    is_ending: bool = False

    def __post_init__(self) -> None:
        self._due = 0.0
        self._context = self.subject.client_context()
        self._http2_context = self.subject.client_context()
        self._http2_context.set_alpn_protocols(["h2"])

    async def run(self) -> None:
        """Until `is_ending`; what is under way is ended in good order."""
        self._due = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._lane() for _ in range(self.lanes)))

    async def _lane(self) -> None:
        choices = self.choices or MIXTURE
        scenarios = [each for each, _ in choices]
        weights = [weight for _, weight in choices]
        while not self.is_ending:
            scenario = self.chance.choices(scenarios, weights)[0]
            name = getattr(scenario, "__name__", "?")
            try:
                async with asyncio.timeout(LIMIT_S):
                    made = await scenario(self)
            except TimeoutError:
                made = 1
                self._note(name, f"nothing for {LIMIT_S:.0f} s")
            except (Unexpected, OSError, EOFError, ValueError) as error:
                made = 1
                self._note(name, f"{type(error).__name__}: {error}")
            self.requests += made
            self.scenarios[name] += 1
            await self._pace(made)

    def _note(self, name: str, what: str) -> None:
        self.unexpected[name] += 1
        self.examples.setdefault(name, what)

    async def _pace(self, made: int) -> None:
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - 0.5) + made / self.rate
        if self._due > now:
            await asyncio.sleep(self._due - now)

    # --- what goes well ------------------------------------------------------------------------------------------
    async def run_forward(self) -> int:
        async with await Peer.open(self.subject.forward) as peer:
            for _ in range(RUN):
                peer.send(self._absolute("/ok"))
                await peer.expect(200, KIB)
        return RUN

    async def run_reverse(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            for _ in range(RUN):
                peer.send(get("plain.soak.example", "/ok"))
                await peer.expect(200, KIB)
        return RUN

    async def run_originated(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            for _ in range(RUN):
                peer.send(get("tls.soak.example", "/ok"))
                await peer.expect(200, KIB)
        return RUN

    async def run_secure(self) -> int:
        async with await Peer.open(self.subject.secure, self._context, "plain.soak.example") as peer:
            for _ in range(RUN):
                peer.send(get("plain.soak.example", "/ok"))
                await peer.expect(200, KIB)
        return RUN

    async def run_http2(self) -> int:
        async with await self._http2() as peer:
            for _ in range(RUN // 5):
                streams = [peer.ask(host, "/ok") for host in HOSTS * 2]
                streams.append(peer.ask("plain.soak.example", "/echo", b"x" * 5_000))
                *answers, echoed = await peer.answers(streams)
                if answers != [(200, KIB)] * len(answers) or echoed != (200, b"5000"):
                    raise Unexpected(f"{[status for status, _ in (*answers, echoed)]} over HTTP/2")
        return RUN

    async def http2_events(self) -> int:
        """Streams of events and a large answer side by side; one client leaves one of them."""
        async with await self._http2() as peer:
            left, large = peer.ask("tls.soak.example", "/events/200"), peer.ask("plain.soak.example", "/octets/300000")
            kept = [peer.ask(host, "/events/20") for host in HOSTS]
            answers = await peer.answers([large])
            peer.reset(left)
            answers += await peer.answers(kept)
            found = [(status, len(body)) for status, body in answers]
            if found != [(200, 300_000)] + [(200, len(EVENT) * 20)] * len(HOSTS):
                raise Unexpected(f"{found} over HTTP/2")
        return 4

    async def chunked_answer(self) -> int:
        async with await Peer.open(self.subject.forward) as peer:
            for path, body in (("/chunked", KIB * 3), ("/interim", KIB), ("/chunked", KIB * 3)):
                peer.send(self._absolute(path))
                await peer.expect(200, body)
            peer.send(self._absolute("/close"))
            await peer.expect(200)
        return 4

    async def posts(self) -> int:
        host = self.chance.choice(HOSTS)
        size = self.chance.choice((10, 5_000, 200_000))
        async with await Peer.open(self.subject.reverse) as peer:
            head = f"POST /echo HTTP/1.1\r\nHost: {host}\r\n"
            peer.send(f"{head}Content-Length: {size}\r\n\r\n".encode() + b"x" * size)
            await peer.expect(200, str(size).encode())
            peer.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(3):
                peer.send(b"%x\r\n%b\r\n" % (size, b"x" * size))
                await asyncio.sleep(0)
            peer.send(b"0\r\n\r\n")
            status, _ = await peer.answer()
            if status != 200:
                raise Unexpected(f"{status} for a chunked body")
        return 2

    async def events(self) -> int:
        host, count = self.chance.choice(HOSTS), self.chance.randrange(5, 60)
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get(host, f"/events/{count}"))
            await peer.expect(200, EVENT * count)
        return 1

    async def large_answer(self) -> int:
        size = self.chance.randrange(100_000, 2_000_000)
        host = self.chance.choice(HOSTS)
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get(host, f"/octets/{size}"))
            status, body = await peer.answer()
            if status != 200 or len(body) != size:
                raise Unexpected(f"{status} and {len(body)} of {size} bytes")
        return 1

    async def half_close(self) -> int:
        """A client may end its side and still wait for its answer."""
        async with await Peer.open(self.subject.forward) as peer:
            peer.send(self._absolute("/ok"))
            peer.writer.write_eof()
            await peer.expect(200, KIB)
            await peer.expect_end()
        return 1

    # --- tunnels -------------------------------------------------------------------------------------------------
    async def tunnel(self) -> int:
        async with await self._connect(self.origins.plain) as peer:
            for _ in range(3):
                peer.send(get("plain.soak.example", "/ok"))
                await peer.expect(200, KIB)
        return 4

    async def tunnel_tls(self) -> int:
        peer = await self._connect(self.origins.tls, "tls.soak.example")
        async with peer:
            await peer.writer.start_tls(self._context, server_hostname="tls.soak.example")
            peer.send(get("tls.soak.example", "/ok"))
            await peer.expect(200, KIB)
        return 2

    async def tunnel_half_close(self) -> int:
        async with await self._connect(self.origins.plain) as peer:
            peer.send(get("plain.soak.example", "/octets/100000"))
            status, head = await peer.head()
            peer.writer.write_eof()
            if status != 200:
                raise Unexpected(f"{status} in a tunnel")
            with suppress(*BROKEN):  # the origin may take the end as the end
                await peer.body(head)
        return 2

    async def tunnel_reset(self) -> int:
        path = self.chance.choice(("/reset", "/reset-body", "/truncated"))
        async with await self._connect(self.origins.plain) as peer:
            peer.send(get("plain.soak.example", path))
            try:
                await peer.answer()
            except BROKEN:
                return 2
        raise Unexpected(f"{path} in a tunnel looks whole")

    # --- what is refused -----------------------------------------------------------------------------------------
    async def denied(self) -> int:
        async with await Peer.open(self.subject.forward) as peer:
            for host in ("elsewhere.example", "denied.soak.example", "soak.example"):
                peer.send(get(host, "/", scheme="http://"))
                await peer.expect(403)
        return 3

    async def denied_tunnel(self) -> int:
        async with await Peer.open(self.subject.forward) as peer:
            peer.send(b"CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: elsewhere.example:443\r\n\r\n")
            await peer.expect(403)
        return 1

    async def bad_request(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            what, octets = self.chance.choice(BAD_REQUESTS)
            self.faults[f"request: {what}"] += 1
            peer.send(octets)
            await peer.expect((400, 413, 414, 421, 431, 501, 505))
            await peer.expect_end()
        return 1

    async def bad_tls(self) -> int:
        async with await Peer.open(self.subject.secure) as peer:
            if self.chance.random() < 0.5:
                peer.send(b"GET / HTTP/1.1\r\nHost: plain.soak.example\r\n\r\n")
                with suppress(ConnectionError):
                    await peer.reader.read()  # an alert, and the end
            else:
                peer.send(bytes.fromhex("1603010200010001fc0303"))
                await asyncio.sleep(0.05)
                peer.vanish()
        return 1

    async def too_large(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(b"POST /echo HTTP/1.1\r\nHost: plain.soak.example\r\nContent-Length: 99999999\r\n\r\n")
            await peer.expect(413)
        return 1

    # --- clients that go -----------------------------------------------------------------------------------------
    async def vanish_in_head(self) -> int:
        async with await Peer.open(self.chance.choice((self.subject.forward, self.subject.reverse))) as peer:
            peer.send(b"GET / HTTP/1.1\r\nHost: plain.so")
            await asyncio.sleep(0.01)
            self._leave(peer)
        return 1

    async def vanish_in_body(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            head = b"POST /echo HTTP/1.1\r\nHost: tls.soak.example\r\nContent-Length: 100000\r\n\r\n"
            peer.send(head + b"x" * self.chance.randrange(60_000))
            await asyncio.sleep(0.02)
            self._leave(peer)
        return 1

    async def vanish_in_answer(self) -> int:
        host = self.chance.choice(HOSTS)
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get(host, "/octets/50000000"))
            await peer.head()
            await peer.reader.read(10_000)
            self._leave(peer)
        return 1

    async def vanish_in_events(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get("tls.soak.example", "/events/1000"))
            await peer.head()
            await asyncio.sleep(0.1)
            self._leave(peer)
        return 1

    async def slow_reader(self) -> int:
        """A few KiB a second of a large answer, for a while."""
        host = self.chance.choice(HOSTS)
        async with await Peer.open(self.subject.reverse) as peer:
            transport: Any = peer.writer.transport
            peer.send(get(host, "/octets/200000000"))
            await peer.head()
            transport.pause_reading()
            await asyncio.sleep(2)
            peer.vanish()
        return 1

    def _leave(self, peer: Peer) -> None:
        if self.chance.random() < 0.5:
            peer.vanish()
        else:
            peer.writer.close()

    # --- upstreams that fail --------------------------------------------------------------------------------------
    async def upstream_breaks(self) -> int:
        host = self.chance.choice(HOSTS)
        path = self.chance.choice(
            ("/reset", "/reset-body", "/truncated", "/half-chunked", "/garbage", "/garbage-chunk")
        )
        self.faults[f"origin: {path[1:]}"] += 1
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get(host, path))
            await peer.expect_broken()
        return 1

    async def upstream_oddities(self) -> int:
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get("plain.soak.example", "/surplus"))
            await peer.expect(200, KIB)
            peer.send(get("plain.soak.example", "/tiny/400"))
            await peer.expect(200, b"abcde" * 80)
            peer.send(b"POST /early HTTP/1.1\r\nHost: plain.soak.example\r\nContent-Length: 50000\r\n\r\n" + b"x" * 100)
            await peer.expect((413, 502))
        return 3

    async def upstream_stalls(self) -> int:
        path = self.chance.choice(("/stall", "/stall-body"))
        self.faults[f"origin: {path[1:]}"] += 1
        async with await Peer.open(self.subject.reverse) as peer:
            peer.send(get("plain.soak.example", path))
            if self.chance.random() < 0.5:
                await peer.expect_broken()
            else:
                await asyncio.sleep(0.5)
                self._leave(peer)
        return 1

    async def name_fails(self) -> int:
        name = self.chance.choice(("nowhere", "broken", "silent"))
        self.faults[f"name: {name}"] += 1
        async with await Peer.open(self.subject.forward) as peer:
            host = f"{name}-{self.chance.randrange(1000)}.soak.example"
            peer.send(get(host, "/", scheme="http://"))
            await peer.expect((502, 503, 504))
        return 1

    async def refused(self) -> int:
        async with await Peer.open(self.subject.forward) as peer:
            peer.send(get(f"plain.soak.example:{self.origins.refused}", "/", scheme="http://"))
            await peer.expect((502, 503))
        return 1

    # --- requests ------------------------------------------------------------------------------------------------
    def _absolute(self, path: str) -> bytes:
        return get(f"host-{self.chance.randrange(8)}.soak.example:{self.origins.plain}", path, scheme="http://")

    async def _http2(self) -> Http2Peer:
        return await Http2Peer.open(self.subject.secure, self._http2_context, "plain.soak.example")

    async def _connect(self, port: int, host: str = "plain.soak.example") -> Peer:
        peer = await Peer.open(self.subject.forward)
        peer.send(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        status, head = await peer.head()
        if status != 200:
            peer.writer.close()
            raise Unexpected(f"{status} for a CONNECT: {head[:100]!r}")
        return peer


def get(host: str, path: str, *, scheme: str = "") -> bytes:
    """A GET with the fields that clients send; absolute-form where a scheme is given."""
    target = f"{scheme}{host}{path}" if scheme else path
    return (
        f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nAccept-Encoding: gzip, br\r\n"
        "User-Agent: soak/1\r\nX-Debug: yes\r\nAuthorization: Bearer of-the-client\r\n\r\n"
    ).encode()


BAD_REQUESTS = (
    ("no HTTP", b"\x00\x01\x02\x03\r\n\r\n"),
    ("no Host", b"GET / HTTP/1.1\r\n\r\n"),
    ("two Hosts", b"GET / HTTP/1.1\r\nHost: plain.soak.example\r\nHost: tls.soak.example\r\n\r\n"),
    ("HTTP/3.0", b"GET / HTTP/3.0\r\nHost: plain.soak.example\r\n\r\n"),
    ("NUL in a field", b"GET / HTTP/1.1\r\nHost: plain.soak.example\r\nX: \x00\r\n\r\n"),
    (
        "framed in two ways",
        b"POST / HTTP/1.1\r\nHost: plain.soak.example\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("negative length", b"POST / HTTP/1.1\r\nHost: plain.soak.example\r\nContent-Length: -3\r\n\r\n"),
    ("target too long", b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: plain.soak.example\r\n\r\n"),
    ("500 fields", b"GET / HTTP/1.1\r\nHost: plain.soak.example\r\n" + b"X: y\r\n" * 500 + b"\r\n"),
)

#: Scenarios and how often each is chosen.
MIXTURE: tuple[tuple[Scenario, float], ...] = (
    (Load.run_forward, 30), (Load.run_reverse, 12), (Load.run_originated, 12), (Load.run_secure, 4),
    (Load.run_http2, 4), (Load.http2_events, 1), (Load.chunked_answer, 6), (Load.posts, 8),
    (Load.events, 4), (Load.large_answer, 2),
    (Load.tunnel, 8), (Load.tunnel_tls, 2), (Load.tunnel_half_close, 2), (Load.tunnel_reset, 2),
    (Load.denied, 4), (Load.denied_tunnel, 2), (Load.bad_request, 6), (Load.bad_tls, 1),
    (Load.too_large, 1), (Load.half_close, 3), (Load.vanish_in_head, 3), (Load.vanish_in_body, 2),
    (Load.vanish_in_answer, 3), (Load.vanish_in_events, 1), (Load.upstream_breaks, 6),
    (Load.upstream_oddities, 3), (Load.upstream_stalls, 0.2), (Load.slow_reader, 0.2),
    (Load.name_fails, 1), (Load.refused, 1),
)  # fmt: skip
