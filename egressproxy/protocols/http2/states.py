"""ConnectionStates: h2's state machines and windows, with our coding of fields. Where h2 would end the connection over
one stream, only the stream ends.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

from h2.config import H2Configuration
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.events import Event, StreamReset
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream, H2StreamStateMachine, StreamClosedBy, StreamState
from h2.utilities import is_informational_response
from h2.windows import WindowManager
from hyperframe.frame import DataFrame, Frame, RstStreamFrame

from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldDecoder, FieldEncoder
from egressproxy.protocols.http2.usual_frames import UsualFrames

#: Streams whose end is remembered: what comes late is for one of the last few.
MAX_CLOSED = 256
_ENDS: tuple[StreamClosedBy | None, ...] = (None, *StreamClosedBy)
_NUMBERS = {end: number for number, end in enumerate(_ENDS)}


class _Values(list[int]):
    """A setting's value, and those that are not acknowledged: a deque for each would take 600 bytes more."""

    __slots__ = ()

    def popleft(self) -> int:
        return self.pop(0)


class CompactSettings(Settings):
    """h2's, with lists in the place of its deques."""

    def __init__(self, *, client: bool, initial_values: dict[int, int] | None = None) -> None:
        super().__init__(client=client, initial_values=initial_values)  # type: ignore[arg-type]
        for key, values in self._settings.items():
            self._settings[key] = _Values(values)  # type: ignore[assignment]

    def __setitem__(self, key: SettingCodes | int, value: int) -> None:
        if key not in self._settings:
            self._settings[key] = _Values([None])  # type: ignore[list-item, assignment]  # as h2 has it
        super().__setitem__(key, value)


class ClosedStreams:
    """How the last streams were closed, by number: in the place of h2's dictionary."""

    __slots__ = ("_at", "_ring")

    def __init__(self) -> None:
        self._ring = array("Q")  # numbers, and ends in the lowest three bits
        self._at = 0  # the oldest, when there are MAX_CLOSED

    def __setitem__(self, number: int, end: StreamClosedBy | None) -> None:
        entry = number << 3 | _NUMBERS[end]
        if len(self._ring) < MAX_CLOSED:
            self._ring.append(entry)
        else:
            self._ring[self._at] = entry
            self._at = (self._at + 1) % MAX_CLOSED

    def __contains__(self, number: int) -> bool:
        return any(entry >> 3 == number for entry in self._ring)

    def __getitem__(self, number: int) -> StreamClosedBy | None:
        """Raises KeyError for one that is not remembered."""
        for entry in self._ring:
            if entry >> 3 == number:
                return _ENDS[entry & 7]
        raise KeyError(number)

    def __len__(self) -> int:
        return len(self._ring)


_IDLE = StreamState.IDLE
_SAID_ALL = (StreamClosedBy.SEND_END_STREAM, StreamClosedBy.RECV_END_STREAM)
#: Streams that a peer may have open at a time.
MAX_STREAMS: Final = 100
#: Bytes that a peer may send on a stream before somebody has read them.
STREAM_WINDOW: Final = 256 * 1024
#: A list of fields beyond so many times the limits of a message ends the connection, not the stream.
HARD_LIMIT: Final = 2


class _Machine(H2StreamStateMachine):
    """h2's; what no stream has in the beginning stands in the class."""

    client = headers_sent = trailers_sent = headers_received = trailers_received = None
    stream_closed_by = None

    def __init__(self, stream_id: int) -> None:
        self.state = _IDLE
        self.stream_id = stream_id


#: The states in which the peer may say more on a stream.
_MAY_SPEAK = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)


class _StreamState(H2Stream):
    """h2 would end the connection where content and Content-Length differ: `Http2Stream` ends the stream."""

    max_outbound_frame_size = request_method = _authority = _expected_content_length = None
    _actual_content_length = 0

    def __init__(self, stream_id: int, config: Any, inbound_window_size: int, outbound_window_size: int) -> None:
        self.state_machine = _Machine(stream_id)
        self.stream_id = stream_id
        self.config = config
        self.outbound_flow_control_window = outbound_window_size
        self._inbound_window_manager = WindowManager(inbound_window_size)

    def receive_headers(self, headers: Any, end_stream: bool, header_encoding: Any) -> tuple[list[Frame], list[Event]]:
        """As of H2Stream; fields at a wrong place, or with or without END_STREAM, reset the stream: the message is
        malformed (RFC 9113 sections 8.1 and 8.1.1), and h2 would end the connection.
        """
        machine = self.state_machine
        is_interim = machine.client and is_informational_response(headers)
        is_wrong = is_interim or not end_stream if machine.headers_received else is_interim and end_stream
        if not is_wrong or machine.state not in _MAY_SPEAK:
            return super().receive_headers(headers, end_stream, header_encoding)
        frames = self.reset_stream(ErrorCodes.PROTOCOL_ERROR)
        event = StreamReset(stream_id=self.stream_id, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False)
        return frames, [event]

    def _initialize_content_length(self, headers: Any) -> None:
        pass

    def _track_content_length(self, length: int, end_stream: bool) -> None:
        pass


class ConnectionStates(UsualFrames):
    """h2's state machines, with our coding of fields."""

    stream_class = _StreamState

    def __init__(self, *, client_side: bool, limits: HeadLimits, extended_connect: bool) -> None:
        config = H2Configuration(
            client_side=client_side,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            split_outbound_cookies=False,
            validate_inbound_headers=False,
            normalize_inbound_headers=False,
        )
        super().__init__(config)
        if not client_side:  # h2 would be idle until the first request, which is then no usual one
            self.state_machine.state = ConnectionState.SERVER_OPEN
        size = limits.max_head_bytes + 32 * limits.max_fields
        self.decoder = FieldDecoder(HARD_LIMIT * limits.max_fields, HARD_LIMIT * size)  # type: ignore[assignment]
        self.encoder = FieldEncoder()
        values: dict[int, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: size,
        }
        if extended_connect:
            values[SettingCodes.ENABLE_CONNECT_PROTOCOL] = 1
        if client_side:
            values[SettingCodes.ENABLE_PUSH] = 0
            del values[SettingCodes.MAX_CONCURRENT_STREAMS]
        self.local_settings = CompactSettings(client=client_side, initial_values=values)
        self.remote_settings = CompactSettings(client=not client_side)
        self._closed_streams = ClosedStreams()  # type: ignore[assignment]

    def _begin_new_stream(self, stream_id: int, allowed_ids: Any) -> H2Stream:
        stream = super()._begin_new_stream(stream_id, allowed_ids)
        stream.__class__ = _StreamState
        return stream

    # h2 would end the connection over one stream too many, and count all of them for each that begins.
    @property
    def open_inbound_streams(self) -> int:
        """None, so that h2 never refuses one: the connection itself counts them."""
        return 0

    @property
    def open_outbound_streams(self) -> int:
        """All that are known, without h2's look at each."""
        return len(self.streams)

    def _handle_data_on_closed_stream(
        self, events: list[Event], exc: StreamClosedError, frame: DataFrame
    ) -> tuple[list[Frame], list[Event]]:
        """DATA behind the peer's end (RFC 9113 section 5.1): the stream is reset while we have not said all, then it is
        the connection's error. What was on its way when we reset a stream is not answered by another reset.
        """
        closed_by = self._stream_closed_by(frame.stream_id)
        if closed_by in _SAID_ALL:
            raise exc
        frames, events = super()._handle_data_on_closed_stream(events, exc, frame)
        if closed_by is StreamClosedBy.SEND_RST_STREAM and not exc._events:  # else it was reset just now
            frames = [each for each in frames if not isinstance(each, RstStreamFrame)]
        return frames, events

    def let_go(self, number: int) -> None:
        """A stream is over. h2 would find out when it counts."""
        stream = self.streams.get(number)
        if stream is not None and stream.closed:
            del self.streams[number]
            self._closed_streams[number] = stream.closed_by
