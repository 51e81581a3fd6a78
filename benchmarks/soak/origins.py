"""Origins that behave as the path asks them to, well or badly, and a name server that does, too. Loopback only.

/ok           1 KiB with its length              /reset            a reset instead of an answer
/octets/N     N bytes with their length          /reset-body       a reset in the middle of the body
/chunked      three chunks                       /truncated        half of the body, then the end
/events/N     N server-sent events, 20 ms apart  /half-chunked     a chunk, then the end
/tiny/N       N bytes in chunks of 5             /garbage          no HTTP
/echo         the length of the request's body   /garbage-chunk    a chunk size that is none
/interim      103, then 200                      /surplus          a second answer behind the first
/early        an answer before the body is read  /stall            nothing
/close        an answer that ends with the close /stall-body       half of the body, then nothing
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

KIB = b"0123456789abcdef" * 64
PIECE = bytes(256 * 1024)
EVENT = b'data: {"delta": "a few words of an answer"}\n\n'
EVENT_S = 0.02
OK = b"HTTP/1.1 200 OK\r\nVary: Accept\r\nX-Internal-Note: no\r\nContent-Length: 1024\r\n\r\n" + KIB
TINY = b"5\r\nabcde\r\n"
_HEAD = re.compile(rb"([A-Z]+) (?:http://[^/ ]+)?(/[^ ]*) HTTP/1\.1\r\n(.*?\r\n)\r\n", re.DOTALL)
_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding: *chunked", re.IGNORECASE | re.MULTILINE)


class Origins:
    """A plain port, a TLS port, and one that nobody listens at."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.plain = self.tls = self.refused = 0
        self.connections: set[Origin] = set()
        self._context = context
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for context in (None, self._context):
            server = await loop.create_server(lambda: Origin(self), "127.0.0.1", 0, ssl=context, backlog=4096)
            self._servers.append(server)
        self.plain, self.tls = (server.sockets[0].getsockname()[1] for server in self._servers)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.refused = probe.getsockname()[1]

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.transport.abort()


class Origin(asyncio.Protocol):
    """One connection: a request after the other."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._data = b""
        self._left = 0  # bytes of body to send
        self._body: re.Match[bytes] | None = None  # the head whose body is being read
        self._is_blocked = False
        self._is_over = False  # says no more, whatever comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._origins.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._origins.connections.discard(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._pour()

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /ok ") and data.find(b"\r\n\r\n") == len(data) - 4 and self._is_free():
            self.transport.write(OK)  # most of what is asked, and the origin must not be what is measured
            return
        self._data += data
        while not self._is_over and not self._left:
            head = self._body or _HEAD.match(self._data)
            if head is None:
                return
            if self._body is None:
                self._data = self._data[head.end() :]
                if head[2] == b"/deaf":
                    self._is_over = True
                    self.transport.pause_reading()
                    return
                if head[2] == b"/early":
                    self._answer(b"413 Content Too Large", b"Connection: close\r\n", b"")
                    self._end()
                    return
                self._body = head
            length = self._take_body(head[3])
            if length is None:
                return
            self._body = None
            self._serve(head[2], length)

    def _is_free(self) -> bool:
        return not (self._data or self._body or self._left or self._is_over)

    def _take_body(self, fields: bytes) -> int | None:
        """The length of the request's body if all of it is here, taken off."""
        if _CHUNKED.search(fields):
            end = self._data.find(b"0\r\n\r\n")
            if end < 0:
                return None
            size, self._data = end, self._data[end + 5 :]
            return size
        found = _LENGTH.search(fields)
        size = int(found[1]) if found else 0
        if len(self._data) < size:
            return None
        self._data = self._data[size:]
        return size

    def _serve(self, target: bytes, length: int) -> None:
        name, _, number = target[1:].decode().partition("/")
        match name:
            case "ok":
                self.transport.write(OK)
            case "echo":
                self._answer(b"200 OK", b"", str(length).encode())
            case "octets":
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % int(number))
                self._left = int(number)
                self._pour()
            case "chunked":
                self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.transport.write(b"400\r\n%b\r\n" % KIB * 3 + b"0\r\n\r\n")
            case "tiny":
                self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.transport.write(TINY * (int(number) // 5) + b"0\r\n\r\n")
            case "events":
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                self.transport.write(head)
                self._events(int(number))
            case "interim":
                self.transport.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
                self._answer(b"200 OK", b"", KIB)
            case "close":
                self.transport.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + KIB)
                self._end()
            case "surplus":
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
                self.transport.write(head % len(KIB) + KIB + head % 15 + b"never asked for")
            case _:
                self._misbehave(name)

    def _misbehave(self, name: str) -> None:
        half = b"HTTP/1.1 200 OK\r\nContent-Length: 2048\r\n\r\n" + KIB
        match name:
            case "reset":
                self._reset()
            case "reset-body":
                self.transport.write(half)
                asyncio.get_running_loop().call_later(0.02, self._reset)
            case "truncated":
                self.transport.write(half)
                self._end()
            case "half-chunked":
                self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n%b\r\n" % KIB)
                self._end()
            case "garbage":
                self.transport.write(b"\x16\x03\x01 this is not the protocol you are looking for\r\n\r\n")
            case "garbage-chunk":
                self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n%b\r\nzz\r\n" % KIB)
            case "stall":
                self._is_over = True
            case "stall-body":
                self.transport.write(half)
                self._is_over = True
            case _:
                self._answer(b"404 Not Found", b"", b"")

    def _answer(self, status: bytes, fields: bytes, body: bytes) -> None:
        self.transport.write(b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body))

    def _pour(self) -> None:
        while self._left and not self._is_blocked and not self.transport.is_closing():
            piece = PIECE if self._left >= len(PIECE) else PIECE[: self._left]
            self._left -= len(piece)
            self.transport.write(piece)

    def _events(self, left: int) -> None:
        if self.transport.is_closing():
            return
        if left:
            self.transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            asyncio.get_running_loop().call_later(EVENT_S, self._events, left - 1)
        else:
            self.transport.write(b"0\r\n\r\n")

    def _end(self) -> None:
        self._is_over = True
        self.transport.close()

    def _reset(self) -> None:
        self._is_over = True
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class NameServer(asyncio.DatagramProtocol):
    """Every name is 127.0.0.1, but for those that begin with `nowhere`, `broken` (SERVFAIL) or `silent`."""

    def __init__(self) -> None:
        self.port = 0
        self._transport: Any = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.port = self._transport.get_extra_info("sockname")[1]

    def close(self) -> None:
        self._transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        asked = dns.message.from_wire(data)
        question = asked.question[0]
        first = question.name.labels[0]
        if first.startswith(b"silent"):
            return
        answer = dns.message.make_response(asked)
        answer.flags |= dns.flags.RA
        if first.startswith(b"nowhere"):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif first.startswith(b"broken"):
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif question.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(question.name, 1, "IN", "A", "127.0.0.1"))
        self._transport.sendto(answer.to_wire(), addr)
