"""FaultServer: an origin that fails as it is told, for drills of retries and failover.

It answers each request with `NAME DIGEST`, the digest being that of the request's body, so that an answer to another
request, or to half a body, is seen. `fault` holds for every request until it is changed; `script` goes before it, one
entry for each request. It runs in a thread with a loop of its own; the attributes may be set from any thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from types import TracebackType
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED_END = b"0\r\n\r\n"


class Fault(Enum):
    """What becomes of a request."""

    NONE = "it is answered"
    RESET_BEFORE_HEAD = "the connection is reset before a byte of the answer"
    RESET_IN_HEAD = "the connection is reset within the head"
    RESET_AFTER_HEAD = "the connection is reset behind the head"
    TRUNCATED = "the connection ends within the body"
    STALL_BEFORE_HEAD = "nothing comes"
    STALL_AFTER_HEAD = "the head comes, and nothing behind it"
    GARBAGE = "what comes is no HTTP"
    THROTTLED = "429 with Retry-After: 1"
    OVERLOADED = "529"
    UNAVAILABLE = "503"


def expected(name: str, body: bytes) -> bytes:
    """The body of the answer to a request with this one."""
    return f"{name} {hashlib.sha256(body).hexdigest()}".encode()


class FaultServer:
    """Listens on a port of 127.0.0.1, or on this one."""

    def __init__(self, name: str = "origin", port: int = 0) -> None:
        self.name = name
        self.fault = Fault.NONE
        self.script: list[Fault] = []
        self.seen: Counter[Fault] = Counter()  # requests, by what became of them
        self.open: set[_Served] = set()
        self._loop = asyncio.new_event_loop()
        self._listener: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name=f"fault-server-{name}")
        self._thread.start()
        self.port = port
        self.up()

    @property
    def requests(self) -> int:
        """How many requests have come."""
        return sum(self.seen.values())

    def says(self, *faults: Fault) -> None:
        """The next requests end like this, one after the other."""
        self.script += faults

    def up(self) -> None:
        """Listen, on the same port as before."""
        self._run(self._listen)

    def down(self) -> None:
        """Refuse connections, and reset those that are open."""
        self._run(self._leave)

    def close(self) -> None:
        """End the server and its thread."""
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def next_fault(self) -> Fault:
        """What becomes of the request that has come now."""
        fault = self.script.pop(0) if self.script else self.fault
        self.seen[fault] += 1
        return fault

    async def _listen(self) -> None:
        if self._listener is None:
            make: Callable[[], _Served] = lambda: _Served(self)  # noqa: E731
            self._listener = await self._loop.create_server(make, "127.0.0.1", self.port, reuse_address=True)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def _leave(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for served in tuple(self.open):
            served.reset()

    def _run(self, work: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FaultServer({self.name}, {self.port}, {self.fault.name})"


class _Served(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: FaultServer) -> None:
        self._server = server
        self._data = b""
        self._is_stalled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._server.open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while not self._is_stalled and not self._transport.is_closing():
            end = self._data.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            length = _LENGTH.search(self._data[:end])
            if length is None and b"\r\ntransfer-encoding: chunked" in self._data[:end].lower():
                whole = self._data.find(_CHUNKED_END, end) + len(_CHUNKED_END)
                if whole < end:
                    return
                body = b"".join(_chunks(self._data[end:whole]))
            else:
                whole = end + (int(length[1]) if length is not None else 0)
                if len(self._data) < whole:
                    return
                body = self._data[end:whole]
            self._data = self._data[whole:]
            self._serve(body)

    def reset(self) -> None:
        """End the connection by a reset, if it is still there."""
        if self._transport.is_closing():
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _serve(self, body: bytes) -> None:
        fault = self._server.next_fault()
        answer = expected(self._server.name, body)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(answer)
        write: Callable[[bytes], None] = self._transport.write
        match fault:
            case Fault.NONE:
                write(head + answer)
            case Fault.RESET_BEFORE_HEAD:
                self.reset()
            case Fault.RESET_IN_HEAD:
                write(head[:20])
                self._later(self.reset)
            case Fault.RESET_AFTER_HEAD:
                write(head)
                self._later(self.reset)
            case Fault.TRUNCATED:
                write(head + answer[:10])
                self._later(self._transport.close)
            case Fault.STALL_BEFORE_HEAD:
                self._is_stalled = True
            case Fault.STALL_AFTER_HEAD:
                self._is_stalled = True
                write(head)
            case Fault.GARBAGE:
                write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            case Fault.THROTTLED:
                write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            case Fault.OVERLOADED:
                write(b"HTTP/1.1 529 Overloaded\r\nContent-Length: 4\r\n\r\nbusy")
            case Fault.UNAVAILABLE:
                write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    def _later(self, action: Callable[[], None]) -> None:
        """When what was written has arrived, as far as one can know."""
        self._is_stalled = True
        asyncio.get_running_loop().call_later(0.02, action)


def _chunks(data: bytes) -> Iterable[bytes]:
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        yield data[:count]
        data = data[count + 2 :]
