"""The frames of ordinary exchanges without h2's objects, of which it makes three for each: the same states and windows
are left behind. What is not ordinary is h2's: padding, priority, CONTINUATION that comes, whatever breaks a rule.
"""

from __future__ import annotations

from typing import Any

from h2.connection import ConnectionInputs, ConnectionState, H2Connection
from h2.events import Event
from h2.exceptions import ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes
from h2.stream import H2Stream, StreamClosedBy, StreamInputs, StreamState
from hyperframe.frame import DataFrame, HeadersFrame, WindowUpdateFrame

from egressproxy.protocols.http2.field_coding import FieldEncoder, FieldList
from egressproxy.protocols.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_SIZE,
    HEADERS,
    MAX_FRAME,
    PADDED,
    frame_header,
    stream_of,
)

#: Whatever else a peer sets means nothing to us (RFC 9113 section 6.5.2), and h2 would keep all 65,536 of them.
KNOWN_SETTINGS = frozenset(int(code) for code in SettingCodes)

#: Flags of frames without padding or priority, beside END_STREAM.
_USUAL = {HEADERS: END_HEADERS, DATA: 0}
#: The flags of HEADERS that matter here: END_HEADERS, PADDED, PRIORITY.
_SHAPE = 0x2C

_SEND_HEADERS = StreamInputs.SEND_HEADERS  # a member looked up on its class costs 60 ns more
_SEND_INTERIM = StreamInputs.SEND_INFORMATIONAL_HEADERS
_SEND_DATA = StreamInputs.SEND_DATA
_SEND_END = StreamInputs.SEND_END_STREAM
_CONNECTION_BEGINS = ConnectionInputs.SEND_HEADERS
_SERVING, _ASKING = ConnectionState.SERVER_OPEN, ConnectionState.CLIENT_OPEN
_OPEN, _HEARD, _SAID, _CLOSED = (
    StreamState.OPEN,
    StreamState.HALF_CLOSED_REMOTE,
    StreamState.HALF_CLOSED_LOCAL,
    StreamState.CLOSED,
)
_TALKING = (ConnectionState.SERVER_OPEN, ConnectionState.CLIENT_OPEN)
_WE_HAVE_ENDED = StreamClosedBy.SEND_END_STREAM
_PEER_HAS_ENDED = StreamClosedBy.RECV_END_STREAM
_PEER_HAS_RESET = StreamClosedBy.RECV_RST_STREAM


class UsualFrames(H2Connection):
    """What h2 would do, in a tenth of the time."""

    encoder: FieldEncoder  # type: ignore[assignment]
    stream_class: type[H2Stream]
    #: The initial windows of streams: of ours, and of the peer's settings. None: look them up.
    _windows: tuple[int, int] | None = None

    # --- what comes ------------------------------------------------------------------------------------------------
    def new_request(self, flags: int, number: int, frame: bytes) -> tuple[FieldList, bool] | None:
        """The fields, and whether END_STREAM is here, of a HEADERS frame that begins a client's stream. None: it is
        something else, for `hear`. Raises ProtocolError, as that does.
        """
        if (
            flags & _SHAPE != END_HEADERS
            or not number & 1
            or number <= self.highest_inbound_stream_id
            or number > self.HIGHEST_ALLOWED_STREAM_ID  # the reserved bit
            or self.state_machine.state is not _SERVING
            or self.incoming_buffer._headers_buffer
        ):
            return None
        fields = self._decoded(frame)
        machine = self._new_stream(number).state_machine
        machine.client = False
        machine.headers_received = True
        has_ended = flags & END_STREAM == END_STREAM
        machine.state = _HEARD if has_ended else _OPEN
        self.highest_inbound_stream_id = number
        return fields, has_ended

    def _new_stream(self, number: int) -> H2Stream:
        if self._windows is None:
            self._windows = (self.local_settings.initial_window_size, self.remote_settings.initial_window_size)
        stream = self.streams[number] = self.stream_class(number, self.config, *self._windows)
        stream.max_outbound_frame_size = self.max_outbound_frame_size
        return stream

    def new_fields(self, flags: int, number: int, frame: bytes) -> tuple[FieldList, bool, bool] | None:
        """The fields, whether END_STREAM is here, and whether they are trailers, of a HEADERS frame on a stream that
        has begun. None: it is something else, for `hear`. Raises ProtocolError, as that does.
        """
        stream = self.streams.get(number)
        if stream is None or flags & _SHAPE != END_HEADERS or self.incoming_buffer._headers_buffer:
            return None
        machine = stream.state_machine
        state = machine.state
        has_ended = flags & END_STREAM == END_STREAM
        are_trailers = machine.headers_received
        if (
            (state is not _OPEN and state is not _SAID)
            or (machine.trailers_received or not has_ended if are_trailers else not machine.client)
            or self.state_machine.state not in _TALKING
        ):
            return None
        fields = self._decoded(frame)
        if are_trailers:
            machine.trailers_received = True
        elif has_ended or (fields and fields[0][1][:1] != b"1"):
            machine.headers_received = True
        if has_ended:
            if state is _OPEN:
                machine.state = _HEARD
            else:
                machine.state = _CLOSED
                machine.stream_closed_by = _PEER_HAS_ENDED
        return fields, has_ended, bool(are_trailers)

    def _decoded(self, frame: bytes) -> FieldList:
        """The fields of a HEADERS frame. Raises ProtocolError."""
        try:
            return self.decoder.decode(frame[HEADER_SIZE:])  # type: ignore[return-value]
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise

    def new_data(self, flags: int, number: int, frame: bytes) -> tuple[bytes, bool] | None:
        """The data, and whether it ends the stream, of DATA with room on an open one. None: for `hear`."""
        stream = self.streams.get(number)
        if stream is None or flags & PADDED or self.incoming_buffer._headers_buffer:
            return None
        machine = stream.state_machine
        state = machine.state
        size = len(frame) - HEADER_SIZE
        ours, all_ours = stream._inbound_window_manager, self._inbound_flow_control_window_manager
        if (
            (state is not _OPEN and state is not _SAID)
            or not machine.headers_received
            or size > ours.current_window_size
            or size > all_ours.current_window_size
            or self.state_machine.state not in _TALKING
        ):
            return None
        ours.current_window_size -= size
        all_ours.current_window_size -= size
        has_ended = flags & END_STREAM == END_STREAM
        if has_ended:
            if state is _OPEN:
                machine.state = _HEARD
            else:
                machine.state = _CLOSED
                machine.stream_closed_by = _PEER_HAS_ENDED
        return frame[HEADER_SIZE:], has_ended

    def has_begun(self, number: int) -> bool:
        """Whether a stream of this number has begun, by either side."""
        is_ours = number & 1 == self.config.client_side
        return number <= (self.highest_outbound_stream_id if is_ours else self.highest_inbound_stream_id)

    def heard_reset(self, number: int) -> bool:
        """RST_STREAM has come, of a stream that has begun. False: it was over before."""
        stream = self.streams.get(number)
        if stream is None or stream.state_machine.state is _CLOSED:
            return False
        machine = stream.state_machine
        machine.state = _CLOSED
        machine.stream_closed_by = _PEER_HAS_RESET
        return True

    def give_back(self, number: int, size: int) -> bool:
        """So many bytes of the windows were read. True: the peer is told. Raises H2Error."""
        stream = self.streams.get(number)
        all_ours = self._inbound_flow_control_window_manager
        if stream is None or not stream.open:
            all_read = all_ours._bytes_processed + size
            if all_read < all_ours.max_window_size // 2 and all_ours.current_window_size:
                all_ours._bytes_processed = all_read
                return False
        else:
            ours = stream._inbound_window_manager
            read, all_read = ours._bytes_processed + size, all_ours._bytes_processed + size
            if (
                read < ours.max_window_size // 2
                and all_read < all_ours.max_window_size // 2
                and ours.current_window_size
                and all_ours.current_window_size
            ):
                ours._bytes_processed = read
                all_ours._bytes_processed = all_read
                return False
        self.acknowledge_received_data(size, number)
        return True

    def give_back_of_connection(self, size: int) -> bool:
        """As `give_back`, of the window of the connection alone."""
        increment = self._inbound_flow_control_window_manager.process_bytes(size)
        if not increment:
            return False
        frame = WindowUpdateFrame(0)
        frame.window_increment = increment
        self._prepare_for_sending([frame])
        return True

    def give_back_of_stream(self, number: int, size: int) -> bool:
        """As `give_back`, of the window of this stream alone."""
        stream = self.streams.get(number)
        frames = stream.acknowledge_received_data(size) if stream is not None and stream.open else []
        self._prepare_for_sending(frames)
        return bool(frames)

    def hear(self, kind: int, frame: bytes) -> list[Event]:
        """One whole frame, or the preface. Raises H2Error."""
        if kind in _USUAL and frame[4] & ~END_STREAM == _USUAL[kind] and not self.incoming_buffer._headers_buffer:
            number = stream_of(frame)
            if number:
                parsed = HeadersFrame(number) if kind == HEADERS else DataFrame(number)
                parsed.data = frame[HEADER_SIZE:]
                parsed.body_len = len(frame) - HEADER_SIZE
                if frame[4] & END_STREAM:
                    parsed.flags.add("END_STREAM")
                try:
                    return self._receive_frame(parsed)
                except ProtocolError as error:
                    self._terminate_connection(error.error_code)
                    raise
        return self.receive_data(frame)

    def _receive_settings_frame(self, frame: Any) -> Any:
        self._windows = None
        frame.settings = {code: value for code, value in frame.settings.items() if code in KNOWN_SETTINGS}
        return super()._receive_settings_frame(frame)

    # --- what goes -------------------------------------------------------------------------------------------------
    def say_fields(self, number: int, fields: FieldList, *, is_last: bool) -> None:
        """A list of fields on a stream of a client: a head, or trailers. Raises H2Error."""
        machine = self.streams[number].state_machine
        is_interim = not machine.client and fields[0][0] == b":status" and fields[0][1][:1] == b"1"
        machine.process_input(_SEND_INTERIM if is_interim else _SEND_HEADERS)
        if is_last:
            machine.process_input(_SEND_END)
        self._write_block(number, self.encoder.encode(fields), END_STREAM if is_last else 0)

    def say_request(self, number: int, block: bytes, *, is_last: bool) -> None:
        """The head of a request, in HPACK without a table, on a new stream. Raises H2Error where there can be none."""
        if len(self.streams) >= self.remote_settings.max_concurrent_streams:
            raise TooManyStreamsError("the peer takes no more")
        if self.state_machine.state is not _ASKING:
            self.state_machine.process_input(_CONNECTION_BEGINS)
        if number <= self.highest_outbound_stream_id or not number & 1:
            raise ProtocolError("a request on a stream that has begun")
        machine = self._new_stream(number).state_machine
        machine.client = True
        machine.headers_sent = True
        machine.state = _SAID if is_last else _OPEN
        self.highest_outbound_stream_id = number
        if not self.encoder.has_begun:
            block = self.encoder.begun(block)
        self._write_block(number, block, END_STREAM if is_last else 0)

    def say_trailers(self, number: int, block: bytes) -> None:
        """The end of a message, in HPACK without a table. Raises H2Error where there can be none."""
        machine = self.streams[number].state_machine
        state = machine.state
        if not machine.headers_sent or machine.trailers_sent or (state is not _HEARD and state is not _OPEN):
            raise ProtocolError("trailers where there can be none")
        machine.trailers_sent = True
        self._end(machine)
        self._write_block(number, block, END_STREAM)

    def say_response(self, number: int, block: bytes, *, is_last: bool) -> None:
        """The final head of a response, in HPACK without a table. Raises H2Error where there can be none."""
        machine = self.streams[number].state_machine
        state = machine.state
        if machine.headers_sent or (state is not _HEARD and state is not _OPEN):
            raise ProtocolError("a response where there can be none")
        machine.headers_sent = True
        if is_last:
            self._end(machine)
        if not self.encoder.has_begun:
            block = self.encoder.begun(block)
        self._write_block(number, block, END_STREAM if is_last else 0)

    def say_whole_response(self, number: int, block: bytes, body: bytes) -> bool:
        """A head and all of its content, never empty, in two frames. False: nothing was said, since that cannot be."""
        stream = self.streams[number]
        machine = stream.state_machine
        size = len(body)
        if (
            machine.state is not _HEARD
            or machine.headers_sent
            or size > stream.outbound_flow_control_window
            or size > self.outbound_flow_control_window
            or size > MAX_FRAME
            or len(block) > MAX_FRAME
            or not self.encoder.has_begun
        ):
            return False
        machine.headers_sent = True
        machine.state = _CLOSED
        machine.stream_closed_by = _WE_HAVE_ENDED
        stream.outbound_flow_control_window -= size
        self.outbound_flow_control_window -= size
        self._data_to_send += b"".join((
            frame_header(HEADERS, END_HEADERS, number, len(block)), block,
            frame_header(DATA, END_STREAM, number, size), body,
        ))  # fmt: skip
        return True

    def _write_block(self, number: int, block: bytes, flags: int) -> None:
        """HEADERS, and CONTINUATION where that is not enough."""
        out = self._data_to_send
        kind = HEADERS
        most = min(self.max_outbound_frame_size, MAX_FRAME)
        while len(block) > most:
            out += frame_header(kind, flags, number, most)
            out += block[:most]
            kind, flags, block = CONTINUATION, 0, block[most:]
        out += frame_header(kind, flags | END_HEADERS, number, len(block))
        out += block

    def room_for(self, number: int) -> int:
        """Bytes that one frame of DATA on this stream may hold; 0 or less: none."""
        room = self.streams[number].outbound_flow_control_window
        if room > self.outbound_flow_control_window:
            room = self.outbound_flow_control_window
        return room if room < MAX_FRAME else min(MAX_FRAME, self.max_outbound_frame_size)

    def say_at_once(self, number: int, data: bytes) -> bool:
        """One frame of DATA with all of this; more follows. False: there is no room, and nothing was said."""
        stream = self.streams[number]
        state, size = stream.state_machine.state, len(data)
        if (
            size > stream.outbound_flow_control_window
            or size > self.outbound_flow_control_window
            or size > MAX_FRAME
            or (state is not _HEARD and state is not _OPEN)
        ):
            return False
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        out = self._data_to_send
        out += frame_header(DATA, 0, number, size)
        out += data
        return True

    def say_data(self, number: int, data: bytes, *, is_last: bool) -> None:
        """One frame of DATA, for which the windows have room. Raises H2Error."""
        stream = self.streams[number]
        machine = stream.state_machine
        size = len(data)
        if size and size > self.room_for(number):
            raise ProtocolError("more content than there is room for")
        if machine.state is _HEARD or machine.state is _OPEN:
            if is_last:
                self._end(machine)
        else:
            machine.process_input(_SEND_DATA)
        self.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        out = self._data_to_send
        out += frame_header(DATA, END_STREAM if is_last else 0, number, size)
        out += data

    def _end(self, machine: Any) -> None:
        """END_STREAM is on its way."""
        if machine.state is _HEARD:
            machine.state = _CLOSED
            machine.stream_closed_by = _WE_HAVE_ENDED
        else:
            machine.state = _SAID
