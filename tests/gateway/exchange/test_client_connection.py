"""Deadlines of a client's connection and of its exchange."""

from __future__ import annotations

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import (
    GET,
    GET_SENT,
    OK,
    OK_PASSED,
    TlsClient,
    certificate,
    exchange,
    forward,
    https,
    reverse,
)
from tests.support import manifests as m
from tests.support.pki import Pki


def timed(**timeouts: str) -> list[m.Manifest]:
    return forward(traffic={"timeouts": timeouts})


def test_a_head_that_does_not_come_to_its_end_is_a_408(converse: Start):
    talk = converse(timed(requestHeaders="3s"))
    talk.client >> b"GET http://a.example/ HTTP/1.1\r\n"
    for _ in range(5):  # a trickle does not help
        talk.after(0.5)
        talk.client >> b"X: y\r\n"
    talk.client.hears_nothing()
    talk.after(0.7)
    assert talk.client.answer()[0] == 408
    talk.client.ends()
    talk.client.is_closed()


def test_a_client_that_says_nothing_is_closed_without_a_word(converse: Start):
    talk = converse(timed(requestHeaders="3s"))
    talk.after(3.3)
    talk.client.is_closed()
    assert not talk.records


def test_an_idle_client_is_closed_after_the_idle_time_and_not_before(converse: Start):
    talk = converse(timed(idle="5s"))
    exchange(talk)
    talk.after(4.8)
    talk.client.is_open()
    talk.after(0.5)
    talk.client.is_closed()
    assert len(talk.records) == 1


def test_a_connection_whose_answer_was_under_way_when_a_drain_began_is_idle_for_as_long_as_the_drain_says(
    converse: Start,
):
    talk = converse(timed(idle="60s"))
    talk.client >> GET
    origin = talk.dialled("a.example", 80)
    origin.take(rb"GET .*")
    origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab"
    talk.connection_manager.is_draining = talk.connection_manager.ends_connections = True
    talk.connection_manager.last_idle_s = 2.0
    origin >> b"cd"
    talk.client.take(rb"HTTP/1.1 200 .*abcd")
    talk.ports[0].close_idle()
    talk.after(1.8)
    talk.client.is_open()
    talk.after(0.5)
    talk.client.is_closed()


def test_an_idle_upstream_connection_is_closed_after_the_idle_time(converse: Start):
    talk = converse(timed(idle="5s"))
    exchange(talk)
    talk.after(4.8)
    assert talk.open == 1
    talk.after(0.5)
    assert talk.origin.is_gone
    assert talk.open == 0


def test_the_whole_request_has_a_limit(converse: Start):
    talk = converse(timed(request="2s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.after(2.2)
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"]) == (504, "request_timeout")
    assert "http_response_timeout" in fields["Proxy-Status"]
    assert talk.open == 0
    exchange(talk)


def test_the_whole_request_has_a_limit_while_the_upstream_is_dialled(converse: Start):
    talk = converse(timed(request="2s"))
    talk.client >> GET
    dial = talk.pending_dial()
    talk.after(2.2)
    assert talk.client.answer()[0] == 504
    assert dial.future.cancelled()
    assert talk.open == 0


def test_one_request_to_a_backend_has_a_limit_of_its_own(converse: Start):
    rule = m.prefix_rule("/", "a", timeouts={"request": "10s", "backendRequest": "2s"})
    talk = converse(reverse(rule))
    talk.client >> b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.after(2.2)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (504, "upstream_timeout")


def test_a_body_that_stalls_is_broken_off_visibly(converse: Start):
    talk = converse(timed(idle="5s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
    for _ in range(3):
        talk.after(4)
        talk.origin >> b"."
    assert not talk.client.is_gone
    talk.after(11)
    assert talk.client.transport.was_aborted
    assert talk.record()["reason"] == "upstream_timeout"


def test_an_upstream_may_think_for_longer_than_a_body_may_stall(converse: Start):
    """`idle` is for stalled bodies; how long an answer may take is `request` and `backendRequest`."""
    talk = converse(timed(idle="5s"))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.after(30)
    talk.client.hears_nothing()
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_upload_that_stalls_is_broken_off(converse: Start):
    talk = converse(timed(idle="5s"))
    talk.client >> b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\nabc"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*abc")
    talk.after(11)
    assert talk.client.answer()[0] == 504
    assert talk.open == 0


def test_a_client_that_reads_its_last_answer_slowly_gets_all_of_it(converse: Start):
    """Closing waits as long as the client takes something; one that takes nothing is cut."""
    talk = converse(forward())
    talk.client.stalls()
    talk.client >> GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET / .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60000
    transport = talk.client.transport
    for _ in range(4):
        talk.after(8)
        assert not talk.client.is_gone
        taken, transport._buffer = transport._buffer[0], [transport._buffer[0][1000:], *transport._buffer[1:]]
        transport._size -= 1000
        talk.client.received += taken[:1000]
        talk.client.total += 1000
    talk.after(25)
    assert talk.client.is_gone
    talk.counts_octets = False


@pytest.mark.parametrize("is_dialled", [True, False])
def test_a_timeout_leaves_the_connection_of_the_client_usable(converse: Start, is_dialled: bool):
    talk = converse(timed(request="2s"))
    talk.client >> GET
    if is_dialled:
        talk.dialled("a.example", 80)
    talk.after(2.2)
    assert talk.client.answer()[0] == 504
    talk.client.is_open()


def test_in_tls_an_answer_without_a_length_that_breaks_off_has_no_close_notify(converse_on: Start):
    """To a client of HTTP/1.0 a clean end would be that of the answer (RFC 9112 section 6.3, RFC 8446 section 6.1)."""
    pki = Pki()
    route = m.http_route("r", m.prefix_rule("/", "a"))
    talk = converse_on([https(""), certificate(pki, "a.example"), m.policy(), m.backend("a", "a.example", 80), route])
    talk.counts_octets = False
    client = TlsClient(talk.client, pki, "a.example").shakes_hands()
    client >> b"GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"
    assert client.reads().endswith(b"\r\n\r\nhalf")
    talk.origin.leaves()
    talk.until(lambda: talk.client.has_eof)
    assert client.reads() == b""
    assert not client.has_ended
