"""Clients and backends that both speak HTTP/2: what one says of a stream, the other hears of its own."""

from __future__ import annotations

from h2.errors import ErrorCodes

from tests.gateway.conftest import Start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin
from tests.support.manifests import Manifest

H2C: list[Manifest] = [
    m.gateway(m.http_listener(8080)),
    m.policy(),
    m.backend("a", "a.example", 80, protocol="H2C"),
    m.http_route("route", m.prefix_rule("/", "a")),
]
GRPC = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))


def asked(converse: Start, *, body: bytes | None, ends: bool) -> tuple[Conversation, Http2Peer, int, Http2Origin]:
    """A call has come to the backend."""
    talk = converse(H2C)
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/s/m", b"front.example", *GRPC, body=body, ends=ends)
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    origin.waits_for(1)
    return talk, client, stream, origin


def test_a_unary_call(converse: Start):
    talk, client, stream, origin = asked(converse, body=b"\0\0\0\0\2hi", ends=True)
    call = origin.server.calls[1]
    assert call.headers[b":method"] == b"POST"
    assert call.headers[b"te"] == b"trailers"
    assert (call.message, call.is_whole) == (b"hi", True)
    origin.server.answer(1, b"yes", text=b"fine")
    origin.goes_on()
    answer = client.answer(stream)
    assert (answer.status, bytes(answer.data)) == (200, b"\0\0\0\0\3yes")
    assert answer.trailers == [(b"grpc-status", b"0"), (b"grpc-message", b"fine")]
    assert talk.record()["status"] == 200


def test_trailers_alone(converse: Start):
    _, client, stream, origin = asked(converse, body=b"\0\0\0\0\0", ends=True)
    origin.server.answer(1, None, 5, b"no such thing")
    origin.goes_on()
    answer = client.answer(stream)
    assert (answer[b"grpc-status"], answer.data, answer.is_whole) == (b"5", b"", True)


def test_a_call_whose_two_directions_go_on_side_by_side(converse: Start):
    _, client, stream, origin = asked(converse, body=b"one", ends=False)
    assert origin.server.calls[1].data == b"one"
    h2 = origin.server.h2
    h2.send_headers(1, [(b":status", b"200"), (b"content-type", b"application/grpc")])
    for said, answered in ((b"two", b"2"), (b"three", b"3")):
        h2.send_data(1, answered)
        origin.goes_on()
        assert client.answer(stream).data.endswith(answered)
        client.says(stream, said)
        origin.goes_on()
        assert origin.server.calls[1].data.endswith(said)
    client.says(stream, b"", ends=True)
    origin.goes_on()
    assert origin.server.calls[1].is_whole
    h2.send_headers(1, [(b"grpc-status", b"0")], end_stream=True)
    origin.goes_on()
    answer = client.answer(stream)
    assert (answer.trailers, answer.is_whole, answer.reset) == ([(b"grpc-status", b"0")], True, None)


def test_a_reset_of_the_client_resets_the_stream_of_the_backend_alone(converse: Start):
    _, client, stream, origin = asked(converse, body=b"one", ends=False)
    client.resets(stream)
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    other = client.ask(b"GET", b"/", b"front.example")
    origin.waits_for(2)
    origin.responds(3)
    assert client.answer(other).is_whole


def test_a_reset_of_the_backend_in_the_middle_of_its_answer_resets_the_stream_of_the_client_alone(converse: Start):
    talk, client, stream, origin = asked(converse, body=b"one", ends=True)
    origin.server.h2.send_headers(1, [(b":status", b"200")])
    origin.server.h2.send_data(1, b"half")
    origin.goes_on()
    assert bytes(client.answer(stream).data) == b"half"
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    answer = client.answer(stream)
    assert (answer.is_whole, answer.reset) == (False, ErrorCodes.INTERNAL_ERROR)
    assert talk.record()["reason"] == "upstream_incomplete"
    other = client.ask(b"GET", b"/", b"front.example")
    origin.waits_for(2)
    origin.responds(3)
    assert client.answer(other).is_whole


def test_a_reset_of_the_backend_before_its_answer_is_answered_502(converse: Start):
    talk = converse(H2C)
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/x", b"front.example", body=b"one")
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    origin.waits_for(1)
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    answer = client.answer(stream)
    assert (answer.status, answer.is_whole, answer.reset) == (502, True, None)


def test_windows_hold_the_backend_back(converse: Start):
    _, client, stream, origin = asked(converse, body=b"one", ends=True)
    client.opens_windows = False
    h2 = origin.server.h2
    h2.send_headers(1, [(b":status", b"200")])
    sent = 0
    while room := min(h2.local_flow_control_window(1), 16384):
        h2.send_data(1, bytes(room))
        sent += room
        origin.goes_on()
        client.settle()
        assert sent < 1 << 20, "somebody keeps all that nobody reads"
    assert len(client.answer(stream).data) == 65535
    client.opens_windows = True
    client.h2.acknowledge_received_data(65535, stream)
    for _ in range(20):
        client.settle()
        origin.goes_on()
    assert len(client.answer(stream).data) == sent
    assert h2.local_flow_control_window(1) > 0
    h2.end_stream(1)
    origin.goes_on()
    assert client.answer(stream).is_whole
