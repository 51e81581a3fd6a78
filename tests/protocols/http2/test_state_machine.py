"""H2StateMachine beside the h2 library: the same frames, legal and illegal, leave both in the same state.

Where ours differs from h2 on purpose stands in DIFFERENCES, with what ours does instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamState as TheirState
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import encoded_block
from egressproxy.protocols.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    FrameReader,
    LocalProtocolError,
    RemoteProtocolError,
    StreamError,
    uint31,
)
from egressproxy.protocols.http2.remembered_fields import FieldList
from egressproxy.protocols.http2.settings import STREAM_WINDOW
from egressproxy.protocols.http2.state_machine import MAX_HEAD_FRAMES, STREAM_RESET, H2StateMachine
from egressproxy.protocols.http2.stream_state import (
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    IDLE,
    MAX_CLOSED,
    OPEN,
    RESET_BY_PEER,
    RESET_BY_US,
    ClosedStreams,
    H2StreamState,
)
from tests.support.builds import skip_where_compiled
from tests.support.http2_client import head, raw_frame
from tests.support.properties import examples

skip_where_compiled()

WINDOW = 1 << 20
GET = head(b"GET", b"/", b"a.example")
OK: FieldList = [(b":status", b"200"), (b"x-a", b"b")]
EARLY: FieldList = [(b":status", b"103"), (b"x-a", b"b")]
TRAILERS: FieldList = [(b"x-sum", b"1")]

#: What ours does where h2 does something else.
DIFFERENCES = {
    "fields at a wrong place, or with or without END_STREAM": "stream PROTOCOL_ERROR",  # h2: the connection
    "a request that depends on itself": "stream PROTOCOL_ERROR",  # h2: the connection
    "a wrong PRIORITY of a stream": "stream",  # h2: the connection
    "a wrong PRIORITY of a stream that is over": "nothing",  # h2: the connection
    "a window of 0 on a stream": "stream PROTOCOL_ERROR",  # h2: the connection
    "a window of 0 on a stream that is over": "nothing",  # h2: the connection
    "a payload of a wrong size": "connection FRAME_SIZE_ERROR",  # h2: PROTOCOL_ERROR for some types
    "a late frame on a stream that we have reset": "nothing",  # h2: another reset, or an error
    "a reset of a stream that has not begun": "connection PROTOCOL_ERROR",  # h2: nothing
    "DATA behind the end of both sides": "connection STREAM_CLOSED",  # h2: a reset
    "CONTINUATION of no head": "connection PROTOCOL_ERROR",  # h2: by the state of the stream
    "another frame within a head": "connection PROTOCOL_ERROR",  # h2: FRAME_SIZE_ERROR where it is that, too
    "PUSH_PROMISE": "connection PROTOCOL_ERROR",  # h2: when its block is whole
    "a stream that a server begins": "connection PROTOCOL_ERROR",  # h2: a request
    "a block that cannot be decoded": "connection COMPRESSION_ERROR",  # h2: PROTOCOL_ERROR
    "padding that does not fit": "connection",  # h2: counts a priority as if it were content
    "GOAWAY": "nothing",  # h2: the end of everything
    "a setting that stands twice, wrong at first": "connection",  # h2: the last one counts
}

OUR_STATES = {
    TheirState.OPEN: OPEN,
    TheirState.HALF_CLOSED_LOCAL: HALF_CLOSED_LOCAL,
    TheirState.HALF_CLOSED_REMOTE: HALF_CLOSED_REMOTE,
}


class Stream(H2StreamState):
    """Keeps what it gets."""

    __slots__ = ("got",)

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.got: list[object] = []

    def receive_data(self, data: bytes, size: int) -> None:
        self.got.append((data, size))

    def take_response(self, fields: FieldList, *, ends_stream: bool) -> None:
        self.got.append(fields)

    def take_trailers(self, fields: FieldList) -> None:
        self.got.append(fields)

    def take_end(self) -> None:
        self.got.append("end")


@dataclass
class Sides:
    """Our machine and h2 in one role, after both have said what comes first."""

    is_client: bool
    ours: H2StateMachine = field(init=False)
    theirs: H2Connection = field(init=False)
    reset_by_us: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ours = H2StateMachine(HeadLimits(), client_side=self.is_client)
        self.ours.begin(WINDOW)
        lax = {"validate_outbound_headers": False, "normalize_outbound_headers": False}
        self.theirs = H2Connection(
            H2Configuration(client_side=self.is_client, header_encoding=None, validate_inbound_headers=False, **lax)
        )
        values = {SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW}
        if self.is_client:
            values[SettingCodes.ENABLE_PUSH] = 0
        self.theirs.local_settings = Settings(client=self.is_client, initial_values=values)
        self.theirs.initiate_connection()
        self.theirs.increment_flow_control_window(WINDOW - 65535)
        if not self.is_client:
            self.theirs.receive_data(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert self.receives(SETTINGS, 0, 0, b"") == self.they_receive(SETTINGS, 0, 0, b"") == "nothing"
        self.ours.take_frames()
        self.theirs.data_to_send()

    # --- frames of the peer --------------------------------------------------------------------------------------
    def receives(self, kind: int, flags: int, number: int, payload: bytes) -> str:
        """What ours makes of a frame: "nothing", or the scope of the error and its code."""
        fields: FieldList | None = None
        try:
            if kind == DATA:
                self.ours.receive_data(flags, number, payload)
            elif kind == HEADERS:
                fields = self.ours.receive_headers(flags, number, payload)
            elif kind == CONTINUATION:
                fields = self.ours.receive_continuation(flags, number, payload)
            elif self.ours.receive_control_frame(kind, flags, number, payload) == STREAM_RESET:
                self.ours.forget_stream(self.ours.streams[number])
        except RemoteProtocolError as error:
            return f"connection {error.code.name}"
        except StreamError as error:
            self.ours.reset_stream(error.stream_id, error.code)
            self.reset_by_us.add(error.stream_id)
            if error.stream_id in self.ours.streams:
                self.ours.forget_stream(self.ours.streams[error.stream_id])
            return f"stream {error.code.name}"
        if fields is not None:
            self.ours.open_request(Stream(number))
        return "nothing"

    def they_receive(self, kind: int, flags: int, number: int, payload: bytes) -> str:
        try:
            self.theirs.receive_data(raw_frame(kind, payload, number, flags))
        except ProtocolError as error:
            return f"connection {ErrorCodes(error.error_code).name}"
        return "nothing"

    def difference(self, kind: int, flags: int, number: int, payload: bytes) -> str:
        """The name of the difference that this frame makes now; "" for none."""
        ours = self.ours
        stream = ours.streams.get(number)
        state = stream.stream_state if stream is not None else IDLE
        is_over = stream is None or state >= CLOSED
        if ours.is_head_open:
            return "another frame within a head" if kind != CONTINUATION else ""
        if kind == PUSH_PROMISE and number:
            return "PUSH_PROMISE"
        if kind == CONTINUATION:
            return "CONTINUATION of no head" if number else ""
        if kind in (DATA, HEADERS) and flags & PADDED:
            least = 6 if flags & WITH_PRIORITY and kind == HEADERS else 1
            if len(payload) < least or payload[0] > len(payload) - least:
                return "padding that does not fit"
        if kind in (DATA, HEADERS) and number in self.reset_by_us:
            return "a late frame on a stream that we have reset"
        if kind == DATA and state == CLOSED:
            return "DATA behind the end of both sides"
        if kind == PRIORITY and number and (len(payload) != 5 or uint31(payload) == number):
            if not ours.has_begun(number):
                return "a payload of a wrong size" if len(payload) != 5 else ""
            return "a wrong PRIORITY of a stream" + " that is over" * is_over
        if kind == WINDOW_UPDATE and number and len(payload) == 4 and not uint31(payload) and ours.has_begun(number):
            return "a window of 0 on a stream" + " that is over" * is_over
        sizes = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
        if kind in sizes and len(payload) != sizes[kind]:
            return "a payload of a wrong size"
        if kind == SETTINGS and (len(payload) % 6 or (flags & ACK and payload)):
            return "a payload of a wrong size"
        if kind == GOAWAY and len(payload) < 8:
            return "a payload of a wrong size"
        if kind == GOAWAY and not number:
            return "GOAWAY"
        if kind == RST_STREAM and number and not ours.has_begun(number):
            return "a reset of a stream that has not begun"
        return ""

    def difference_of_head(self, fields: FieldList | None, number: int, *, ends_stream: bool, depends: bool) -> str:
        """The same of a head that is whole. `fields` None: it cannot be decoded."""
        stream = self.ours.streams.get(number)
        if number in self.reset_by_us:
            return "a late frame on a stream that we have reset"
        if fields is None:
            return "a block that cannot be decoded" if number else ""
        if self.is_client and number and not number & 1:
            return "a stream that a server begins"
        is_open = stream is not None and stream.stream_state in (OPEN, HALF_CLOSED_LOCAL)
        is_new = number & 1 and number > self.ours.last_of_peer and not self.is_client
        if depends and number and (is_open or is_new):
            return "a request that depends on itself"
        if stream is None or not is_open:
            return ""
        is_interim = fields == EARLY
        is_wrong = is_interim or not ends_stream if stream.is_head_received else is_interim and ends_stream
        return "fields at a wrong place, or with or without END_STREAM" if is_wrong else ""

    # --- both ----------------------------------------------------------------------------------------------------
    def are_equal(self) -> None:
        """States, windows, and what was said meanwhile."""
        assert heads_only(self.ours.take_frames()) == heads_only(self.theirs.data_to_send())
        assert self.ours.send_window == self.theirs.outbound_flow_control_window
        assert self.ours.receive_window == self.theirs.inbound_flow_control_window
        open_ones = {number: each for number, each in self.ours.streams.items() if each.stream_state < CLOSED}
        theirs = {number: each for number, each in self.theirs.streams.items() if each.open}
        assert open_ones.keys() == theirs.keys()
        for number, stream in open_ones.items():
            assert stream.stream_state == OUR_STATES[theirs[number].state_machine.state]
            assert stream.send_window == theirs[number].outbound_flow_control_window
            if stream.stream_state != HALF_CLOSED_REMOTE:  # a peer that has ended gets no window any more
                assert stream.receive_window == theirs[number].inbound_flow_control_window


def heads_only(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Frames, without field blocks: those are coded in two ways."""
    reader, frames = FrameReader(), []
    reader.feed(raw_frame(SETTINGS) + data)
    while reader.next():
        frames.append((reader.kind, reader.flags, reader.stream_id, b"" if reader.kind == HEADERS else reader.payload))
    return frames[1:]


# --- the games -------------------------------------------------------------------------------------------------------
NUMBERS = st.sampled_from((1, 1, 1, 3, 3, 5, 7, 0, 2, 2**31 - 1))
WORDS = st.sampled_from((0, 1, 3, 7, 100, 65535, 2**31 - 1))
WORD = st.builds(lambda word: word.to_bytes(4, "big"), WORDS)
SETTING = st.builds(
    lambda code, value: code.to_bytes(2, "big") + value.to_bytes(4, "big"),
    st.sampled_from((1, 2, 3, 4, 4, 5, 6, 8, 99)),
    st.one_of(WORDS, st.sampled_from((16384, 2**24, 2**31))),
)
DATA_FRAMES = st.tuples(
    st.just(DATA), st.sampled_from((0, 0, END_STREAM, PADDED, PADDED | END_STREAM)), NUMBERS,
    st.sampled_from((b"", b"x", b"\2xyz\0\0", b"\7x", bytes(1000), bytes(16384), bytes(16384))),
)  # fmt: skip
CONTROL_FRAMES = st.one_of(
    st.tuples(st.just(RST_STREAM), st.just(0), NUMBERS, WORD),
    st.tuples(st.just(WINDOW_UPDATE), st.just(0), NUMBERS, WORD),
    st.tuples(st.just(PRIORITY), st.just(0), NUMBERS, st.builds(bytes.__add__, WORD, st.just(b"\x10"))),
    st.tuples(st.just(SETTINGS), st.sampled_from((0, 0, ACK)), st.sampled_from((0, 0, 1)), SETTING),
    st.tuples(st.just(SETTINGS), st.just(ACK), st.just(0), st.just(b"")),
    st.tuples(st.just(PING), st.sampled_from((0, ACK)), st.sampled_from((0, 0, 1)), st.just(b"12345678")),
    st.tuples(
        st.sampled_from((PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION, 99)),
        st.sampled_from((0, 1, 4)), NUMBERS, st.binary(max_size=9),
    ),
)  # fmt: skip
#: Fields (None: a block that cannot be decoded), END_STREAM, the stream, padding, a stream to depend on, frames.
HEAD_FRAMES = st.tuples(
    st.just("head"), st.sampled_from((GET, OK, EARLY, TRAILERS, TRAILERS, None)), st.booleans(), NUMBERS,
    st.sampled_from((-1, -1, 0, 3)), st.sampled_from((-1, -1, 0, 1, 3)), st.integers(1, 3),
)  # fmt: skip
ACTIONS = st.tuples(
    st.just("action"),
    st.sampled_from(("head", "head and end", "interim", "data", "data and end", "trailers", "reset", "read", "ask")),
    st.integers(0, 3), st.sampled_from((0, 1, 1000, 16384)),
)  # fmt: skip
GAMES = st.lists(st.one_of(HEAD_FRAMES, HEAD_FRAMES, DATA_FRAMES, CONTROL_FRAMES, ACTIONS, ACTIONS), max_size=25)


def receives_head(
    sides: Sides, fields: FieldList | None, ends_stream: bool, number: int, pad: int, depends_on: int, pieces: int
) -> bool:
    """A head in so many frames. Returns whether the game goes on."""
    if fields in (OK, EARLY) and not sides.is_client:
        fields = TRAILERS
    if fields == GET and sides.is_client:
        fields = OK
    block = b"\xff" * 6 if fields is None else encoded_block(fields)
    cuts = [len(block) * piece // pieces for piece in range(pieces + 1)]
    parts = [block[begin:end] for begin, end in pairwise(cuts)]
    flags = (END_STREAM if ends_stream else 0) | (END_HEADERS if pieces == 1 else 0)
    if depends_on >= 0:
        flags |= WITH_PRIORITY
        parts[0] = depends_on.to_bytes(4, "big") + b"\x10" + parts[0]
    if pad >= 0:
        flags |= PADDED
        parts[0] = bytes((pad,)) + parts[0] + bytes(pad)
    if sides.ours.is_head_open:
        return receives(sides, HEADERS, flags, number, parts[0])
    for at, part in enumerate(parts[:-1]):
        assert number == 0 or is_same(sides, *((CONTINUATION, 0) if at else (HEADERS, flags)), number, part)
    if number == 0:
        return receives(sides, HEADERS, flags, 0, parts[0])
    kind, last = (HEADERS, flags) if pieces == 1 else (CONTINUATION, END_HEADERS)
    name = sides.difference_of_head(fields, number, ends_stream=ends_stream, depends=depends_on == number)
    if name:
        assert sides.receives(kind, last, number, parts[-1]).startswith(DIFFERENCES[name]), name
        return False
    return is_same(sides, kind, last, number, parts[-1])


def receives(sides: Sides, kind: int, flags: int, number: int, payload: bytes) -> bool:
    name = sides.difference(kind, flags, number, payload)
    if name:
        assert sides.receives(kind, flags, number, payload).startswith(DIFFERENCES[name]), name
        return False
    return is_same(sides, kind, flags, number, payload)


def is_same(sides: Sides, kind: int, flags: int, number: int, payload: bytes) -> bool:
    ours = sides.receives(kind, flags, number, payload)
    theirs = sides.they_receive(kind, flags, number, payload)
    if ours.startswith("connection") or theirs.startswith("connection"):
        assert ours == theirs
        return False
    sides.are_equal()
    return True


def acts(sides: Sides, what: str, at: int, size: int) -> bool:
    """Something that our side says or reads. Returns whether the game goes on: h2 is of no use behind an error."""
    ours, theirs = sides.ours, sides.theirs
    streams = list(ours.streams.values())
    if what == "ask":
        if not sides.is_client or ours.is_head_open:
            return True
        stream = Stream()
        try:
            ours.begin_stream(stream)
        except LocalProtocolError:
            assert len(ours.streams) >= ours.peer.max_streams
            return False
        ours.send_headers(stream, encoded_block(GET), is_last=at % 2 == 0)
        theirs.send_headers(theirs.get_next_available_stream_id(), GET, end_stream=at % 2 == 0)
        sides.are_equal()
        return True
    if not streams:
        return True
    stream, number = streams[at % len(streams)], streams[at % len(streams)].stream_id
    if what == "read":
        size = min(size, sum(each[1] for each in stream.got if isinstance(each, tuple)))
        stream.got = []
        if stream.stream_state in (OPEN, HALF_CLOSED_LOCAL):
            ours.give_back(stream, size)
            theirs.acknowledge_received_data(size, number)
            sides.are_equal()
        return True
    if what == "reset":
        if stream.stream_state >= CLOSED:
            return True
        ours.reset_stream(number, ErrorCodes.CANCEL)
        ours.forget_stream(stream)
        sides.reset_by_us.add(number)
        theirs.reset_stream(number, ErrorCodes.CANCEL)
        sides.are_equal()
        return True
    size = min(size, max(ours.room_for(stream), 0))
    if what == "trailers" and not stream.is_head_sent:
        with pytest.raises(LocalProtocolError):  # h2 would take them for the head
            ours.send_trailers(stream, encoded_block(TRAILERS))
        return True
    if "data" in what and not stream.is_head_sent:
        with pytest.raises(LocalProtocolError):  # h2 sends them
            ours.send_data(stream, b"", is_last=False)
        return True
    try:
        if what == "interim":
            ours.send_interim_headers(stream, encoded_block(EARLY))
        elif "head" in what:
            ours.send_headers(stream, encoded_block(OK), is_last="end" in what)
        elif what == "trailers":
            ours.send_trailers(stream, encoded_block(TRAILERS))
        else:
            ours.send_data(stream, bytes(size), is_last="end" in what)
    except LocalProtocolError:
        if "head" not in what:
            with pytest.raises(ProtocolError):
                they_send(theirs, what, number, size)
            return False
        return True  # h2 would take them for trailers
    they_send(theirs, what, number, size)
    sides.are_equal()
    return True


def they_send(theirs: H2Connection, what: str, number: int, size: int) -> None:
    if "data" in what:
        theirs.send_data(number, bytes(size), end_stream="end" in what)
    else:
        fields = {"interim": EARLY, "trailers": TRAILERS}.get(what, OK)
        theirs.send_headers(number, fields, end_stream="end" in what or what == "trailers")


@pytest.mark.parametrize("is_client", [False, True])
@settings(max_examples=examples(400))
@given(game=GAMES)
def test_whatever_comes_and_goes_it_is_as_of_h2(is_client: bool, game: list[tuple[object, ...]]):
    sides = Sides(is_client)
    for step in game:
        if step[0] == "action":
            goes_on = acts(sides, *step[1:])  # type: ignore[arg-type]
        elif step[0] == "head":
            goes_on = receives_head(sides, *step[1:])  # type: ignore[arg-type]
        else:
            goes_on = receives(sides, *step)  # type: ignore[arg-type]
        if not goes_on:
            return


# --- what no game plays ----------------------------------------------------------------------------------------------
def test_of_a_setting_that_stands_twice_each_value_counts():
    sides = Sides(is_client=False)
    twice = b"\0\4\xff\xff\xff\xff" + b"\0\4\0\0\0\1"
    assert sides.they_receive(SETTINGS, 0, 0, twice) == "nothing"
    assert sides.receives(SETTINGS, 0, 0, twice) == "connection FLOW_CONTROL_ERROR"


def test_a_head_has_so_many_frames():
    sides = Sides(is_client=False)
    assert sides.receives(HEADERS, 0, 1, b"") == "nothing"
    for _ in range(MAX_HEAD_FRAMES - 1):
        assert sides.receives(CONTINUATION, 0, 1, b"") == "nothing"
    assert sides.receives(CONTINUATION, END_HEADERS, 1, b"") == "connection ENHANCE_YOUR_CALM"


def test_a_client_has_so_many_numbers():
    sides = Sides(is_client=True)
    sides.ours._last_of_ours = 2**31 - 3
    sides.ours.begin_stream(Stream())
    with pytest.raises(LocalProtocolError, match="used up"):
        sides.ours.begin_stream(Stream())


def test_more_than_a_window_allows_ends_the_connection():
    sides = Sides(is_client=False)
    for number in (1, 3, 5, 7, 9):
        assert sides.receives(HEADERS, END_HEADERS, number, encoded_block(GET)) == "nothing"
    piece = bytes(16384)
    for number in (1, 3, 5, 7):
        for _ in range(STREAM_WINDOW // len(piece)):
            assert sides.receives(DATA, 0, number, piece) == "nothing"
    assert sides.receives(DATA, 0, 9, b"x") == "connection FLOW_CONTROL_ERROR"
    sides.ours.receive_window = 10
    assert sides.receives(DATA, 0, 1, b"x") == "connection FLOW_CONTROL_ERROR"


def test_the_ends_of_the_latest_streams_are_remembered():
    closed, states = ClosedStreams(), (CLOSED, RESET_BY_US, RESET_BY_PEER)
    for number in range(1, 2 * MAX_CLOSED + 11):
        closed.add(number, states[number % 3])
        assert closed.state(number) == states[number % 3]
        assert len(closed) <= MAX_CLOSED
    assert closed.state(MAX_CLOSED + 11) == states[(MAX_CLOSED + 11) % 3]
    assert closed.state(MAX_CLOSED + 10) == IDLE


@pytest.mark.parametrize("is_client", [False, True])
def test_our_settings_name_the_size_of_the_table(is_client: bool):
    """nginx then says that its own is empty, and its blocks are read once."""
    ours = H2StateMachine(HeadLimits(), client_side=is_client)
    ours.begin(WINDOW)
    reader = FrameReader(has_preface=is_client)
    reader.feed(ours.take_frames())
    assert (reader.next(), reader.kind, reader.payload[:6]) == (True, SETTINGS, b"\0\1\0\0\x10\0")
