"""StreamingCall: a call of gRPC as its server sees it, on a stream of HTTP/2. Source: grpc.io, gRPC over HTTP2."""

from __future__ import annotations

from collections import deque

from egressproxy.model.grpc_status import GrpcStatus
from egressproxy.model.local_response import LocalResponse
from egressproxy.net.driver import PAUSE
from egressproxy.protocols.grpc.framing import GrpcMessageReader, MessageTooLong, framed
from egressproxy.protocols.grpc.statuses import encoded_message
from egressproxy.protocols.http2.downstream_stream import DownstreamStream
from egressproxy.protocols.http2.remembered_fields import FieldList

#: The longest message that is read, in bytes: a whole body that Envoy has buffered.
MAX_MESSAGE = 16 * 1024 * 1024
#: Messages that wait to be taken before the client is read no further.
MAX_WAITING = 8

_CONTENT_TYPE = (b"content-type", b"application/grpc")
_HEAD: FieldList = [(b":status", b"200"), _CONTENT_TYPE]


class MalformedCall(Exception):
    """What came is no message, or too long. `status` is what the call ends with."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class StreamingCall:
    """Takes and sends messages, on the driver of the stream. `has_begun`: one was sent; `is_ended`: on our side."""

    __slots__ = ("_fault", "_has_end", "_reader", "_stream", "_waiting", "has_begun", "is_ended")

    def __init__(self, stream: DownstreamStream) -> None:
        self._stream = stream
        self._reader = GrpcMessageReader(MAX_MESSAGE)
        self._waiting: deque[bytes] = deque()
        self._fault: MalformedCall | None = None
        self._has_end = False
        self.has_begun = False
        self.is_ended = False

    # --- what the client says ------------------------------------------------------------------------------------
    def listen(self) -> None:
        """Take what the client says from now on. Called once, before `next`."""
        self._stream.send_request_body_to(self)

    def send_body(self, data: bytes) -> None:
        if self._fault is not None:
            return
        try:
            self._waiting += self._reader.feed(data)
        except MessageTooLong as error:
            self._fault = MalformedCall(GrpcStatus.RESOURCE_EXHAUSTED, str(error))
        except ValueError as error:
            self._fault = MalformedCall(GrpcStatus.UNIMPLEMENTED, str(error))
        if len(self._waiting) >= MAX_WAITING:
            self._stream.pause_reading()
        self._stream.driver.resume()

    def end_body(self, trailers: bytes) -> None:
        self._has_end = True
        self._stream.driver.resume()

    async def next(self) -> bytes | None:
        """The next message, None behind the last. Raises MalformedCall, ClientGone."""
        while not self._waiting:
            if self._fault is not None:
                raise self._fault
            if self._has_end:
                if not self._reader.is_between:
                    raise MalformedCall(GrpcStatus.INTERNAL, "the call ends within a message")
                return None
            await PAUSE
        message = self._waiting.popleft()
        if self._stream.is_reading_paused and len(self._waiting) < MAX_WAITING:
            self._stream.resume_reading()
        return message

    # --- what we say ---------------------------------------------------------------------------------------------
    def send(self, message: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._stream.send_fields(_HEAD, is_last=False)
        self._stream.send_body(framed(message))

    def end(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call with this status; `text` says why. A second call does nothing."""
        if self.is_ended:
            return
        self.is_ended = True
        fields = [(b"grpc-status", b"%d" % status)]
        if text:
            fields.append((b"grpc-message", encoded_message(text)))
        if self.has_begun:
            self._stream.end(fields)
        else:
            self._stream.send_answer(LocalResponse(200, (_CONTENT_TYPE, *fields)), close=False)
