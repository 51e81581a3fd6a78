"""Http2Stream: one stream of a connection, for both sides: what it has to send, what it has got and not handed on, and
who feeds it.
"""

from __future__ import annotations

from abc import abstractmethod

from h2.errors import ErrorCodes

from egressproxy.net.byte_queue import keep
from egressproxy.net.flow_control import HIGH_WATER, Reads
from egressproxy.protocols.http2.field_coding import block_code, encoded_block
from egressproxy.protocols.http2.outbound_streams import OutboundStreams
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.stream_state import H2StreamState


class Http2Stream(H2StreamState):
    """A stream and its connection."""

    __slots__ = (
        "_withheld", "connection", "feeder", "is_held_back", "is_reading_paused", "is_write_blocked",
    )  # fmt: skip

    def __init__(self, connection: OutboundStreams, stream_id: int) -> None:
        super().__init__(stream_id)
        self.connection = connection
        self.feeder: Reads | None = None
        self.is_write_blocked = False
        self.is_reading_paused = False
        self.is_held_back = False  # what comes is taken, and gives no window back
        self._withheld = 0  # bytes of the window of the stream that are given back then

    # --- writing -------------------------------------------------------------------------------------------------
    def feed_from(self, feeder: Reads | None) -> None:
        """From now on this source fills us; it is paused at once if we are blocked."""
        self.feeder = feeder
        if self.is_write_blocked and feeder is not None:
            feeder.pause_reading()

    def send_fields(self, fields: FieldList, *, is_last: bool) -> None:
        """Send the head of a response, final or interim."""
        if not self.is_over:
            self.connection.send_fields(self, fields, is_last=is_last)

    def send_body(self, data: bytes) -> None:
        self._send(data, is_last=False)

    def send_last(self, data: bytes) -> None:
        """The whole body, never empty, and the end behind it."""
        self._send(data, is_last=True)

    def _send(self, data: bytes, *, is_last: bool) -> None:
        if self.is_over:
            return
        self.bytes_out += len(data)
        if not self.unsent and self.connection.send_at_once(self, data, is_last=is_last):
            return
        keep(self.unsent, data)
        self.unsent_size += len(data)
        if is_last:
            self.is_ending = True
        self.connection.send_waiting(self)
        self._look_whether_blocked()

    def end(self, trailers: FieldList | None) -> None:
        """Nothing more is sent on this stream, but for these trailers."""
        self._end(encoded_block(trailers) if trailers else None)

    def end_body(self, trailers: bytes) -> None:
        """The same; `trailers` are a block of HTTP/1 (model/fields)."""
        self._end(block_code(trailers) if trailers else None)

    def _end(self, code: bytes | None) -> None:
        if self.is_over:
            return
        self.is_ending = True
        self.trailers = code
        self.connection.send_waiting(self)

    def unsent_shrank(self) -> None:
        self._look_whether_blocked()

    def _look_whether_blocked(self) -> None:
        is_blocked = self.unsent_size > HIGH_WATER
        if is_blocked is not self.is_write_blocked:
            self.is_write_blocked = is_blocked
            if self.feeder is not None:
                if is_blocked:
                    self.feeder.pause_reading()
                else:
                    self.feeder.resume_reading()

    # --- reading -------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        self.give_kept_back()

    def give_kept_back(self) -> None:
        """What came while reading was paused counts as read: the peer may send as much again."""
        if self.kept_size:
            size, self.kept_size = self.kept_size, 0
            self.connection.give_back(self, size)

    def hold_back(self) -> None:
        """Take no more than the window allows that the peer has; other streams of the connection are not held back."""
        self.is_held_back = True

    def go_on(self) -> None:
        """Undo `hold_back`."""
        self.is_held_back = False
        if self._withheld:
            size, self._withheld = self._withheld, 0
            self.connection.give_back_alone(self, size)

    def receive_data(self, data: bytes, size: int) -> None:
        self.bytes_in += len(data)
        if self.is_reading_paused:
            self.kept_size += size
        elif self.is_held_back:
            self._withheld += size
            self.connection.give_back_to_others(size)
        else:
            self.connection.give_back(self, size)
        if data:
            self.take_data(data)

    # --- for the two sides -----------------------------------------------------------------------------------------
    @abstractmethod
    def take_data(self, data: bytes) -> None:
        """A piece of the peer's message."""

    @abstractmethod
    def transport_ended(self) -> None:
        """Nobody reads or writes the tunnel any more."""

    def reset(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Give the stream up. What was to be sent goes nowhere."""
        self.unsent.clear()
        self.unsent_size = 0
        self.connection.reset(self, code)
