"""Calls: what filters ask of backends of their own: token endpoints, judges, processors.

A config refers to a backend with a `settings.CalledBackendRef`, and `FilterType.backend_refs` names these references. A
call goes over the gateway's pools, under the policies, TLS and addresses that hold for that backend at this place,
through the backend's own extensions: its credential is sent, and no filter sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from egressproxy.errors import Reason
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields

if TYPE_CHECKING:  # for an annotation: `egressproxy check` loads no event loop
    import asyncio


class CallAnswer(NamedTuple):
    """What a backend has answered. `status` may be any: an answer is no failure. `body` is without content coding."""

    status: int
    fields: Fields
    body: bytes


class CallFailed(Exception):
    """There is no answer. A filter that lets it pass has failed, and `failOpen` decides.

    `reason` says why. The text may be shown: it names the backend, and nothing of what was sent.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MessageStream(Protocol):
    """A call of gRPC in which both sides send messages, at any time."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that wait for a connection, or for the backend to take them."""

    def send(self, message: bytes) -> None:
        """Send a message; one that is sent behind the end goes nowhere."""

    async def drained(self) -> None:
        """Wait until at most 64 KiB wait to be sent, or the stream is over."""

    def pause_reading(self) -> None:
        """Take no more messages until `resume_reading`, beyond what is on its way."""

    def resume_reading(self) -> None:
        """Take messages again."""

    def end(self, linger_s: float) -> None:
        """Say no more. The stream is given up if the backend has not ended it in this many seconds."""

    def close(self) -> None:
        """Give the stream up."""


class StreamReceiver(Protocol):
    """Who is told what comes on a MessageStream, also while it is being opened. Must not raise or wait."""

    def message_came(self, message: bytes) -> None:
        """A message of the backend."""

    def stream_ended(self, failure: CallFailed | None) -> None:
        """The stream is over; None: the backend has ended it with the status OK, or it was closed."""


class FilterCall(Protocol):
    """One backend that a filter may call."""

    @property
    def backend(self) -> str:
        """`namespace/name` of the backend, or "-" where the reference leads nowhere."""

    @property
    def is_verified(self) -> bool:
        """Whether it is reached over TLS, and its certificate is verified."""

    async def request(
        self,
        method: bytes,
        path: bytes,
        fields: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        timeout_s: float,
        x: Exchange | None = None,
    ) -> CallAnswer:
        """Ask the backend; the answer has at most 1 MiB. Must be awaited in a task, as `async` methods of filters are.

        `path` begins with "/" and may have a query; `fields` are without Host and framing. `exchange` is the exchange
        that the call is made for, whose client gets its share of the pools, no more. None: the filter asks for itself.
        Raises CallFailed, also when `timeout_s` seconds are over.
        """

    async def open(self, protocol: asyncio.Protocol, *, timeout_s: float) -> asyncio.Transport:
        """Give a new connection to this protocol, for what is not HTTP: under the policies, addresses and TLS of the
        backend, without its extensions. Raises CallFailed, also when `timeout_s` seconds are over.
        """

    def open_stream(
        self,
        path: bytes,
        receiver: StreamReceiver,
        fields: Iterable[tuple[bytes, bytes]] = (),
        *,
        max_message_bytes: int,
        x: Exchange | None = None,
    ) -> MessageStream:
        """Begin a call of the gRPC method `path`; the config has to refer to the backend by a `CalledGrpcBackendRef`.

        `fields` are metadata. A message of the backend has at most `max_message_bytes`. The caller has to `end` or
        `close` the stream. In a running event loop.
        """
