"""Backends that speak HTTP/2, behind clients that speak HTTP/1."""

from __future__ import annotations

from typing import Any

from h2.errors import ErrorCodes

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.protocols.http2.settings import MAX_STREAMS
from tests.gateway.conftest import Start
from tests.gateway.kit import reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation
from tests.support.http2 import Http2Origin

GET = b"GET /x HTTP/1.1\r\nHost: front.example\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: front.example\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\nhi"


def h2c(*objects: Any, **sections: Any) -> list[Any]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(**sections),
        m.backend("a", "a.example", 80, protocol="H2C"),
        m.http_route("route", m.prefix_rule("/", "a")),
        *objects,
    ]


def dialled(talk: Conversation, **settings: int) -> Http2Origin:
    return Http2Origin(talk, talk.dialled("a.example", 80), **settings)


def asked(talk: Conversation, **settings: int) -> Http2Origin:
    """The origin has the client's request, on a new connection."""
    talk.client >> GET
    origin = dialled(talk, **settings)
    origin.waits_for(1)
    return origin


def started(talk: Conversation, **settings: int) -> Http2Origin:
    """One exchange is over, and its connection is idle."""
    origin = asked(talk, **settings)
    origin.responds(1)
    talk.client << OK
    return origin


def test_a_request_of_http_1_goes_to_a_backend_of_http_2(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> b"GET /x?y HTTP/1.1\r\nHost: front.example\r\nCookie: a=1\r\nAccept: */*\r\n\r\n"
    origin = dialled(talk)
    (seen,) = origin.waits_for(1).values()
    assert seen.is_whole
    assert seen.headers == {
        b":method": b"GET", b":scheme": b"http", b":path": b"/x?y", b":authority": b"a.example",
        b"cookie": b"a=1", b"accept": b"*/*", b"via": b"1.1 gw",
    }  # fmt: skip
    origin.responds(1)
    talk.client << OK
    assert (talk.open, talk.idle) == (1, 1)
    assert talk.record()["status"] == 200


def test_many_exchanges_share_a_connection(converse_on: Start):
    talk = converse_on(h2c())
    origin = started(talk)
    clients = [talk.connect() for _ in range(5)]
    for client in clients:
        client >> GET
    origin.waits_for(6)
    talk.no_dial()
    for number, client in reversed(list(enumerate(clients))):
        origin.responds(3 + 2 * number)
        client << OK
    assert (talk.open, talk.idle) == (1, 1)


def test_another_connection_is_opened_when_all_places_are_taken(converse_on: Start):
    talk = converse_on(h2c())
    first = started(talk, max_streams=2)
    clients = [talk.connect() for _ in range(3)]
    for client in clients[:2]:
        client >> GET
    first.waits_for(3)
    clients[2] >> GET
    second = dialled(talk, max_streams=2)
    second.waits_for(1)
    second.responds(1)
    clients[2] << OK
    first.responds(3)
    first.responds(5)
    for client in clients[:2]:
        client << OK
    assert talk.open == 2


def test_one_dial_serves_all_that_wait_for_it(converse_on: Start):
    talk = converse_on(h2c())
    clients = [talk.connect() for _ in range(10)]
    for client in clients:
        client >> GET
    origin = dialled(talk)
    origin.waits_for(10)
    talk.no_dial()
    for number, client in enumerate(clients):
        origin.responds(1 + 2 * number)
        client << OK
    assert talk.open == 1


def test_those_who_wait_for_a_dial_that_fails_fail_with_it(converse: Start):
    talk = converse(h2c())
    clients = [talk.connect() for _ in range(3)]
    for client in clients:
        client >> GET
    talk.refused("a.example", 80, UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503))
    for client in clients:
        assert client.answer()[0] == 503
    talk.no_dial()
    assert {record["reason"] for record in talk.records} == {"upstream_refused"}


def test_who_waits_too_long_for_a_place_is_told(converse: Start):
    talk = converse(h2c(traffic={"timeouts": {"connect": "2s"}}))
    talk.client >> GET
    talk.pending_dial()
    other = talk.connect()
    other >> GET
    talk.after(3)
    assert other.answer()[0] == 503
    assert talk.record()["reason"] == "queue_timeout"
    dialled(talk)


def test_a_client_that_leaves_while_it_dials_lets_the_next_one_dial(converse: Start):
    talk = converse(h2c())
    talk.client >> GET
    talk.pending_dial()
    other = talk.connect()
    other >> GET
    talk.client.resets()
    talk.dialer.dials.pop(0)
    origin = dialled(talk)
    origin.waits_for(1)
    origin.responds(1)
    other << OK


def test_a_body_of_a_known_length_and_one_in_chunks(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> POST + b"Content-Length: 5\r\n\r\nhello"
    origin = dialled(talk)
    (seen,) = origin.waits_for(1).values()
    assert (bytes(seen.data), seen.is_whole, seen.headers[b"content-length"]) == (b"hello", True, b"5")
    origin.responds(1)
    talk.client << OK
    talk.client >> CHUNKED + b"3\r\nabc\r\n"
    seen = origin.waits_for(2)[3]
    assert (bytes(seen.data), seen.is_whole) == (b"abc", False)
    talk.client >> b"2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n"
    origin.goes_on()
    assert (bytes(seen.data), seen.is_whole, seen.trailers) == (b"abcde", True, {b"x-sum": b"5"})
    origin.responds(3)
    talk.client << OK


def test_trailers_of_the_backend_reach_the_client(converse_on: Start):
    talk = converse_on(h2c())
    origin = asked(talk)
    origin.responds(1, b"hi", trailers=[(b"x-sum", b"2")])
    talk.client << (
        b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 2\r\n\r\n"
    )


def test_interim_responses_pass(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    origin = dialled(talk)
    origin.waits_for(1)
    origin.server.h2.send_headers(1, [(b":status", b"103"), (b"link", b"</a>")])
    origin.server.h2.send_headers(1, [(b":status", b"100")])
    origin.goes_on()
    talk.client << b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nVia: 1.1 gw\r\n\r\nHTTP/1.1 100 Continue\r\n"
    talk.client.take(rb".*?\r\n\r\n")
    talk.client >> b"ok"
    origin.goes_on()
    assert bytes(origin.server.calls[1].data) == b"ok"
    origin.responds(1)
    talk.client << OK


def test_an_early_answer_is_passed_on_and_the_connection_stays(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> CHUNKED + b"3\r\nabc\r\n"
    origin = dialled(talk)
    origin.waits_for(1)
    origin.responds(1, b"no", status=b"413")
    talk.client.take(rb"HTTP/1.1 413 .*?\r\n\r\nno")
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    other = talk.connect()
    other >> GET
    origin.waits_for(2)
    origin.responds(3)
    other << OK


def test_a_client_that_leaves_resets_its_stream_alone(converse_on: Start):
    talk = converse_on(h2c())
    origin = asked(talk)
    other = talk.connect()
    other >> GET
    origin.waits_for(2)
    talk.client.resets()
    talk.until(lambda: len(talk.records) == 1)
    origin.goes_on()
    assert origin.server.calls[1].reset == ErrorCodes.CANCEL
    origin.responds(3)
    other << OK
    assert talk.open == 1


def test_a_stream_that_was_refused_begins_anew(converse_on: Start):
    talk = converse_on(h2c())
    origin = started(talk)
    talk.client >> POST + b"Content-Length: 0\r\n\r\n"
    origin.waits_for(2)
    origin.server.h2.reset_stream(3, ErrorCodes.REFUSED_STREAM)
    origin.waits_for(3)
    origin.responds(5)
    talk.client << OK
    assert talk.series("attempts") == 3


def test_a_stream_that_is_refused_for_ever_fails(converse_on: Start):
    talk = converse_on(h2c())
    origin = started(talk)
    talk.client >> GET
    for number in (3, 5, 7):
        origin.waits_for((number + 1) // 2)
        origin.server.h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
        origin.goes_on()
    assert talk.client.answer()[0] == 503
    assert talk.record()["reason"] == "upstream_reset"


def test_a_goaway_moves_what_it_does_not_spare(converse_on: Start):
    talk = converse_on(h2c())
    first = started(talk)
    other = talk.connect()
    talk.client >> GET
    first.waits_for(2)
    other >> GET
    first.waits_for(3)
    first.peer >> bytes.fromhex("000008070000000000") + (3).to_bytes(4, "big") + bytes(4)
    second = dialled(talk)
    second.waits_for(1)
    second.responds(1)
    other << OK
    first.responds(3)
    talk.client << OK
    talk.until(lambda: first.peer.has_eof)
    assert (first.peer.has_eof, talk.open) == (True, 1)


def test_a_connection_that_died_while_idle_is_replaced(converse_on: Start):
    talk = converse_on(h2c())
    started(talk).peer.leaves()
    origin = asked(talk)
    origin.responds(1)
    talk.client << OK


def test_a_response_that_breaks_a_rule_is_a_502_and_the_others_go_on(converse_on: Start):
    talk = converse_on(h2c())
    origin = asked(talk)
    other = talk.connect()
    other >> GET
    origin.waits_for(2)
    origin.responds(1, b"hi", (b"connection", b"close"))
    assert talk.client.answer()[0] == 502
    assert talk.record()["reason"] == "upstream_bad_response"
    origin.responds(3)
    other << OK


def test_a_response_that_breaks_off_is_not_made_whole(converse_on: Start):
    talk = converse_on(h2c())
    origin = asked(talk)
    origin.responds(1, b"half", is_last=False)
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\n4\r\nhalf\r\n")
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    talk.client.is_closed()
    assert talk.record()["reason"] == "upstream_incomplete"


def test_an_upgrade_finds_no_way_through_http_2_alone(converse: Start):
    talk = converse(h2c())
    talk.client >> GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    dialled(talk).goes_on()
    assert talk.client.answer()[0] == 502


UPGRADE = (
    GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_a_websocket_goes_to_a_backend_that_takes_extended_connects(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> UPGRADE
    origin = dialled(talk, takes_upgrades=True)
    (seen,) = origin.waits_for(1).values()
    assert (seen.headers[b":method"], seen.headers[b":protocol"]) == (b"CONNECT", b"websocket")
    assert (seen.headers[b":path"], seen.headers[b"sec-websocket-version"]) == (b"/x", b"13")
    assert b"sec-websocket-key" not in seen.headers
    origin.server.h2.send_headers(1, [(b":status", b"200")])
    origin.goes_on()
    head = talk.client.take(rb"HTTP/1.1 101 Switching Protocols\r\n(.*?)\r\n\r\n")[1]
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in head.lower()
    assert b"Upgrade: websocket" in head
    talk.client >> b"ping"
    origin.goes_on()
    assert bytes(seen.data) == b"ping"
    origin.server.h2.send_data(1, b"pong")
    origin.goes_on()
    talk.client << b"pong"
    other = talk.connect()
    other >> GET
    origin.waits_for(2)
    origin.responds(3)
    other << OK
    origin.server.h2.end_stream(1)
    origin.goes_on()
    talk.client.ends()
    origin.goes_on()
    assert seen.is_whole
    talk.until(lambda: len(talk.records) == 2)
    assert (talk.open, talk.idle) == (1, 1)


def test_a_server_that_ends_its_side_is_not_waited_for_until_it_reads(converse: Start):
    talk = converse(h2c())
    origin = started(talk)
    origin.peer.stalls()  # type: ignore[attr-defined]
    talk.client >> GET
    origin.peer.ends()
    fresh = dialled(talk)  # the request may go again
    fresh.waits_for(1)
    fresh.responds(1)
    talk.client << OK
    assert talk.open == 1


def test_a_websocket_whose_client_breaks_off_is_reset(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> UPGRADE
    origin = dialled(talk, takes_upgrades=True)
    origin.waits_for(1)
    origin.server.h2.send_headers(1, [(b":status", b"200")])
    origin.goes_on()
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    talk.client.resets()
    talk.until(lambda: len(talk.records) == 1)
    origin.goes_on()
    assert origin.server.calls[1].reset is not None
    assert talk.open == 1


def test_a_websocket_that_the_backend_resets_ends(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> UPGRADE
    origin = dialled(talk, takes_upgrades=True)
    origin.waits_for(1)
    origin.server.h2.send_headers(1, [(b":status", b"200")])
    origin.goes_on()
    talk.client.take(rb"HTTP/1.1 101 .*?\r\n\r\n")
    origin.server.h2.reset_stream(1, ErrorCodes.INTERNAL_ERROR)
    origin.goes_on()
    talk.client.is_closed()


def test_a_refused_extended_connect_is_a_response_like_any_other(converse_on: Start):
    talk = converse_on(h2c())
    talk.client >> UPGRADE
    origin = dialled(talk, takes_upgrades=True)
    origin.waits_for(1)
    origin.responds(1, b"no", status=b"403")
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\nno")


def test_a_connection_serves_so_many_requests(converse: Start):
    talk = converse(h2c(traffic={"connections": {"maxRequests": 1}}))
    started(talk)
    origin = asked(talk)
    origin.responds(1)
    talk.client << OK
    assert talk.open == 0


def test_a_connection_takes_exchanges_for_so_long(converse: Start):
    talk = converse(h2c(traffic={"connections": {"maxAge": "10s"}}))
    first = started(talk)
    talk.after(11)
    assert (talk.open, first.peer.has_eof) == (0, True)


def test_idle_connections_close_on_a_reload_and_busy_ones_after_their_exchange(converse_on: Start):
    talk = converse_on(h2c())
    origin = started(talk)
    other = talk.connect()
    other >> GET
    origin.waits_for(2)
    talk.reload(reverse())
    origin.peer.is_open()
    origin.responds(3)
    other << OK
    talk.until(lambda: origin.peer.has_eof)
    assert origin.peer.has_eof


def test_addresses_that_have_left_dns_take_no_new_stream(converse: Start):
    talk = converse(h2c())
    talk.names.ttl["a.example"] = 1.0
    first = started(talk)
    talk.names.zone["a.example"] = talk.names.addresses("b.example")
    talk.after(2.5)
    talk.client >> GET
    dial = talk.pending_dial()
    assert dial is not None
    assert dial.endpoints[0][0] == talk.names.addresses("b.example")[0]
    del talk.names.zone["b.example"]
    origin = dialled(talk)
    origin.waits_for(1)
    origin.responds(1)
    talk.client << OK
    assert first.peer.has_eof


def test_a_large_response_to_a_slow_client_is_held_back(converse: Start):
    talk = converse(h2c())
    origin = asked(talk)
    talk.client.stalls()  # type: ignore[attr-defined]
    size = 8 * 1024 * 1024
    origin.server.h2.send_headers(1, [(b":status", b"200"), (b"content-length", b"%d" % size)])
    origin.server.send_all(1, size)
    origin.goes_on()
    (bound,) = talk.ports
    (connection,) = bound.state.connections
    assert connection.transport.get_write_buffer_size() < 1024 * 1024
    for _ in range(200):
        talk.client.reads_on()  # type: ignore[attr-defined]
        origin.goes_on()
        if len(talk.client.got) > size:
            break
    assert talk.client.got.endswith(bytes(1000))
    assert talk.record()["reason"] == "-"


def test_a_large_request_to_a_slow_backend_is_held_back(converse: Start):
    talk = converse(h2c())
    origin = started(talk)
    origin.server.opens_windows = False
    size = 4 * 1024 * 1024
    talk.client >> POST + b"Content-Length: %d\r\n\r\n" % size
    sent = 0
    while sent < size:
        talk.client >> bytes(256 * 1024)
        sent += 256 * 1024
    origin.goes_on()
    (stream,) = next(iter(talk.targets())).shared._pool.connections[0].streams.values()
    assert stream.unsent_size < 512 * 1024
    seen = origin.server.calls[3]
    origin.server.opens_windows = True
    origin.server.h2.increment_flow_control_window(size)
    origin.server.h2.increment_flow_control_window(size, 3)
    for _ in range(200):
        origin.goes_on()
        if seen.is_whole:
            break
    assert (len(seen.data), seen.is_whole) == (size, True)
    origin.responds(3)
    talk.client << OK


def test_never_more_than_so_many_streams_on_a_connection(converse: Start):
    talk = converse(h2c())
    origin = started(talk, max_streams=1000)
    clients = [talk.connect(address=f"10.0.{number}.1") for number in range(MAX_STREAMS + 1)]
    for client in clients:
        client >> GET
    assert len(origin.waits_for(MAX_STREAMS + 1)) == MAX_STREAMS + 1  # the first one is over
    other = dialled(talk)
    other.waits_for(1)
    other.responds(1)
    for number in range(MAX_STREAMS):
        origin.responds(3 + 2 * number)
    for client in clients:
        client << OK


# --- by way of others ----------------------------------------------------------------------------------------------
def test_it_goes_through_the_tunnel_of_a_parent(converse_on: Start):
    """Never in absolute-form, which is HTTP/1."""
    behind = m.backend("a", "a.example", 80, protocol="H2C", parent={"name": "corp"})
    objects = [each for each in h2c(behind, m.backend("corp", "corp.example", 3128)) if each != h2c()[2]]
    talk = converse_on(objects)
    talk.client >> GET
    peer = talk.dialled("corp.example", 3128)
    peer.take(rb"CONNECT a\.example:80 HTTP/1\.1\r\n.*?\r\n\r\n")
    peer >> b"HTTP/1.1 200 OK\r\n\r\n"
    origin = Http2Origin(talk, peer)
    origin.waits_for(1)
    origin.responds(1)
    talk.client << OK


def test_a_mirror_may_speak_it(converse_on: Start):
    to_b = {"backendRef": {"group": m.OURS, "kind": "Backend", "name": "b"}}
    rule = m.prefix_rule("/", "a", filters=[{"type": "RequestMirror", "requestMirror": to_b}])
    talk = converse_on(reverse(rule, objects=(m.backend("b", "b.example", 80, protocol="H2C"),)))
    talk.client >> POST + b"Content-Length: 2\r\n\r\nok"
    talk.dialled("a.example", 80).take(rb"POST .*?\r\n\r\nok")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    talk.client << OK
    mirror = Http2Origin(talk, talk.dialled("b.example", 80))
    (seen,) = mirror.waits_for(1).values()
    mirror.goes_on()
    assert (bytes(seen.data), seen.is_whole) == (b"ok", True)
    mirror.responds(1)
    talk.until(lambda: talk.idle == 2)
    assert talk.idle == 2


def test_a_rule_with_retries_sends_it_to_the_next_attempt(converse: Start):
    rule = m.prefix_rule("/", "a", retry={"attempts": 2, "codes": [503], "backoff": "0s"})
    objects = [each for each in h2c() if each["kind"] != "HTTPRoute"]
    talk = converse([*objects, m.http_route("route", rule)])
    talk.client >> POST + b"Content-Length: 2\r\n\r\nok"
    origin = dialled(talk)
    origin.waits_for(1)
    origin.server.h2.reset_stream(1, ErrorCodes.REFUSED_STREAM)
    talk.until(lambda: len(origin.waits_for(1)) == 2)
    seen = origin.waits_for(2)[3]
    assert bytes(seen.data) == b"ok"
    origin.responds(3, b"", status=b"503")
    talk.until(lambda: len(origin.waits_for(2)) == 3)
    origin.waits_for(3)
    origin.responds(5)
    talk.client << OK
