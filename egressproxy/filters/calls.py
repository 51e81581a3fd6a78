"""Calls of filters to their own backends: token endpoints, judges, processors.

A config refers to a backend with a `settings.CalledBackendRef`, and `FilterType.backend_refs` names these references. A
call uses the gateway's pools, and the policies, TLS and address rules of that backend at this place. It runs the
backend's own extensions, so the backend's credential is sent without being visible to filters.
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
    """The response of a backend with any `status`: an error status is no failure. `body` is decoded."""

    status: int
    fields: Fields
    body: bytes


class CallFailed(Exception):
    """The call got no response. A filter that does not catch it has failed, and `failOpen` decides.

    `reason` is the cause. The text may be shown: it names the backend, without content of the request.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class MessageStream(Protocol):
    """A bidirectional gRPC call."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes of unsent messages."""

    def send(self, message: bytes) -> None:
        """Send a message; ignored after the end."""

    async def drained(self) -> None:
        """Wait until at most 64 KiB are unsent, or the stream is over."""

    def pause_reading(self) -> None:
        """Deliver no more messages until `resume_reading`, except those in flight."""

    def resume_reading(self) -> None:
        """Deliver messages again."""

    def end(self, linger_s: float) -> None:
        """Half-close. The stream is closed if the backend does not end it within `linger_s` seconds."""

    def close(self) -> None:
        """Close the stream."""


class StreamReceiver(Protocol):
    """The callbacks of a MessageStream, also during its opening. Must not raise or wait."""

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
        """Whether the backend uses TLS with a verified certificate."""

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

        `path` begins with "/" and may have a query; `fields` are without Host and framing. `x` is the exchange
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
