"""Requests and responses through the connection manager, on fakes and on real sockets."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, exchange, forward
from tests.support import manifests as m

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
BIG = bytes(range(256)) * 4096  # 1 MiB


# --- one request ---------------------------------------------------------------------------------------------------
def test_an_absolute_form_get_goes_out_in_origin_form_with_a_host_of_our_own(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET http://A.example/x?y=1 HTTP/1.1\r\nHost: other.example\r\nAccept: */*\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << b"GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED
    record = talk.record()
    assert (record["status"], record["authority"], record["path"]) == (200, "a.example:80", "/x")


def test_the_upstream_connection_is_used_again(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    exchange(talk, is_new=False)
    assert (talk.open, talk.idle) == (1, 1)


def test_pipelined_requests_are_answered_in_order(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET + GET.replace(b"/ HTTP", b"/2 HTTP") + GET.replace(b"/ HTTP", b"/3 HTTP")
    talk.dialled("a.example", 80)
    for number, path in enumerate((b"/", b"/2", b"/3")):
        talk.origin << GET_SENT.replace(b"GET /", b"GET " + path)
        assert not talk.origin.got
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number
        talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 1\r\n\r\n%d" % number


def test_pipelined_requests_that_are_refused_take_turns_with_everybody_else(converse: Start):
    """One client's thousand refusals would be 50 ms in which nobody else is served, and each may take some ms."""
    talk = converse(forward())
    answered: list[int] = []

    def look() -> None:
        answered.append(len(talk.records))
        if answered[-1] < 100:
            talk.loop.call_soon(look)

    talk.loop.call_soon(look)
    talk.client >> GET.replace(b"a.example", b"no.example") * 100
    assert max(after - before for before, after in pairwise(answered)) == 1
    assert [talk.client.answer()[0] for _ in range(100)] == [403] * 100


def test_the_octets_of_pipelined_requests_are_counted_once(converse: Start):
    talk = converse(forward())
    talk.client >> GET + GET
    talk.dialled("a.example", 80)
    for _ in range(2):
        talk.origin << GET_SENT
        talk.origin >> OK
        talk.client << OK_PASSED
    assert [record["bytes_in"] for record in talk.records] == [len(GET), len(GET)]


def test_head_keeps_the_length_of_the_body_that_does_not_come(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET.replace(b"GET", b"HEAD")
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT.replace(b"GET", b"HEAD")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"
    got = talk.client.take(rb"HTTP/1.1 200 OK\r\n(.*?)\r\n\r\n")
    assert b"Content-Length: 1234" in got[1]
    exchange(talk, is_new=False)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_responses_without_a_body_end_with_their_head(converse_on: Start, status: bytes):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 " + status + b"\r\nETag: x\r\n\r\n"
    talk.client << b"HTTP/1.1 " + status + b"\r\nETag: x\r\nVia: 1.1 gw\r\n\r\n"
    exchange(talk, is_new=False)


# --- interim responses ---------------------------------------------------------------------------------------------
def test_early_hints_are_passed_on_and_an_unasked_continue_is_not(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </s>\r\n\r\n"
    talk.client << b"HTTP/1.1 103 Early Hints\r\nLink: </s>\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_client_of_http_1_0_gets_no_interim_response_and_its_connection_is_closed(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET http://a.example/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.0 gw\r\n\r\n"
    talk.origin >> b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    talk.client.is_closed()


def test_expect_continue_is_passed_through_and_the_body_waits(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    talk.dialled("a.example", 80)
    (
        talk.origin
        << b"POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nVia: 1.1 gw\r\nContent-Length: 4\r\n\r\n"
    )
    talk.client.hears_nothing()
    talk.origin >> b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client << b"HTTP/1.1 100 Continue\r\nVia: 1.1 gw\r\n\r\n"
    talk.client >> b"body"
    talk.origin << b"body"
    talk.origin >> OK
    talk.client << OK_PASSED


SCRUBBING = {
    "name": "key", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request",
    "config": {
        "secretRef": {"name": "key", "key": "token"}, "header": "Authorization", "template": "Bearer {}",
        "allowPlaintext": True, "scrubResponses": True,
    },
}  # fmt: skip


def test_interim_responses_do_not_go_past_a_filter_of_responses(converse_on: Start):
    """An upstream that shows the credential in its early hints must not get it past the filter that masks it."""
    backend = m.backend("a", "a.example", 80, extensions=[SCRUBBING])
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    talk = converse_on(forward(m.secret("key", {"token": "sk-1234567890"}), backend, route))
    talk.client >> POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    talk.dialled("a.example", 80)
    assert b"Authorization: Bearer sk-1234567890" in talk.origin.take(rb"POST / .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 103 Early Hints\r\nLink: <sk-1234567890>\r\n\r\n"
    talk.origin >> b"HTTP/1.1 100 sk-1234567890\r\nX-Echo: sk-1234567890\r\n\r\n"
    talk.client << b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client >> b"body"
    talk.origin << b"body"
    talk.origin >> OK
    talk.client << OK_PASSED


# --- bodies --------------------------------------------------------------------------------------------------------
def test_no_trailer_goes_past_a_filter_that_sets_a_field_of_its_name(converse_on: Start):
    """Some origins read trailers as fields: the credential has to be the gateway's own."""
    injector = {"secretRef": {"name": "key", "key": "token"}, "header": "X-Service-Token", "allowPlaintext": True}
    backend = m.backend("a", "a.example", 80, extensions=[{**SCRUBBING, "config": injector}])
    route = m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])
    talk = converse_on(forward(m.secret("key", {"token": "sk-1234567890"}), backend, route))
    talk.client >> POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Service-Token: stolen\r\n\r\n"
    talk.dialled("a.example", 80)
    assert b"X-Service-Token: sk-1234567890\r\n" in talk.origin.take(rb"POST / .*?\r\n\r\n")[0]
    talk.origin << b"2\r\nhi\r\n0\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("phase", ["request-headers", "backend-request"])
def test_no_trailer_of_an_answer_goes_past_a_filter_of_answers(converse_on: Start, phase: str):
    """A client that reads trailers as fields must not find there what a filter has taken out of the head."""
    edits = {"name": "h", "type": "egressproxy.io/HeaderPolicy:v1", "phase": phase}
    extensions = [{**edits, "config": {"response": {"remove": ["X-Internal"]}}}]
    if phase == "request-headers":
        talk = converse_on(forward(m.policy(name="edits", extensions=extensions)))
    else:
        backend = m.backend("a", "a.example", 80, extensions=extensions)
        talk = converse_on(forward(backend, m.http_route("r", m.prefix_rule("/", "a"), hostnames=["a.example"])))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nX-Internal: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.origin >> b"0\r\nX-Internal: 2\r\n\r\n"
    talk.client << b"0\r\n\r\n"
    exchange(talk, is_new=False)


def test_chunks_and_trailers_go_both_ways(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3;ext=1\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.dialled("a.example", 80)
    head = talk.origin.take(rb"POST / HTTP/1.1\r\n(.*?)\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head[1]
    talk.origin << b"3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.origin >> b"0\r\nX-End: 2\r\n\r\n"
    talk.client << b"0\r\nX-End: 2\r\n\r\n"
    exchange(talk, is_new=False)


def test_a_response_that_ends_with_its_connection_becomes_chunked(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\n\r\nhi"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.origin.ends()
    talk.client << b"0\r\n\r\n"
    talk.client.is_open()
    exchange(talk)


@pytest.mark.parametrize("framing", [b"Content-Length: 10\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"])
@pytest.mark.parametrize("way", ["ends", "resets"])
def test_a_truncated_response_stays_truncated(converse_on: Start, framing: bytes, way: str):
    talk = converse_on(forward())
    talk.counts_octets = False  # what was in flight when the connection was broken
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\n" + framing + b"part"
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*part")
    getattr(talk.origin, way)()
    talk.until(lambda: talk.client.has_eof)
    assert talk.client.has_eof
    assert not talk.client.got.replace(b"\r\n", b""), "nothing that looks like an end"
    assert talk.record()["reason"] == "upstream_incomplete"


def test_a_truncated_response_is_a_reset_for_a_client_that_waits_for_the_close(converse_on: Start):
    """A close-delimited body has no other sign of truncation (RFC 9112 section 8)."""
    talk = converse_on(forward())
    talk.counts_octets = False
    talk.client >> b"GET http://a.example/ HTTP/1.0\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nConnection: close\r\n\r\npart"
    talk.origin.ends()
    talk.until(lambda: talk.client.is_gone)
    if talk.is_memory:
        assert talk.client.transport.was_aborted
    else:
        assert isinstance(talk.client.error, ConnectionResetError)


def test_an_early_response_is_passed_on_while_the_client_still_uploads(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 100\r\n\r\nabc"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*\r\n\r\nabc")
    talk.origin >> b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno\n"
    talk.client.take(rb"HTTP/1.1 413 Content Too Large\r\n.*\r\n\r\nno\n")
    talk.until(lambda: talk.client.has_eof)
    assert talk.client.has_eof, "nothing can follow on this connection"
    talk.client >> b"still uploading"
    talk.client.ends()
    talk.until(lambda: not talk.open)
    assert talk.open == 0


def test_a_big_upload_that_came_before_the_upstream_was_there_arrives_whole(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: %d\r\n\r\n" % len(BIG) + BIG
    talk.settle()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\n")
    talk.origin << BIG
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_slow_client_slows_the_upstream_down(converse: Start):
    talk = converse(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.client.stalls()
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG
    assert talk.origin.transport.is_paused
    assert talk.client.transport.get_write_buffer_size() < 256 * 1024
    talk.client.reads_on()
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG


def test_a_slow_client_slows_the_upstream_down_also_where_the_body_came_with_the_head(converse: Start):
    talk = converse(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.client.stalls()
    body = BIG[:65000]
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"fde8\r\n" + body + b"\r\n"
    talk.origin >> b"fde8\r\n" + body + b"\r\n"
    assert talk.origin.transport.is_paused
    for _ in range(20):
        talk.origin >> b"fde8\r\n" + body + b"\r\n"
    assert talk.client.transport.get_write_buffer_size() < 256 * 1024
    talk.client.reads_on()
    talk.origin >> b"0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n" + rb"fde8\r\n.{65000}\r\n" * 22 + rb"0\r\n\r\n")


def test_a_slow_upstream_slows_the_client_down(converse: Start):
    talk = converse(forward())
    talk.client >> POST + b"Content-Length: %d\r\n\r\n" % len(BIG)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\n")
    talk.origin.stalls()
    talk.client >> BIG
    assert talk.client.transport.is_paused
    assert talk.origin.transport.get_write_buffer_size() < 256 * 1024
    talk.origin.reads_on()
    talk.origin << BIG
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_connection_whose_last_response_went_to_a_slow_client_still_reads_the_next_one(converse: Start):
    talk = converse(forward())
    slow, quick = talk.client, talk.connect()
    slow >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    slow.stalls()
    body = BIG[: 200 * 1024]
    for at in range(0, len(body), 40_000):  # the last piece finds the client's buffer full
        (
            talk.origin
            >> (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) if not at else b"")
            + body[at : at + 40_000]
        )
        if at == 40_000:
            slow.reads_on()
            slow.stalls()
    slow.reads_on()
    slow.take(rb"HTTP/1.1 200 .*?\r\n\r\n.{%d}" % len(body))
    talk.client = quick
    exchange(talk, is_new=False)


def test_a_pooled_connection_is_not_left_paused_by_a_client_that_was_too_slow_for_the_last_piece(converse: Start):
    talk = converse(forward())
    slow, quick = talk.client, talk.connect()
    slow >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    slow.stalls()
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 65500\r\n\r\n" + BIG[:65000]
    assert not talk.origin.transport.is_paused
    talk.origin >> BIG[:500]  # whole, and the client's buffer is over its mark
    assert talk.idle == 1
    talk.client = quick
    exchange(talk, is_new=False)
    slow.reads_on()
    slow.take(rb"HTTP/1.1 200 .*?\r\n\r\n.{65500}")


# --- connections that end ------------------------------------------------------------------------------------------
def test_a_half_closed_client_gets_its_answer(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.client.ends()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    talk.client.is_closed()


def test_a_half_closed_client_gets_the_answers_to_all_its_pipelined_requests(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET + GET
    talk.client.ends()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    talk.client.is_closed()


def test_a_client_that_half_closes_behind_its_whole_body_gets_its_answer(converse_on: Start):
    """The body is here, though nobody has asked for it yet: the upstream is still being dialled."""
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 4\r\n\r\nbody"
    talk.client.ends()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\nbody")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*\r\n\r\nhi")
    talk.client.is_closed()


def test_a_client_that_ends_within_its_body_has_left(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 10\r\n\r\nbody"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\nbody")
    talk.client.ends()
    talk.until(lambda: talk.origin.has_eof and talk.client.has_eof)
    assert talk.origin.has_eof, "the upstream must not take the part for the whole"
    assert talk.record()["reason"] == "client_gone"


def test_a_client_that_ends_within_a_head_is_told(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\nHo"
    talk.client.ends()
    status, _, _, _ = talk.client.answer()
    assert status == 400
    talk.client.is_closed()


@pytest.mark.parametrize("way", ["leaves", "resets"])
@pytest.mark.parametrize("stage", ["dns", "dial", "response", "body"])
def test_a_client_that_leaves_takes_everything_with_it(converse: Start, stage: str, way: str):
    talk = converse(forward())
    talk.counts_octets = False
    if stage == "dns":
        talk.names.hold("a.example")
    talk.client >> GET
    dial = None
    if stage == "dial":
        dial = talk.pending_dial()
    elif stage != "dns":
        talk.dialled("a.example", 80)
        talk.origin << GET_SENT
        if stage == "body":
            talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart"
            talk.client.take(rb"HTTP/1.1 200 .*part")
    getattr(talk.client, way)()
    assert talk.open == 0
    assert dial is None or dial.future.cancelled()
    assert talk.record()["reason"] == "client_gone"
    assert talk.record()["status"] == (200 if stage == "body" else 499)


def test_a_client_that_leaves_at_the_moment_of_the_connection_leaves_no_socket_behind(converse: Start):
    talk = converse(forward())
    talk.client >> GET
    dial = talk.pending_dial()
    from tests.support.conversation import MemoryPeer, MemoryTransport

    peer = MemoryPeer(talk)

    def both() -> None:
        protocol = dial.factory()
        transport = MemoryTransport(peer, protocol, ("93.184.216.1", 80))
        protocol.connection_made(transport)
        dial.future.set_result((transport, protocol, dial.endpoints[0]))
        talk.client.transport.lose(None)

    talk.act(both)
    assert peer.is_gone
    assert talk.open == 0


# --- reuse and retries ---------------------------------------------------------------------------------------------
def test_a_get_goes_again_when_the_pooled_connection_was_dead(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    talk.client >> GET
    talk.origin << GET_SENT
    talk.origin.resets()
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.series("attempts") == 3


def test_a_get_is_not_repeated_for_a_fresh_connection(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin.ends()
    assert talk.client.answer()[0] == 502
    talk.no_dial()
    assert talk.record()["reason"] == "upstream_closed"


def test_a_post_never_goes_twice(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    talk.client >> POST + b"Content-Length: 0\r\n\r\n"
    talk.origin << b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 0\r\n\r\n"
    talk.origin.resets()
    assert talk.client.answer()[0] == 502
    talk.no_dial()


def test_a_get_gives_up_after_three_attempts(converse: Start):
    talk = converse(forward())
    others = [talk.connect() for _ in range(3)]
    for client in others:
        client >> GET
        talk.dialled("a.example", 80)
    for origin in talk.origins:
        origin << GET_SENT
        origin >> OK
    for client in others:
        client << OK_PASSED
    assert talk.idle == 3
    talk.client >> GET
    for origin in reversed(talk.origins):
        origin << GET_SENT
        origin.resets()
    assert talk.client.answer()[0] == 502
    talk.no_dial()


def test_a_connection_with_octets_behind_the_answer_is_not_used_again(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    talk.client << OK_PASSED
    talk.until(lambda: talk.open == 0)
    assert talk.open == 0
    exchange(talk)


@pytest.mark.parametrize(
    ("request_", "is_reused"),
    [
        *((b"%b|Content-Length: 2\r\n\r\nhi" % method, True) for method in (b"POST", b"PUT", b"PATCH")),
        *(
            (b"%b|Content-Length: 2\r\n\r\nhi" % method, False)
            for method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"PROPFIND", b"NEW")
        ),
        (b"GET|Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", False),
        (b"POST|Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", True),
        (b"DELETE|Content-Length: 0\r\n\r\n", True),
        (b"GET|Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", False),
    ],
)
def test_a_connection_with_a_body_that_its_server_may_not_have_read_is_not_used_again(
    converse_on: Start, request_: bytes, is_reused: bool
):
    """What an origin takes for no body it reads as the next request, which would be somebody else's."""
    talk = converse_on(forward())
    method, _, rest = request_.partition(b"|")
    talk.client >> method + b" http://a.example/ HTTP/1.1\r\nHost: a.example\r\n" + rest
    talk.dialled("a.example", 80)
    body = rest.partition(b"\r\n\r\n")[2]
    talk.origin.take(re.escape(method) + rb" / .*?\r\n\r\n" + re.escape(body))
    talk.origin >> b"HTTP/1.1 204 No Content\r\n\r\n"
    talk.client << b"HTTP/1.1 204 No Content\r\nVia: 1.1 gw\r\n\r\n"
    talk.until(lambda: talk.open == is_reused)
    assert (talk.open, talk.idle) == (is_reused, is_reused)
    exchange(talk, is_new=not is_reused)


@pytest.mark.parametrize("is_invited", [True, False])
def test_after_a_final_answer_without_a_100_the_connection_is_not_used_again(converse_on: Start, is_invited: bool):
    """Who has not asked for the body may not have read the one that came all the same."""
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\nbody"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\nbody")
    if is_invited:
        talk.origin >> b"HTTP/1.1 100 Continue\r\n\r\n"
        talk.client << b"HTTP/1.1 100 Continue\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.until(lambda: talk.open == is_invited)
    assert (talk.open, talk.idle) == (is_invited, is_invited)
    exchange(talk, is_new=not is_invited)


def test_after_an_answer_that_began_before_the_request_was_whole_the_connection_is_not_used_again(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> POST + b"Content-Length: 4\r\n\r\nbo"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\nbo")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh"
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nContent-Length: 2\r\n\r\nh"
    talk.client >> b"dy"
    talk.origin << b"dy"
    talk.origin >> b"i"
    talk.client << b"i"
    talk.until(lambda: talk.open == 0)
    assert talk.open == 0
    exchange(talk)


def test_after_an_answer_to_a_request_that_the_upstream_had_not_taken_the_connection_is_not_used_again(
    converse: Start,
):
    talk = converse(forward())
    talk.client >> POST + b"Content-Length: 4\r\n\r\n"
    talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")
    talk.origin.stalls()
    talk.client >> b"body"
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh"
    talk.origin.reads_on()
    talk.origin >> b"i"
    talk.client << OK_PASSED
    talk.until(lambda: talk.open == 0)
    assert talk.open == 0


def test_an_answer_before_the_question_is_never_an_answer(converse_on: Start):
    talk = converse_on(forward())
    exchange(talk)
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
    talk.until(lambda: talk.open == 0)
    exchange(talk)


def test_a_pooled_connection_that_has_just_ended_is_not_given_to_a_post(converse: Start):
    """The FIN and the request may come in one turn of the loop, before the connection counts as lost."""
    talk = converse(forward())
    exchange(talk)

    def both() -> None:
        talk.origin.transport.deliver(None)
        talk.client.transport.deliver(POST + b"Content-Length: 0\r\n\r\n")

    talk.act(both)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize(
    "bad", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"]
)
def test_a_malformed_response_is_a_502_and_nothing_of_it_goes_on(converse_on: Start, bad: bytes):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> bad
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "upstream_bad_response")
    assert "http_protocol_error" in fields["Proxy-Status"]
    exchange(talk)


def test_what_we_say_to_clients_no_upstream_says_for_us(converse_on: Start):
    forged = b"X-Egress-Request-Id: 7\r\nX_Egress_Reason: none\r\n"
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 103 Early Hints\r\n" + forged + b"\r\n"
    talk.client << b"HTTP/1.1 103 Early Hints\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> (
        b"HTTP/1.1 200 OK\r\n" + forged + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n" + forged + b"\r\n"
    )
    talk.client << b"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"


def test_a_407_of_an_origin_never_reaches_the_client(converse_on: Start):
    talk = converse_on(forward())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    (
        talk.origin
        >> b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
    )
    assert talk.client.answer()[0] == 502


# --- several backends ----------------------------------------------------------------------------------------------
def weighted(first: int, second: int, *objects: m.Manifest) -> list[m.Manifest]:
    refs = [{"group": m.OURS, "kind": "Backend", "name": n, "weight": w} for n, w in (("a", first), ("b", second))]
    rule = m.prefix_rule("/", "a", backendRefs=refs)
    first = m.backend("a", "a.example", 80)
    return [m.gateway(m.http_listener(8080)), m.policy(), first, *objects, m.http_route("route", rule)]


def test_weights_share_the_requests_out(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.gateway.route.random.random", lambda: 0.0)
    talk = converse(weighted(3, 1, m.backend("b", "b.example", 80)))
    seen = []
    for _ in range(16):
        client = talk.connect()
        client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        dial = talk.pending_dial()
        seen.append(talk.names.name_of(dial.endpoints[0][0])[0])
        client.leaves()
        talk.dialer.dials.clear()
    assert "".join(seen) == "aaabaaaabaabaaaa"


def test_the_share_of_a_backend_that_is_not_there_is_answered_500(converse: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.gateway.route.random.random", lambda: 0.7)
    talk = converse(weighted(1, 1))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "backend_invalid")
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    talk.dialled("a.example", 80)


# --- counting ------------------------------------------------------------------------------------------------------
def test_every_exchange_has_one_line_and_the_sums_agree_with_the_wire(converse_on: Start):
    talk = converse_on(forward())
    sent = [GET, GET.replace(b"a.example", b"b.example"), b"nonsense\r\n\r\n"]
    exchange(talk)
    talk.client >> sent[1]
    assert talk.client.answer()[0] == 403
    talk.client >> sent[2]
    assert talk.client.answer()[0] == 400
    talk.client.is_closed()
    assert [record["status"] for record in talk.records] == [200, 403, 400]
    assert [record["bytes_in"] for record in talk.records] == [len(one) for one in sent]
    assert talk.series("requests") == 3
    assert talk.series("denied") == 1
