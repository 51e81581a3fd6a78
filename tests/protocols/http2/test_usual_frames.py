"""The frames of ordinary exchanges leave h2 where its own functions do, and are the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, TooManyStreamsError
from h2.settings import SettingCodes
from h2.stream import H2StreamStateMachine

from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http2.field_coding import FieldEncoder, FieldList
from egressproxy.protocols.http2.states import ConnectionStates
from tests.support.http2_client import head, raw_frame

HEAD = head(b"GET", b"/", b"a.example")
OK: FieldList = [(b":status", b"200"), (b"x-a", b"b")]
EARLY: FieldList = [(b":status", b"103"), (b"x-a", b"b")]
TRAILERS: FieldList = [(b"x-sum", b"1")]


def block(fields: FieldList) -> bytes:
    encoder = FieldEncoder()
    encoder.encode([])
    return encoder.encode(fields)


def parsed(frame: bytes) -> tuple[int, int, bytes]:
    """Flags, stream and bytes."""
    return frame[4], int.from_bytes(frame[5:9], "big"), frame


class Server(ConnectionStates):
    is_client = False

    def __init__(self) -> None:
        super().__init__(client_side=self.is_client, limits=HeadLimits(), extended_connect=False)
        self.initiate_connection()
        self.clear_outbound_data_buffer()

    def hears(self, frame: bytes) -> list[Any]:
        return self.receive_data(frame)

    def says_head(self, number: int, fields: FieldList, *, is_last: bool) -> None:
        self.send_headers(number, fields, end_stream=is_last)

    def says(self, number: int, data: bytes, *, is_last: bool) -> None:
        self.send_data(number, data, end_stream=is_last)

    def says_trailers(self, number: int, fields: FieldList) -> None:
        self.send_headers(number, fields, end_stream=True)

    def reads(self, number: int, size: int) -> None:
        self.acknowledge_received_data(size, number)

    def ended(self) -> object:
        """Everything that h2 knows."""
        streams = {
            number: (
                {name: getattr(stream.state_machine, name) for name in vars(H2StreamStateMachine(0))},
                stream.outbound_flow_control_window,
                vars(stream._inbound_window_manager),
                stream.max_outbound_frame_size,
            )
            for number, stream in self.streams.items()
        }
        return (
            streams,
            self.highest_inbound_stream_id,
            self.highest_outbound_stream_id,
            self.outbound_flow_control_window,
            vars(self._inbound_flow_control_window_manager),
            self.state_machine.state,
            bytes(self._data_to_send),
        )


class Usual(Server):
    def hears(self, frame: bytes) -> list[Any]:
        kind, parts = frame[3], parsed(frame)
        found: Any = None
        if kind == 1:
            found = self.new_request(*parts) or self.new_fields(*parts)
        if kind == 0:
            found = self.new_data(*parts)
        return self.hear(kind, frame) if found is None else [found]

    def reads(self, number: int, size: int) -> None:
        before = len(self._data_to_send)
        assert self.give_back(number, size) or len(self._data_to_send) == before

    def says_head(self, number: int, fields: FieldList, *, is_last: bool) -> None:
        self.say_response(number, block(fields), is_last=is_last)

    def says_trailers(self, number: int, fields: FieldList) -> None:
        self.say_trailers(number, block(fields))

    def says(self, number: int, data: bytes, *, is_last: bool) -> None:
        if is_last or not self.say_at_once(number, data):
            self.say_data(number, data, is_last=is_last)


def client() -> H2Connection:
    made = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    made.initiate_connection()
    return made


def both(does: Callable[[Server], None]) -> None:
    usual, plain = Usual(), Server()
    for server in (plain, usual):
        server.receive_data(client().data_to_send())
        server.hears(raw_frame(1, block(HEAD), 1, 5))  # h2 reads the first one
        does(server)
    assert usual.ended() == plain.ended()


@pytest.mark.parametrize("ends", [False, True])
def test_a_whole_exchange(ends: bool):
    def does(server: Server) -> None:
        assert len(server.hears(raw_frame(1, block(HEAD), 3, 5 if ends else 4))) > 0
        server.says_head(3, OK, is_last=False)
        server.says(3, b"x" * 1000, is_last=False)
        server.says(3, b"y", is_last=True)

    both(does)


@pytest.mark.parametrize("ends", [False, True])
def test_a_head_alone(ends: bool):
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 7, 5 if ends else 4))
        server.says_head(7, OK, is_last=True)

    both(does)


@pytest.mark.parametrize("size", [16300, 16384, 40000, 60000])
def test_a_long_head_goes_on_in_other_frames(size: int):
    both(lambda server: server.says_head(1, [*OK, (b"x-long", b"v" * size)], is_last=True))


def test_the_body_of_a_request_comes_behind_its_head():
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 3, 4))
        server.hears(raw_frame(0, b"x" * 100, 3, 1))
        server.says_head(3, OK, is_last=False)
        server.says(3, b"y", is_last=True)

    both(does)


def test_the_peers_settings_hold_for_streams_that_begin_behind_them():
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 3, 5))
        server.hears(raw_frame(4, int(SettingCodes.INITIAL_WINDOW_SIZE).to_bytes(2, "big") + (7).to_bytes(4, "big")))
        server.hears(raw_frame(1, block(HEAD), 5, 5))
        server.says_head(5, OK, is_last=False)
        server.says(5, b"1234567", is_last=False)

    both(does)


@pytest.mark.parametrize(
    ("number", "flags", "payload"),
    [
        (2, 5, block(HEAD)),  # a stream of ours
        (1, 5, block(HEAD)),  # one that has begun
        (3, 1, block(HEAD)),  # CONTINUATION follows
        (3, 0x0D, b"\1" + block(HEAD) + b"\0"),  # padded
        (3, 0x25, bytes(4) + b"\x10" + block(HEAD)),  # with priority
        (0, 5, block(HEAD)),
    ],
)
def test_what_is_not_usual_is_left_to_h2(number: int, flags: int, payload: bytes):
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5))
    before = server.ended()
    assert server.new_request(*parsed(raw_frame(1, payload, number, flags))) is None
    assert server.ended() == before


def test_nothing_is_usual_inside_a_head():
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5))
    server.receive_data(raw_frame(1, block(HEAD)[:3], 3, 1))
    assert server.new_request(*parsed(raw_frame(1, block(HEAD), 5, 5))) is None
    assert server.new_fields(*parsed(raw_frame(1, block(TRAILERS), 1, 5))) is None


def test_a_block_that_cannot_be_decoded_ends_the_connection_as_h2_ends_it():
    def does(server: Server) -> None:
        with pytest.raises(ProtocolError) as raised:
            server.hears(raw_frame(1, b"\xff\xff\xff\xff\xff\xff", 3, 5))
        assert raised.value.error_code == ErrorCodes.COMPRESSION_ERROR

    both(does)


def test_there_is_one_response():
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5))
    server.says_head(1, OK, is_last=False)
    with pytest.raises(ProtocolError):
        server.says_head(1, OK, is_last=False)


def test_no_frame_is_longer_than_its_window():
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5))
    server.says_head(1, OK, is_last=False)
    for _ in range(65535 // 16383):
        server.says(1, b"x" * 16383, is_last=False)
    assert server.room_for(1) == 3
    with pytest.raises(ProtocolError):
        server.says(1, b"four", is_last=False)
    assert server.outbound_flow_control_window == 3


@pytest.mark.parametrize("read", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("says_first", [False, True])
def test_a_long_body_uses_windows_up_and_gets_them_back(read: float, says_first: bool):
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 3, 4))
        server.hears(raw_frame(1, block(HEAD), 5, 4))
        if says_first:
            server.says_head(3, OK, is_last=True)
        for piece in range(36):
            number = 3 if piece % 3 else 5
            server.hears(raw_frame(0, b"x" * (100 * piece), number, 0))
            if size := int(100 * piece * read):
                server.reads(number, size)
        server.hears(raw_frame(0, b"x", 3, 1))
        server.reads(3, 1)
        server.hears(raw_frame(0, b"", 5, 1))

    both(does)


def test_more_than_a_window_allows_ends_the_connection():
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 3, 4))
        for _ in range(3):
            server.hears(raw_frame(0, b"x" * 16384, 3, 0))
        with pytest.raises(ProtocolError) as raised:
            server.hears(raw_frame(0, b"x" * 16384, 3, 0))
        assert raised.value.error_code == ErrorCodes.FLOW_CONTROL_ERROR

    both(does)


@pytest.mark.parametrize(
    ("number", "flags", "payload"), [(1, 0, b"x"), (3, 8, b"\1x\0"), (5, 0, b"x"), (0, 0, b"x"), (2, 0, b"x")]
)
def test_data_that_is_not_usual_is_left_to_h2(number: int, flags: int, payload: bytes):
    """On a stream that has ended, padded, on one that has not begun, on the connection, on one of ours."""
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5) + raw_frame(1, block(HEAD), 3, 4))
    before = server.ended()
    assert server.new_data(*parsed(raw_frame(0, payload, number, flags))) is None
    assert server.ended() == before


def test_the_trailers_of_a_request():
    def does(server: Server) -> None:
        server.hears(raw_frame(1, block(HEAD), 3, 4))
        server.hears(raw_frame(0, b"x" * 100, 3, 0))
        server.hears(raw_frame(1, block(TRAILERS), 3, 5))
        server.says_head(3, OK, is_last=True)
        server.hears(raw_frame(1, block(HEAD), 5, 4))
        server.says_head(5, OK, is_last=True)
        server.hears(raw_frame(1, block(TRAILERS), 5, 5))

    both(does)


def test_the_trailers_of_a_response():
    def does(server: Server) -> None:
        server.says_head(1, OK, is_last=False)
        server.says(1, b"x", is_last=False)
        server.says_trailers(1, TRAILERS)

    both(does)


def test_trailers_have_their_place():
    server = Usual()
    server.receive_data(client().data_to_send())
    server.receive_data(raw_frame(1, block(HEAD), 1, 5) + raw_frame(1, block(HEAD), 3, 5))
    with pytest.raises(ProtocolError):
        server.says_trailers(1, TRAILERS)
    server.says_head(3, OK, is_last=False)
    server.says_trailers(3, TRAILERS)
    with pytest.raises(ProtocolError):
        server.says_trailers(3, TRAILERS)


# --- as a client ---------------------------------------------------------------------------------------------------
class Client(Server):
    is_client = True

    def asks(self, number: int, *, is_last: bool) -> None:
        self.send_headers(number, HEAD, end_stream=is_last)


class UsualClient(Usual):
    is_client = True

    def asks(self, number: int, *, is_last: bool) -> None:
        self.say_request(number, block(HEAD), is_last=is_last)


def both_clients(does: Callable[[Any], None]) -> None:
    usual, plain = UsualClient(), Client()
    for asker in (plain, usual):
        asker.receive_data(raw_frame(4))
        does(asker)
    assert usual.ended() == plain.ended()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("trailers", [False, True])
def test_requests_and_their_responses(ends: bool, trailers: bool):
    def does(asker: Any) -> None:
        for number in (1, 3):
            asker.asks(number, is_last=ends)
            asker.hears(raw_frame(1, block(EARLY), number, 4))
            asker.hears(raw_frame(1, block(EARLY), number, 4))
            if not ends:
                asker.says(number, b"x" * 100, is_last=False)
            asker.hears(raw_frame(1, block(OK), number, 4))
            asker.hears(raw_frame(0, b"x" * 100, number, 0 if trailers else 1))
            if trailers:
                asker.hears(raw_frame(1, block(TRAILERS), number, 5))
            if not ends:
                asker.says_trailers(number, TRAILERS)

    both_clients(does)


@pytest.mark.parametrize("ends", [False, True])
def test_a_response_that_is_its_head(ends: bool):
    def does(asker: Any) -> None:
        asker.asks(1, is_last=ends)
        asker.hears(raw_frame(1, block(OK), 1, 5))

    both_clients(does)


def test_a_server_takes_so_many_streams():
    asker = UsualClient()
    asker.receive_data(raw_frame(4, int(SettingCodes.MAX_CONCURRENT_STREAMS).to_bytes(2, "big") + bytes((0, 0, 0, 1))))
    asker.asks(1, is_last=True)
    with pytest.raises(TooManyStreamsError):
        asker.asks(3, is_last=True)


@pytest.mark.parametrize("number", [1, 2])
def test_a_request_begins_a_stream_of_its_own(number: int):
    asker = UsualClient()
    asker.receive_data(raw_frame(4))
    asker.asks(1, is_last=True)
    with pytest.raises(ProtocolError):
        asker.asks(number, is_last=True)


@pytest.mark.parametrize(
    ("number", "flags", "fields"),
    [
        (3, 5, OK),  # a stream that has not begun
        (2, 5, OK),  # one that the server would begin
        (1, 1, OK),  # CONTINUATION follows
        (5, 4, TRAILERS),  # no END_STREAM behind a response
        (7, 5, TRAILERS),  # behind its end
        (9, 5, OK),  # the second trailers
        (0, 5, OK),
    ],
)
def test_fields_that_are_not_usual_are_left_to_h2(number: int, flags: int, fields: FieldList):
    asker = UsualClient()
    asker.receive_data(raw_frame(4))
    for begun in (1, 5, 7, 9):
        asker.asks(begun, is_last=begun != 9)
    asker.receive_data(raw_frame(1, block(OK), 5, 4) + raw_frame(1, block(OK), 7, 5))
    asker.receive_data(raw_frame(1, block(OK), 9, 4) + raw_frame(1, block(TRAILERS), 9, 5))
    before = asker.ended()
    assert asker.new_fields(*parsed(raw_frame(1, block(fields), number, flags))) is None
    assert asker.ended() == before


def test_an_answer_of_a_server_that_cannot_be_decoded_ends_the_connection():
    def does(asker: Any) -> None:
        asker.asks(1, is_last=True)
        with pytest.raises(ProtocolError) as raised:
            asker.hears(raw_frame(1, b"\xff\xff\xff\xff\xff\xff", 1, 5))
        assert raised.value.error_code == ErrorCodes.COMPRESSION_ERROR

    both_clients(does)


@pytest.mark.parametrize("ends", [False, True])
def test_a_reset(ends: bool):
    def does(asker: Any) -> None:
        asker.asks(1, is_last=ends)
        asker.asks(3, is_last=ends)
        asker.hears(raw_frame(1, block(OK), 3, 4))
        asker.asks(5, is_last=True)
        asker.hears(raw_frame(1, block(OK), 5, 5))
        for number in (1, 3, 3, 5):
            if isinstance(asker, UsualClient):
                asker.heard_reset(number)
            else:
                asker.receive_data(raw_frame(3, bytes(4), number))

    both_clients(does)


@pytest.mark.parametrize(("number", "has_begun"), [(1, True), (3, True), (5, False), (2, False), (0, True)])
def test_streams_that_have_begun(number: int, has_begun: bool):
    """Those of each side count for themselves."""
    asker, server = UsualClient(), Usual()
    asker.receive_data(raw_frame(4))
    asker.asks(3, is_last=True)
    server.receive_data(client().data_to_send() + raw_frame(1, block(HEAD), 3, 5))
    assert asker.has_begun(number) is server.has_begun(number) is has_begun
