"""Http2Stream: one stream of a connection, for both sides: what it has to send, what it has got and not handed on, and
who feeds it.
"""

from __future__ import annotations

from abc import abstractmethod

from h2.errors import ErrorCodes

from egressproxy.net.byte_queue import keep
from egressproxy.net.flow_control import HIGH_WATER, Reads
from egressproxy.protocols.http2.carriers import StreamCarrier
from egressproxy.protocols.http2.field_coding import FieldList, block_code, encoded
from egressproxy.protocols.http2.frames import FrameError


class Http2Stream:
    __slots__ = (
        "_given_back",
        "_is_ending",
        "_trailers",
        "_unsent",
        "_withheld",
        "bytes_in",
        "bytes_out",
        "connection",
        "feeder",
        "has_said_all",
        "is_held_back",
        "is_reading_paused",
        "is_write_blocked",
        "number",
        "unsent_size",
    )  # fmt: skip

    def __init__(self, connection: StreamCarrier, number: int) -> None:
        self.connection = connection
        self.number = number
        self.feeder: Reads | None = None
        self.is_write_blocked = False
        self.is_reading_paused = False
        self.has_said_all = False  # END_STREAM is on its way
        self.bytes_in = 0
        self.bytes_out = 0
        self._given_back = 0  # bytes of the window that are given back when reading goes on
        self.is_held_back = False  # what comes is taken, and gives no window back
        self._withheld = 0  # bytes of the window that are given back then
        self._unsent: list[bytes] = []
        self.unsent_size = 0  # bytes of body that wait for a window
        self._is_ending = False  # END_STREAM goes out behind what is unsent
        self._trailers: bytes | None = None  # in HPACK

    # --- writing -------------------------------------------------------------------------------------------------
    def feed_from(self, feeder: Reads | None) -> None:
        """From now on this source fills us; it is paused at once if we are blocked."""
        self.feeder = feeder
        if self.is_write_blocked and feeder is not None:
            feeder.pause_reading()

    @property
    def is_over(self) -> bool:
        """Neither side says more, or the connection is gone: what is said now goes nowhere."""
        return self.connection.streams.get(self.number) is not self

    def send_fields(self, fields: FieldList, *, is_last: bool) -> None:
        if not self.is_over:
            self.connection.send_fields(self, fields, is_last=is_last)

    def send_body(self, data: bytes) -> None:
        if self.is_over:
            return
        self.bytes_out += len(data)
        if not self._unsent and not self._is_ending and self.connection.send_at_once(self, data):
            return
        keep(self._unsent, data)
        self.unsent_size += len(data)
        self.connection.send_waiting(self)
        self._look_whether_blocked()

    def send_last(self, data: bytes) -> None:
        """The whole body, never empty, and the end behind it."""
        self._is_ending = not self.is_over
        self.send_body(data)

    def end(self, trailers: FieldList | None) -> None:
        """Nothing more is said on this stream, but for these trailers."""
        self._end(b"".join([encoded(*field) for field in trailers]) if trailers else None)

    def end_body(self, trailers: bytes) -> None:
        """The same; `trailers` are a block of HTTP/1 (model/fields)."""
        self._end(block_code(trailers) if trailers else None)

    def _end(self, code: bytes | None) -> None:
        if self.is_over:
            return
        self._is_ending = True
        self._trailers = code
        self.connection.send_waiting(self)

    def _look_whether_blocked(self) -> None:
        is_blocked = self.unsent_size > HIGH_WATER
        if is_blocked is not self.is_write_blocked:
            self.is_write_blocked = is_blocked
            if self.feeder is not None:
                if is_blocked:
                    self.feeder.pause_reading()
                else:
                    self.feeder.resume_reading()

    def take_unsent(self, most: int) -> bytes:
        """At most so many bytes of what is to be sent."""
        piece = self._unsent[0]
        if len(piece) > most:
            self._unsent[0] = piece[most:]
            piece = piece[:most]
        else:
            del self._unsent[0]
        self.unsent_size -= len(piece)
        return piece

    @property
    def is_ending(self) -> bool:
        """The end was said, whether or not it is on its way."""
        return self._is_ending or self.has_said_all

    # --- reading -------------------------------------------------------------------------------------------------
    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False
        if self._given_back:
            size, self._given_back = self._given_back, 0
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

    def data_came(self, data: bytes, size: int) -> None:
        """`size` bytes of the window were used, for this data."""
        self.bytes_in += len(data)
        if self.is_reading_paused:
            self._given_back += size
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

    def take_response(self, fields: FieldList, *, has_ended: bool) -> None:
        """The head of the peer's answer: of streams that we have begun. Raises FrameError where the peer has."""
        raise FrameError("an answer to no request")

    @abstractmethod
    def take_trailers(self, fields: FieldList) -> None:
        """Fields behind the peer's content."""

    @abstractmethod
    def take_end(self) -> None:
        """The peer's message is whole."""

    @abstractmethod
    def was_reset(self, code: int) -> None:
        """The peer has given the stream up (RFC 9113 section 7: the error code)."""

    @abstractmethod
    def connection_is_lost(self) -> None:
        """The connection is gone, and the stream with it."""

    def was_sent(self) -> None:
        """END_STREAM is on its way, behind all that was to be said."""

    @abstractmethod
    def transport_ended(self) -> None:
        """Nobody reads or writes the tunnel any more."""

    def reset(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Give the stream up. What was to be sent goes nowhere."""
        self._unsent.clear()
        self.unsent_size = 0
        self._is_ending = False
        self.connection.reset(self, code)
