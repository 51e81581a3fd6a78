"""A request that waits for the answer of an authorization server.

A filter of the request-headers phase may have its body then, before a backend is chosen; it goes on as it was
collected.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.model.message import RequestHead
from egressproxy.net.flow_control import BodySink
from egressproxy.net.pieces import Pieces

__all__ = ["HELD", "BufferedRequest", "invite_body"]

#: The note of the exchange under which the conductor leaves it, for rules with external authorization.
HELD = "held request"


class InvitedClient(Protocol):
    """What the body is asked of: a client, whatever version of HTTP it speaks."""

    body_limit: int
    transport: asyncio.Transport

    def send_continue(self) -> None:
        """Ask for the body (RFC 9110 section 10.1.1)."""

    def send_request_body_to(self, sink: BodySink | None) -> None:
        """The body goes there from now on; None: it stays where it is."""


class BufferedRequest:
    """`body` is None until it is taken."""

    __slots__ = ("_client", "_head", "_parts", "_whole", "body")

    def __init__(self, client: InvitedClient, head: RequestHead) -> None:
        self._client = client
        self._head = head
        self._parts = Pieces()
        self._whole: asyncio.Future[None] | None = None
        self.body: bytes | None = None

    def local_address(self) -> tuple[str, int]:
        """Where the client has connected to; ("", 0) if that is no address."""
        name = self._client.transport.get_extra_info("sockname")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)

    async def take_body(self, limit: int) -> bytes:
        """The whole body, as long as it has at most `limit` bytes. Raises LimitExceeded (413) for a longer one.

        For a task: a client that leaves, or sends too much, cancels it.
        """
        head, client = self._head, self._client
        if head.body > limit:
            message = f"the request body is longer than the {limit} octets that are shown to the authorization server"
            raise LimitExceeded(Reason.BODY_TOO_LARGE, message, status=413, close=True)
        if head.body != 0:
            self._whole = asyncio.get_running_loop().create_future()
            client.body_limit = limit
            invite_body(client, head)
            client.send_request_body_to(self)
            await self._whole
        self.body = self._parts.joined()
        self._parts.clear()
        return self.body

    # --- a sink --------------------------------------------------------------------------------------------------
    def send_body(self, data: bytes) -> None:
        """Keep a piece."""
        self._parts.append(data)

    def end_body(self, trailers: bytes) -> None:
        """The body is whole: `take_body` goes on."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)


def invite_body(client: InvitedClient, head: RequestHead) -> None:
    """Send 100 (Continue) if the client waits for it, and take Expect out of the head (RFC 9110 section 10.1.1)."""
    if head.expect_continue:
        head.expect_continue = False
        head.fields.remove(b"expect")
        client.send_continue()
