"""A request whose body is read early: for an authorization server, or for a look at its beginning.

A filter of the request-headers phase may have its body then, or the first bytes of it, before a backend is chosen; it
goes on as it was collected.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.model.exchange import StateSlot
from egressproxy.model.message import RequestHead
from egressproxy.net.byte_queue import ByteQueue
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink, Reads
from egressproxy.net.timers import TimerWheel


class BodyClient(Protocol):
    """A client whose request and answer have bodies, whatever version of HTTP it speaks."""

    body_limit: int
    driver: Driver
    transport: asyncio.Transport
    wheel: TimerWheel

    @property
    def is_paused_for_room(self) -> bool:
        """Whether reading its request is paused until there is room."""

    def send_continue(self) -> None:
        """Ask for the body (RFC 9110 section 10.1.1)."""

    def send_request_body_to(self, sink: BodySink | None) -> None:
        """The body goes there from now on; None: it stays where it is."""

    def hold_bytes(self, size: int, source: Reads | None = None, *, waits: bool = True) -> bool:
        """So many bytes more (below 0: less) of a body are held for the exchange in progress: of its request, or of its
        answer, which comes from `source`. Where there is no room for more, nothing more is read until there is, if it
        `waits`. Returns whether there is room.
        """

    def may_keep(self, size: int) -> bool:
        """As `hold_bytes`, for what can be done without: returns whether there is room, and does nothing more."""

    def note_progress(self) -> None:
        """Since the clock has looked, something has moved."""


class BufferedRequest:
    """`body` is None until it is taken."""

    __slots__ = ("_client", "_head", "_is_whole", "_parts", "_read", "_size", "_wanted", "body")

    def __init__(self, client: BodyClient, head: RequestHead) -> None:
        self._client = client
        self._head = head
        self._parts = ByteQueue()
        self._size = 0
        self._wanted = -1  # so many bytes are enough; -1: all of them
        self._is_whole = head.body == 0
        self._read: asyncio.Future[None] | None = None
        self.body: bytes | None = None

    def local_address(self) -> tuple[str, int]:
        """Where the client has connected to; ("", 0) if that is no address."""
        name = self._client.transport.get_extra_info("sockname")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)

    async def take_body(self, limit: int) -> bytes:
        """The whole body, of at most `limit` bytes; else LimitExceeded (413). For a task: it ends with the client."""
        if self._head.body > limit or self._size > limit:
            message = f"the request body is longer than the {limit} bytes that are shown to the authorization server"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
        if self.body is not None:
            return self.body
        self._client.body_limit = limit
        await self._read_on(-1)
        self.body = self._parts.joined()
        self._parts.clear()
        return self.body

    async def peek(self, limit: int) -> bytes:
        """The first `limit` bytes of the body, or all, which stay a part of it. For a task, as `take_body`."""
        if self.body is not None:
            return self.body[:limit]
        await self._read_on(limit)
        return self._parts.joined()[:limit]

    def send_request_body_to(self, sink: BodySink) -> None:
        """From now on the body goes there. Raises LimitExceeded (413) if too much for a later limit was read."""
        client = self._client
        if 0 <= client.body_limit < self._size:
            message = f"the request body is longer than {client.body_limit} bytes"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
        parts, self._parts = self._parts, ByteQueue()
        client.hold_bytes(-self._size)  # the sink has them
        for piece in parts:
            sink.send_body(piece)
        if self._is_whole:
            sink.end_body(b"")
        else:
            client.send_request_body_to(sink)

    async def _read_on(self, wanted: int) -> None:
        if self._is_whole or 0 <= wanted <= self._size:
            return
        self._read = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        invite_body(self._client, self._head)
        self._client.send_request_body_to(self)
        await self._read

    # --- a sink --------------------------------------------------------------------------------------------------
    def send_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        self._client.hold_bytes(len(data))
        if 0 <= self._wanted <= self._size:
            self._client.send_request_body_to(None)
            self._wake()

    def end_body(self, trailers: bytes) -> None:
        self._is_whole = True
        self._wake()

    def _wake(self) -> None:
        if self._read is not None and not self._read.done():
            self._read.set_result(None)


#: Where the connection manager leaves it, for rules with external authorization.
BUFFERED_REQUEST: Final[StateSlot[BufferedRequest]] = StateSlot("buffered request")
#: The body that a filter has given to a request without one.
MADE_BODY: Final[StateSlot[bytes]] = StateSlot("made body")


def invite_body(client: BodyClient, head: RequestHead) -> None:
    """Send 100 (Continue) if the client waits for it, and take Expect out of the head (RFC 9110 section 10.1.1)."""
    if head.expect_continue:
        head.expect_continue = False
        head.fields.remove(b"expect")
        client.send_continue()
