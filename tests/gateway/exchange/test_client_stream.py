"""Streams of HTTP/2, served by the real data plane."""

from __future__ import annotations

import json

import pytest
from h2.errors import ErrorCodes

from egressproxy.errors import BadRequest, Reason
from egressproxy.gateway.exchange.clock import ANSWER_S
from egressproxy.net.flow_control import HIGH_WATER
from egressproxy.protocols.http1.downstream import LINGER_SIZE
from egressproxy.protocols.http2.connection import MAX_AT_ONCE
from egressproxy.protocols.http2.downstream import GIVEN_UP
from egressproxy.protocols.http2.downstream_stream import REST_SIZE
from egressproxy.protocols.http2.frames import BURST
from egressproxy.protocols.http2.settings import MAX_STREAMS, STREAM_WINDOW
from tests.gateway.conftest import Start
from tests.gateway.h2 import Http2Peer, speak_http2
from tests.gateway.kit import GET_SENT, OK, TlsClient, certificate, connect, forward, https, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin
from tests.support.http2_client import head, raw_frame
from tests.support.manifests import Manifest
from tests.support.pki import Pki

POST_SENT = b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED_SENT = b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n"


def timed(**timeouts: str) -> list[Manifest]:
    return forward(traffic={"timeouts": timeouts})


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


@pytest.fixture
def start(converse: Start) -> Start:
    """Conversations with a forward proxy, unless something else is said."""
    return lambda written=None: converse(forward() if written is None else written)


def in_flight(talk: Conversation) -> tuple[Http2Peer, int]:
    """A client of HTTP/2, and the stream of its request, which the origin has."""
    client = speak_http2(talk)
    stream = client.ask()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    return client, stream


def test_a_request_and_its_answer(start: Start):
    talk = start()
    client, stream = in_flight(talk)
    talk.origin >> OK
    answer = client.answer(stream)
    assert answer.status == 200
    assert answer[b"via"] == b"1.1 gw"
    assert answer[b"content-length"] == b"2"
    assert answer[b"date"]
    assert (bytes(answer.data), answer.is_whole, answer.reset) == (b"hi", True, None)
    record = talk.record()
    assert (record["status"], record["method"], record["authority"]) == (200, "GET", "a.example:80")


def test_streams_are_served_side_by_side(start: Start):
    talk = start()
    client = speak_http2(talk)
    first, second = client.get(b"/1"), client.get(b"/2")
    client.settle()
    one = talk.dialled("a.example", 80)
    other = talk.dialled("a.example", 80)
    one << GET_SENT.replace(b"/ ", b"/1 ")
    other << GET_SENT.replace(b"/ ", b"/2 ")
    other >> OK.replace(b"hi", b"22")
    assert bytes(client.answer(second).data) == b"22"
    assert not client.answer(first).fields
    one >> OK.replace(b"hi", b"11")
    assert bytes(client.answer(first).data) == b"11"


def test_many_requests_on_one_connection_leave_nothing_behind(start: Start):
    talk = start()
    client = speak_http2(talk)
    for number in range(300):
        stream = client.ask()
        if not number:
            talk.dialled("a.example", 80)
        talk.origin << GET_SENT
        talk.origin >> OK
        assert client.answer(stream).is_whole
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]


def test_cookie_crumbs_and_fields_of_this_hop(start: Start):
    talk = start()
    client = speak_http2(talk)
    client.ask(
        b"GET", b"/", b"a.example", (b"cookie", b"a=1"), (b"x-a", b"1"), (b"cookie", b"b=2"), (b"te", b"trailers")
    )
    talk.dialled("a.example", 80)
    talk.origin << (
        b"GET / HTTP/1.1\r\nHost: a.example\r\ncookie: a=1; b=2\r\nx-a: 1\r\nVia: 1.1 gw\r\n"
        b"Connection: TE\r\nTE: trailers\r\n\r\n"
    )


def test_a_body_with_a_length(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"a.example", (b"content-length", b"3"), body=b"abc")
    talk.dialled("a.example", 80)
    talk.origin << POST_SENT
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_a_body_without_a_length_and_trailers(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", body=b"abc", ends=False)
    talk.dialled("a.example", 80)
    talk.origin << CHUNKED_SENT + b"3\r\nabc\r\n"
    client.says(stream, b"defg")
    talk.origin << b"4\r\ndefg\r\n"
    client.h2.send_headers(stream, [(b"x-sum", b"9"), (b"host", b"b.example")], end_stream=True)
    client.settle()
    talk.origin << b"0\r\nx-sum: 9\r\n\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    answer = client.answer(stream)
    assert (bytes(answer.data), answer.trailers, answer.is_whole) == (b"hi", [(b"x-sum", b"1")], True)


def test_an_empty_body_that_is_said_late(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", ends=False)
    client.says(stream, b"", ends=True)
    talk.dialled("a.example", 80)
    talk.origin << CHUNKED_SENT + b"0\r\n\r\n"
    talk.origin >> OK
    assert client.answer(stream).is_whole


@pytest.mark.parametrize(("said", "is_last"), [(b"ab", True), (b"abcd", False), (b"abcd", True)])
def test_a_body_of_another_length_than_was_said_is_answered_400_and_reset(start: Start, said: bytes, is_last: bool):
    talk = start()
    client = speak_http2(talk)
    other = client.ask(b"GET", b"/other")
    stream = client.ask(b"POST", b"/", b"a.example", (b"content-length", b"3"), body=said, ends=is_last)
    answer = client.answer(stream)
    assert answer.status == 400
    assert answer.reset == ErrorCodes.PROTOCOL_ERROR
    assert json.loads(bytes(answer.data))["error"]["reason"] == "bad_framing"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET /other.*?\r\n\r\n")
    talk.origin >> OK
    assert client.answer(other).is_whole, "its sibling goes on"


@pytest.mark.parametrize(("fields", "status", "reason"), [
    ([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")], 400, "bad_host"),
    (head(b"GET", b"/ HTTP/1.1", b"a.example"), 400, "bad_target"),
    (head(b"GET /x", b"/", b"a.example"), 400, "bad_request_line"),
    ([*head(b"GET", b"/", b"a.example"), (b"Upper", b"1")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"x", b"a\r\nb: c")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"connection", b"close")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"transfer-encoding", b"chunked")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"te", b"gzip")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"content-length", b"10")], 400, "bad_framing"),
    ([*head(b"GET", b"/", b"a.example"), (b"host", b"b.example")], 400, "bad_host"),
    ([*head(b"GET", b"/", b"a.example"), (b":path", b"/x")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b":status", b"200")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), (b"x", b"y"), (b":protocol", b"z")], 400, "bad_field"),
    ([*head(b"GET", b"/", b"a.example"), *[(b"x", b"y")] * 129], 431, "head_too_large"),
    (head(b"GET", b"/" + 9000 * b"x", b"a.example"), 414, "target_too_long"),
])  # fmt: skip
def test_a_head_that_is_none_is_answered_and_its_stream_alone_is_reset(
    start: Start, fields: list[tuple[bytes, bytes]], status: int, reason: str
):
    talk = start()
    client = speak_http2(talk)
    stream = client.asks(fields)
    answer = client.answer(stream)
    assert (answer.status, talk.record()["reason"]) == (status, reason)
    assert answer.reset == (ErrorCodes.PROTOCOL_ERROR if status == 400 else None)
    talk.no_dial()
    stream = client.ask()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_content_behind_a_length_of_0_is_answered_400(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"a.example", (b"content-length", b"0"), ends=False)
    talk.dialled("a.example", 80)
    talk.origin << b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 0\r\n\r\n"
    client.says(stream, b"x")
    answer = client.answer(stream)
    assert (answer.status, answer.reset) == (400, ErrorCodes.PROTOCOL_ERROR)
    stream = client.ask(b"POST", b"/", b"a.example", (b"content-length", b"0"), ends=False)
    client.says(stream, b"", ends=True)
    talk.dialled("a.example", 80)
    talk.origin << b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 0\r\n\r\n"
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_a_denial_is_answered_and_the_rest_of_the_request_is_not_wanted(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"b.example", body=b"abc", ends=False)
    answer = client.answer(stream)
    assert (answer.status, answer.is_whole, answer.reset) == (403, True, None)
    talk.after(2.2)
    assert client.answer(stream).reset == ErrorCodes.NO_ERROR
    assert answer[b"content-type"] == b"application/json"


def test_an_answer_that_comes_before_the_request_is_whole(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", body=b"abc", ends=False)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*abc\r\n")
    talk.origin >> OK
    answer = client.answer(stream)
    assert (answer.status, answer.is_whole, answer.reset) == (200, True, None)
    sent = 0
    while (room := min(client.h2.local_flow_control_window(stream), 16384)) and client.of(stream).reset is None:
        client.says(stream, bytes(room))
        sent += room
    assert sent >= LINGER_SIZE, "so much is still read"
    assert client.of(stream).reset == ErrorCodes.NO_ERROR


def test_a_small_rest_of_a_request_is_read_behind_its_answer(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"b.example", body=b"abc", ends=False)
    assert client.answer(stream).status == 403
    client.says(stream, b"def", ends=True)
    talk.after(3)
    assert client.answer(stream).reset is None


def test_a_body_beyond_its_limit_is_answered_413(start: Start):
    talk = start(forward(limits={"maxBodyBytes": 4}))
    client = speak_http2(talk)
    stream = client.ask(b"POST", body=b"abc", ends=False)
    talk.dialled("a.example", 80)
    client.says(stream, b"def")
    answer = client.answer(stream)
    assert (answer.status, answer.is_whole) == (413, True)


def test_interim_responses_pass(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"a.example", (b"expect", b"100-continue"), ends=False)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    interim = client.answer(stream).interim
    assert [fields[0] for fields in interim] == [(b":status", b"103"), (b":status", b"100")]
    assert (b"link", b"</a>") in interim[0]
    client.says(stream, b"abc", ends=True)
    talk.origin << b"3\r\nabc\r\n0\r\n\r\n"
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_head_has_no_body(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"HEAD")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"HEAD .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n"
    answer = client.answer(stream)
    assert (answer.status, answer[b"content-length"], answer.is_whole, answer.reset) == (200, b"20", True, None)


def test_an_answer_that_breaks_off_resets_its_stream(start: Start):
    talk = start()
    client, stream = in_flight(talk)
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf"
    assert bytes(client.answer(stream).data) == b"half"
    talk.origin.leaves()
    answer = client.answer(stream)
    assert (answer.is_whole, answer.reset) == (False, ErrorCodes.INTERNAL_ERROR)
    assert talk.record()["reason"] == "upstream_incomplete"
    assert not talk.client.is_gone


def test_a_stream_that_the_client_resets_ends_its_exchange(start: Start):
    talk = start()
    client, stream = in_flight(talk)
    client.resets(stream)
    talk.origin.is_closed()
    assert talk.record()["reason"] == "client_gone"
    assert not talk.client.is_gone


def test_a_client_that_leaves_ends_all_exchanges(start: Start):
    talk = start()
    client = speak_http2(talk)
    client.ask()
    talk.dialled("a.example", 80)
    talk.client.leaves()
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin.is_closed()
    assert talk.record()["reason"] == "client_gone"


def test_a_client_that_reads_slowly_pauses_the_upstream(start: Start):
    talk = start()
    client = speak_http2(talk)
    client.opens_windows = False
    stream = client.ask()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(700_000)
    assert len(client.answer(stream).data) == 65535
    assert talk.origin.transport.is_paused  # type: ignore[attr-defined]
    while len(client.of(stream).data) < 700_000:
        client.h2.acknowledge_received_data(65535, stream)
        before = len(client.of(stream).data)
        client.settle()
        assert len(client.of(stream).data) > before
        if len(client.of(stream).data) + 65535 > 700_000:
            client.opens_windows = True
    talk.origin >> bytes(300_000)
    assert client.answer(stream).is_whole


def test_an_upstream_that_reads_slowly_pauses_the_client(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/", b"a.example", (b"content-length", b"1000000"), body=b"x", ends=False)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\nx")
    talk.origin.stalls()  # type: ignore[attr-defined]
    sent = 1
    while room := min(client.h2.local_flow_control_window(stream), 16384, 1_000_000 - sent):
        client.says(stream, bytes(room), ends=sent + room == 1_000_000)
        sent += room
    assert sent <= STREAM_WINDOW + 2 * HIGH_WATER + 65536
    talk.origin.reads_on()  # type: ignore[attr-defined]
    client.settle()
    while sent < 1_000_000:
        room = min(client.h2.local_flow_control_window(stream), 16384, 1_000_000 - sent)
        assert room
        client.says(stream, bytes(room), ends=sent + room == 1_000_000)
        sent += room
    talk.origin.take(rb".{999999}$")
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_a_body_that_comes_before_the_upstream_is_there_waits_in_its_window(start: Start):
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", body=b"x", ends=False)
    sent = 1
    while room := min(client.h2.local_flow_control_window(stream), 16384):
        client.says(stream, bytes(room))
        sent += room
    assert sent == STREAM_WINDOW
    talk.dialled("a.example", 80)
    client.settle()
    client.says(stream, b"end", ends=True)
    talk.origin.take(rb"POST .*end\r\n0\r\n\r\n$")
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_a_stream_too_many_is_refused_and_may_be_asked_again(start: Start):
    talk = start()
    talk.names.hold("a.example")
    client = speak_http2(talk)
    client.h2.remote_settings[3] = 1000
    client.h2.remote_settings.acknowledge()
    streams = [client.get() for _ in range(MAX_STREAMS + 1)]
    client.settle()
    talk.settle()
    assert client.answer(streams[-1]).reset == ErrorCodes.REFUSED_STREAM
    assert client.answer(streams[0]).reset is None
    for stream in streams[:-1]:
        client.h2.reset_stream(stream)
    client.settle()


def test_a_client_that_cuts_most_of_what_it_asks_for_is_told_to_calm_down(start: Start):
    talk = start()
    talk.names.hold("a.example")
    client = speak_http2(talk)
    for _ in range(GIVEN_UP):
        client.resets(client.ask())
    assert not talk.client.is_gone
    client.resets(client.ask())
    talk.client.is_closed()
    assert client.goaways[-1][1] == ErrorCodes.ENHANCE_YOUR_CALM


def test_a_client_that_cuts_no_more_than_one_half_goes_on(start: Start):
    talk = start()
    client = speak_http2(talk)
    for _ in range(GIVEN_UP + 5):
        assert client.answer(client.ask(b"GET", b"/", b"denied.example")).status == 403
        client.resets(client.ask())
    assert not talk.client.is_gone


def test_rapid_resets_end_the_connection_and_are_counted(start: Start):
    talk = start()
    talk.names.hold("a.example")
    client = speak_http2(talk)
    for _ in range(int(BURST) + 200):
        stream = client.get()
        client.h2.reset_stream(stream)
        if talk.client.is_gone:
            break
        if stream % 50 == 1:
            client.settle()
    client.settle()
    talk.client.is_closed()
    assert client.goaways[-1][1] == ErrorCodes.ENHANCE_YOUR_CALM
    assert talk.metrics.http2_connections_broken == {"enhance_your_calm": 1}


# --- time ------------------------------------------------------------------------------------------------------------
def test_an_idle_connection_is_closed_with_goaway(start: Start):
    talk = start(timed(**{"idle": "30s"}))
    client, stream = in_flight(talk)
    talk.after(20)
    talk.origin >> OK
    assert client.answer(stream).is_whole
    talk.after(29)
    assert not talk.client.is_gone
    talk.after(2)
    client.settle()
    assert client.goaways == [(stream, 0, b"")]
    talk.client.is_closed()


def test_a_connection_that_asks_for_nothing_has_the_time_of_a_head(start: Start):
    talk = start(timed(**{"requestHeaders": "5s"}))
    client = speak_http2(talk)
    talk.after(6)
    client.settle()
    assert client.goaways
    talk.client.is_closed()


def test_a_head_that_trickles_ends_the_connection(start: Start):
    talk = start(timed(**{"requestHeaders": "5s"}))
    client = speak_http2(talk)
    client >> raw_frame(1, b"\x82", 1, flags=1)
    for _ in range(6):
        talk.after(1)
        if not talk.client.is_gone:
            client >> raw_frame(9, b"\x84", 1)
    client.settle()
    assert client.goaways[-1][1] == ErrorCodes.ENHANCE_YOUR_CALM
    talk.client.is_closed()


def test_a_part_of_a_head_behind_another_head_has_the_time_of_a_head(start: Start):
    talk = start(timed(**{"requestHeaders": "5s"}))
    talk.counts_octets = False
    one, two = (raw_frame(1, b"\x82\x86\x84\x41\x09b.example", number, flags=5) for number in (1, 3))
    talk.client >> b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4) + one[:12]
    talk.client >> one[12:] + two[:12]
    talk.settle()
    talk.after(6)
    talk.settle()
    assert not talk.ports[0].state.connections


def test_trailers_that_wait_for_the_next_turn_are_no_head_that_has_begun(start: Start):
    talk = start(timed(**{"requestHeaders": "5s"}))
    talk.counts_octets = False
    block = b"\x86\x84\x41\x09b.example"
    heads = [raw_frame(1, b"\x83" + block, 1, flags=4)]
    heads += [raw_frame(1, b"\x82" + block, number, flags=5) for number in range(3, 2 * MAX_AT_ONCE, 2)]
    trailers = raw_frame(1, b"\x00\x03x-a\x011", 1, flags=5)
    talk.client >> b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4) + b"".join(heads) + trailers
    talk.settle()
    talk.after(6)
    talk.settle()
    assert talk.ports[0].state.connections


@pytest.mark.parametrize("protocol", ["HTTP11", "H2C"])
@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        ("no address", 5),
        ("no connection", 5),
        ("a head alone", 5),
        ("a part of the body", 10),
        ("a length of 0 and no end", ANSWER_S),
        ("a whole request", ANSWER_S),
        ("a part of the response", 10),
        ("a response that is not taken", 10),
    ],
)
def test_in_every_state_a_stream_ends_in_time(converse: Start, state: str, seconds: float, protocol: str):
    """After `idle`, or within twice that where something had moved; a response may take ANSWER_S."""
    backend = m.backend("a", "a.example", 80, protocol=protocol)
    policy = m.policy(traffic={"timeouts": {"idle": "5s", "connect": "0s"}})
    talk = converse([m.gateway(m.http_listener(8080)), policy, backend, m.http_route("r", m.prefix_rule("/", "a"))])
    if state == "no address":
        talk.names.hold("a.example")
    client = speak_http2(talk, window=1)
    is_whole = state in ("a whole request", "a part of the response", "a response that is not taken")
    length = ((b"content-length", b"0"),) if state == "a length of 0 and no end" else ()
    body = b"part" if state == "a part of the body" else None
    stream = client.ask(b"POST", b"/", b"x", *length, body=body, ends=is_whole)
    if state == "no connection":
        assert talk.pending_dial()
    elif state != "no address":
        _begins_to_answer(talk, protocol, state)
    client.opens_windows = state != "a response that is not taken"
    client.settle()
    talk.act(lambda: talk.wheel.advance(talk.wheel.now + min(seconds, 5) - 0.3))
    talk.act(lambda: talk.wheel.advance(talk.wheel.now + seconds - min(seconds, 5)))
    assert not talk.records
    talk.after(5.5)
    answer = client.answer(stream)
    assert talk.record()["reason"] == "upstream_timeout"
    assert answer.status == (200 if "response" in state else 504)
    assert answer.reset is not None or answer.is_whole
    talk.after(2.5)  # the rest of the request is read for a moment
    client.settle()
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]
    assert (talk.open, talk.idle) in ((0, 0), (1, 1))


def _begins_to_answer(talk: Conversation, protocol: str, state: str) -> None:
    """The backend has the request, and has answered as much as `state` says."""
    peer = talk.dialled("a.example", 80)
    if protocol == "H2C":
        origin = Http2Origin(talk, peer)
        origin.waits_for(1)
        if "response" in state:
            origin.responds(1, b"part", is_last=False)
        return
    peer.take(rb"POST .*?\r\n\r\n")
    if "response" in state:
        peer >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"


def test_a_request_that_takes_too_long_is_answered_504(start: Start):
    talk = start(timed(**{"request": "5s"}))
    client, stream = in_flight(talk)
    talk.after(6)
    assert client.answer(stream).status == 504


def test_a_client_that_never_takes_the_rest_of_its_answer_loses_the_stream(start: Start):
    talk = start()
    client = speak_http2(talk, window=1)
    client.opens_windows = False
    stream = client.ask()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert bytes(client.answer(stream).data) == b"h"
    assert talk.record()["status"] == 200
    talk.after(11)
    assert client.answer(stream).reset == ErrorCodes.CANCEL
    (connection,) = talk.ports[0].state.connections
    assert not connection.streams  # type: ignore[attr-defined]


@pytest.mark.parametrize(("taken", "reset"), [(1, ErrorCodes.CANCEL), (REST_SIZE, None)])
def test_the_rest_of_an_answer_is_taken_at_a_pace(start: Start, taken: int, reset: ErrorCodes | None):
    talk = start()
    client = speak_http2(talk, window=1)
    client.opens_windows = False
    stream = client.ask()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + bytes(20_000)
    assert talk.record()["status"] == 200
    client.h2.increment_flow_control_window(taken, stream)
    client.settle()
    talk.after(11)
    assert client.answer(stream).reset == reset
    assert len(client.answer(stream).data) == 1 + taken


# --- the end ---------------------------------------------------------------------------------------------------------
def test_a_drain_announces_itself_and_finishes_what_runs(start: Start):
    talk = start()
    client, first = in_flight(talk)
    talk.connection_manager.is_draining = talk.connection_manager.ends_connections = True

    def drain() -> None:
        talk.ports[0].state.is_closed = True
        talk.ports[0].close_idle()

    talk.act(drain)
    late = client.get(b"/late")  # before it has heard of it
    client.settle()
    other = talk.dialled("a.example", 80)
    assert [goaway[:2] for goaway in client.goaways] == [(2**31 - 1, 0), (late, 0)]
    after = client.ask(b"GET", b"/after")
    assert client.answer(after).reset == ErrorCodes.REFUSED_STREAM
    talk.origins[0] >> OK
    assert client.answer(first).is_whole
    assert not talk.client.is_gone
    other << GET_SENT.replace(b"/ ", b"/late ")
    other >> OK
    assert client.answer(late).is_whole
    talk.client.is_closed()


def test_a_client_that_hears_nothing_behind_a_goaway_hears_all_before_it(start: Start):
    """To Python's h2, and so to httpx, a frame behind a GOAWAY is an error, and what came with it is lost."""
    talk = start()
    client, _ = in_flight(talk)
    talk.connection_manager.is_draining = talk.connection_manager.ends_connections = True
    talk.origin >> OK
    events = {type(event).__name__ for event in client.h2.receive_data(client._heard())}
    assert {"StreamEnded", "PingReceived", "ConnectionTerminated"} <= events


def test_new_terms_send_goaway_and_serve_nothing_more_on_the_old_ones(start: Start):
    talk = start()
    client, first = in_flight(talk)
    talk.reload(forward(limits={"maxHeadBytes": 8192}))
    late = client.ask(b"GET", b"/late")
    assert client.goaways == [(first, 0, b"")]
    assert client.answer(late).reset == ErrorCodes.REFUSED_STREAM
    talk.origin >> OK
    assert client.answer(first).is_whole
    talk.client.is_closed()


def test_a_reload_holds_for_the_next_stream(start: Start):
    talk = start()
    client, stream = in_flight(talk)
    talk.reload(forward(allow=("b.example",)))
    denied = client.ask()
    assert client.answer(denied).status == 403
    talk.origin >> OK
    assert client.answer(stream).is_whole
    assert not client.goaways


def test_a_listener_that_becomes_a_forward_proxy(start: Start):
    talk = start(reverse())
    client = speak_http2(talk)
    for _ in range(3):
        assert client.answer(client.ask(b"GET", b"/x", b"b.example", (b"via", b"1.1 gw"))).status == 508
    forward_here = [m.gateway(m.forward_listener(8080)), m.policy(["b.example"])]
    talk.reload(forward_here)
    assert client.answer(client.ask(b"GET", b"/x", b"b.example", (b"via", b"1.1 gw"))).status == 508
    stream = client.ask(b"GET", b"/x", b"b.example")
    talk.dialled("b.example", 80)
    talk.origin << b"GET /x HTTP/1.1\r\nHost: b.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    assert client.answer(stream).is_whole


@pytest.mark.parametrize("ends", [False, True])
def test_whoever_takes_a_body_may_refuse_it(start: Start, ends: bool):
    class Refuses:
        def send_body(self, data: bytes) -> None:
            if data:
                raise BadRequest(Reason.BAD_FRAMING, "not this")

        def end_body(self, trailers: bytes) -> None:
            raise BadRequest(Reason.BAD_FRAMING, "not this")

    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", body=b"a", ends=False)
    talk.dialled("a.example", 80)
    (connection,) = talk.ports[0].state.connections
    connection.streams[stream].sink = Refuses()  # type: ignore[attr-defined]
    client.says(stream, b"" if ends else b"b", ends=ends)
    assert client.answer(stream).status == 400
    assert not talk.client.is_gone


def test_idle_connections_leave_at_once(start: Start):
    talk = start()
    client = speak_http2(talk)
    talk.reload(forward(limits={"maxHeadBytes": 8192}))
    client.settle()
    assert client.goaways == [(0, 0, b"")]
    talk.client.is_closed()


# --- listeners -------------------------------------------------------------------------------------------------------
def test_the_preface_may_come_byte_by_byte(start: Start):
    talk = start()
    talk.counts_octets = False
    client = Http2Peer.__new__(Http2Peer)
    super(Http2Peer, client).__init__()
    client.wire = talk.client
    stream = client.get()
    for byte in client.outgoing():
        talk.client >> bytes((byte,))
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_what_only_begins_like_a_preface_is_told_so_in_http2(start: Start):
    talk = start()
    talk.counts_octets = False
    talk.client >> b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"
    talk.client.take(rb".*\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01")
    talk.client.is_closed()


@pytest.mark.parametrize("is_big", [False, True])
def test_no_preface_behind_a_request_of_http1(start: Start, is_big: bool):
    talk = start()
    big = b"Proxy-Authorization: %b\r\n" % (9000 * b"x") if is_big else b""
    talk.client >> b"GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n" + big + b"\r\n"
    assert talk.client.answer()[0] == 403
    talk.client >> b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert talk.client.answer()[0] == 505


def test_no_preface_inside_a_tunnel(start: Start):
    talk = start()
    talk.client >> connect("a.example:80")
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    talk.client >> b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + raw_frame(4)
    assert talk.client.answer()[0] == 505


def test_a_reverse_listener(start: Start):
    talk = start(reverse())
    client = speak_http2(talk)
    stream = client.ask(b"GET", b"/x?y", b"front.example")
    talk.dialled("a.example", 80)
    talk.origin << b"GET /x?y HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    assert client.answer(stream).is_whole


def test_alpn_decides_on_a_listener_with_tls(start: Start, pki: Pki):
    for offers, agreed in ((("h2", "http/1.1"), "h2"), (("http/1.1",), "http/1.1"), (("spdy",), None), ((), None)):
        talk = start([certificate(pki, "front.example"), https("front.example"), *reverse()[1:]])
        talk.counts_octets = False
        tls = TlsClient(talk.client, pki, "front.example", alpn=offers).shakes_hands()
        assert tls.alpn == agreed
        if agreed == "h2":
            client = Http2Peer(tls)
            stream = client.ask(b"GET", b"/", b"front.example", scheme=b"https")
            talk.dialled("a.example", 80)
            talk.origin << GET_SENT
            talk.origin >> OK
            assert client.answer(stream).is_whole
            talk.reload(
                [
                    certificate(pki, "front.example"),
                    https("front.example"),
                    m.policy(limits={"maxHeadBytes": 8192}),
                    *reverse()[2:],
                ]
            )
            client.settle()
            assert client.goaways == [(stream, 0, b"")]
            assert tls.has_ended
        else:
            tls >> b"GET / HTTP/1.1\r\nHost: front.example\r\n\r\n"
            talk.dialled("a.example", 80)
            talk.origin << GET_SENT
            talk.origin >> OK
            assert tls.reads().startswith(b"HTTP/1.1 200 ")


def test_no_prior_knowledge_inside_tls(start: Start, pki: Pki):
    talk = start([certificate(pki, "front.example"), https("front.example"), *reverse()[1:]])
    talk.counts_octets = False
    tls = TlsClient(talk.client, pki, "front.example").shakes_hands()
    tls >> b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    assert tls.reads().startswith(b"HTTP/1.1 505 ")


def test_a_host_of_another_listener_is_misdirected(start: Start, pki: Pki):
    talk = start([certificate(pki, "one.example", "two.example"), https("one.example", "two.example"), *reverse()[1:]])
    talk.counts_octets = False
    client = Http2Peer(TlsClient(talk.client, pki, "one.example", alpn=("h2",)).shakes_hands())
    assert client.answer(client.ask(b"GET", b"/", b"two.example", scheme=b"https")).status == 421
    stream = client.ask(b"GET", b"/", b"one.example", scheme=b"https")
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    assert client.answer(stream).status == 200, "the connection goes on"


def test_a_body_of_tiny_frames_waits_in_few_pieces(start: Start):
    """Else each that goes on would move thousands of others, while nobody else is served."""
    talk = start()
    client = speak_http2(talk)
    stream = client.ask(b"POST", ends=False)
    client >> raw_frame(0, b"ab", stream) * 20_000
    talk.dialled("a.example", 80)
    assert len(talk.origin.received) < 42_000  # a chunk of each would make it 140,000
