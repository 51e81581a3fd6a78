"""Clients of every kind at once, and the origin behind them, in a process of its own:
`python -m tests.support.mixed_load`.

It prints `{"origin": PORT}` and reads a line `{"forward": PORT, "reverse": PORT, "host": NAME, "connections": N,
"requests": N, "stream_s": S}`. Of each kind it keeps N clients busy, until so many requests are answered AND its
standard input is closed. Then it prints `{"answered": {KIND: N}, "lost": N, "again": N, "problems": […]}`.

    kept       HTTP/1.1: one request after the other on one connection
    fresh      HTTP/1.1: a connection for each request
    http2      one request after the other on one connection of HTTP/2
    tunnel     CONNECT, and some requests to the origin inside
    stream     an answer that takes S seconds; two of them at a time

A request is lost whose whole and right answer does not come. None is sent again, but for those on streams of HTTP/2
that a GOAWAY says were not looked at (RFC 9113 section 6.8): `again` counts them.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvloop

from tests.support.http2_client import Http2Client

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
MAX_PROBLEMS = 20
TUNNELLED = 20
STREAMS = 2
PIECE_S = 0.25
#: Nobody waits for ever: what has no answer by then has none.
PATIENCE_S = 120.0
REFUSED_STREAM = 7


@dataclass
class Tally:
    """What became of the requests."""

    wanted: int
    answered: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    lost: int = 0
    again: int = 0
    input_closed: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return self.input_closed and sum(self.answered.values()) >= self.wanted

    def next_path(self) -> str:
        self.sent += 1
        return f"/{self.sent}"

    def lose(self, problem: str) -> None:
        self.lost += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


class Lost(Exception):
    """A request without its answer."""


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The origin: the target is the body; `/stream/SECONDS` comes in pieces."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ", 2)[1]
            if target.startswith(b"/stream/"):
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                ends_at = time.monotonic() + float(target.rpartition(b"/")[2])
                while time.monotonic() < ends_at:
                    writer.write(b"1\r\n.\r\n")
                    await asyncio.sleep(PIECE_S)
                writer.write(b"3\r\nend\r\n0\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(target), target))
    except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # cancelled: all is over
        pass
    finally:
        writer.close()


async def ask(connection: Connection, path: str, host: str) -> bool:
    """Whether the connection goes on behind the right answer. Raises Lost."""
    reader, writer = connection
    head = b""
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length is not None else 0)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Lost(f"{path}: {error!r} after {head[:100]!r}") from None
    if not head.startswith(b"HTTP/1.1 200 ") or body != path.encode():
        raise Lost(f"{path} was answered by {head[:300]!r} {body[:100]!r}")
    return _CLOSE.search(head) is None


async def connected(port: int) -> Connection:
    """Raises Lost."""
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        raise Lost(f"cannot connect to {port}: {error}") from None


async def kept(tally: Tally, asked: dict[str, Any]) -> None:
    connection = await connected(asked["reverse"])
    try:
        while not tally.is_enough and await ask(connection, tally.next_path(), asked["host"]):
            tally.answered["kept"] += 1
    finally:
        connection[1].close()


async def fresh(tally: Tally, asked: dict[str, Any]) -> None:
    connection = await connected(asked["reverse"])
    try:
        await ask(connection, tally.next_path(), asked["host"])
        tally.answered["fresh"] += 1
    finally:
        connection[1].close()


async def tunnel(tally: Tally, asked: dict[str, Any]) -> None:
    connection = reader, writer = await connected(asked["forward"])
    place = f"{asked['host']}:{asked['origin']}"
    try:
        writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(f"CONNECT: {error!r}") from None
        if not head.startswith(b"HTTP/1.1 200 "):
            raise Lost(f"CONNECT was answered by {head[:300]!r}")
        for _ in range(TUNNELLED):
            await ask(connection, tally.next_path(), place)
            tally.answered["tunnel"] += 1
    finally:
        writer.close()


async def stream(tally: Tally, asked: dict[str, Any]) -> None:
    reader, writer = await connected(asked["reverse"])
    try:
        path = f"/stream/{asked['stream_s']}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {asked['host']}\r\n\r\n".encode())
        said = b""
        try:
            said = await reader.readuntil(b"0\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError) as error:
            raise Lost(f"a stream broke off: {error!r}") from None
        if not said.startswith(b"HTTP/1.1 200 ") or b"end" not in said:
            raise Lost(f"a stream was {said[:300]!r}")
        tally.answered["stream"] += 1
    finally:
        writer.close()


async def http2(tally: Tally, asked: dict[str, Any]) -> None:
    reader, writer = await connected(asked["reverse"])
    client = Http2Client()
    try:
        while not tally.is_enough:
            path = tally.next_path()
            number = client.get(path.encode(), asked["host"].encode())
            answer = client.of(number)
            while not answer.is_whole:
                writer.write(client.outgoing())
                try:
                    data = await reader.read(65536)
                except OSError as error:
                    raise Lost(f"HTTP/2 {path}: {error!r}") from None
                client.take(data)
                last = min((each for each, *_ in client.goaways), default=number)
                if number > last or answer.reset == REFUSED_STREAM:
                    tally.again += 1
                    return
                if answer.reset is not None or not (data or answer.is_whole):
                    raise Lost(f"HTTP/2 {path}: ended with {answer.reset} after {answer}")
            if answer.status != 200 or bytes(answer.data) != path.encode():
                raise Lost(f"HTTP/2 {path} was answered by {answer}")
            tally.answered["http2"] += 1
            del client.answers[number]
            if client.goaways:
                return
    finally:
        writer.close()


KINDS = {"kept": kept, "fresh": fresh, "http2": http2, "tunnel": tunnel}


async def keep_busy(kind: Any, tally: Tally, asked: dict[str, Any]) -> None:
    """One connection after the other until it is enough."""
    while not tally.is_enough:
        try:
            async with asyncio.timeout(PATIENCE_S + asked["stream_s"]):
                await kind(tally, asked)
        except Lost as problem:
            tally.lose(f"{time.strftime('%H:%M:%S')} {kind.__name__}: {problem}")
            await asyncio.sleep(0.05)
        except TimeoutError:
            tally.lose(f"{kind.__name__}: nothing came")


async def main() -> None:
    loop = asyncio.get_running_loop()
    origin = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    port = origin.sockets[0].getsockname()[1]
    print(json.dumps({"origin": port}), flush=True)
    asked = {**json.loads(await loop.run_in_executor(None, sys.stdin.readline)), "origin": port}
    tally = Tally(asked["requests"])

    async def wait_for_end_of_input() -> None:
        await loop.run_in_executor(None, sys.stdin.read)
        tally.input_closed = True

    busy = [keep_busy(kind, tally, asked) for kind in KINDS.values() for _ in range(asked["connections"])]
    busy += [keep_busy(stream, tally, asked) for _ in range(STREAMS)]
    await asyncio.gather(wait_for_end_of_input(), *busy)
    report = {name: getattr(tally, name) for name in ("answered", "lost", "again", "problems")}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
