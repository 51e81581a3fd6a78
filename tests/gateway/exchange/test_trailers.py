"""Trailers that filters see, between real heads and bodies: both directions, both protocols."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from egressproxy.filters.base import BodyMode, Filter, Phase, Rejected
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from tests.gateway.backends.test_mirror import both
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_http2_both_sides import GRPC, H2C
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.http2 import Http2Origin

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADS = ["request-headers", "backend-request", "request-body"]
ANSWERS = ["backend-response", "response-headers", "response-body"]


class Sees(Filter):
    """`what` is done to trailers, before a mark is set."""

    def __init__(self, what: Any = None, *, waits: bool = False) -> None:
        self.what = what
        self.waits = waits
        self.seen: list[bytes] = []

    def request_headers(self, x: Exchange) -> None:
        pass

    backend_request = backend_response = response_headers = request_headers

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data.upper()

    response_body = request_body

    def request_trailers(self, x: Exchange, fields: Fields) -> Any:
        self.seen.append(fields.block)
        return self._later(fields) if self.waits else self._change(fields)

    response_trailers = request_trailers

    def _change(self, fields: Fields) -> None:
        if self.what is not None:
            self.what(fields)
        fields.set(b"x-mark", b"1")

    async def _later(self, fields: Fields) -> None:
        await asyncio.sleep(0)
        self._change(fields)


class Whole(Sees):
    body_mode = BodyMode.BUFFER


class Blind(Filter):
    def request_headers(self, x: Exchange) -> None:
        pass

    backend_request = backend_response = response_headers = request_headers

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        return data

    response_body = request_body


def posted(converse: Start, phase: str, *filters: Filter) -> bytes:
    """What goes to the backend behind the head of a request."""
    talk = start(converse, phase, *filters)
    talk.client >> POST
    talk.client >> b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")
    sent: bytes = talk.origin.take(rb".*0\r\n(?:[^\r]+\r\n)*\r\n")[0]
    talk.origin >> OK
    talk.client << OK_PASSED
    return sent


def answered(talk: Conversation, trailers: bytes = b"X-Sum: 1\r\n") -> bytes:
    """What the client gets behind the head of a response."""
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n" + trailers + b"\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n")
    got: bytes = talk.client.take(rb".*0\r\n(?:[^\r]+\r\n)*\r\n")[0]
    return got


def start(converse: Start, phase: str, *filters: Filter) -> Conversation:
    names = [f"f{number}" for number in range(len(filters))]
    for each in filters:
        each.runs_in = frozenset((Phase(phase),))
    return converse(
        forward(extensions=[scripted_filter(name, phase) for name in names]),
        filters=dict(zip(names, filters, strict=True)),
    )


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("phase", HEADS)
def test_a_filter_sees_the_trailers_of_a_request(converse: Start, phase: str, waits: bool):
    sees = Sees(waits=waits)
    sent = posted(converse, phase, sees)
    assert sent.endswith(b"\r\n0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n")
    assert sees.seen == [b"\r\nX-Sum: 1"]


@pytest.mark.parametrize("phase", HEADS)
def test_where_one_does_not_see_them_those_of_a_request_go_no_further(converse: Start, phase: str):
    assert posted(converse, phase, Sees(), Blind()).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("waits", [False, True])
def test_a_request_that_is_collected_keeps_them(converse_on: Start, waits: bool):
    sees = Whole(waits=waits)
    assert posted(converse_on, "request-body", sees) == b"2\r\nHI\r\n0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n"
    assert sees.seen == [b"\r\nX-Sum: 1"]


def test_a_request_that_is_collected_has_its_length_where_filters_leave_no_trailers(converse: Start):
    def clear(fields: Fields) -> None:
        fields.block = b""

    class Clears(Whole):
        def _change(self, fields: Fields) -> None:
            clear(fields)

    for filters in ([Clears()], [Whole(), Blind()]):
        talk = start(converse, "request-body", *filters)
        talk.client >> POST + b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
        assert b"Content-Length: 2" in talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")[0]
        talk.origin << b"HI"
        talk.origin >> OK
        talk.client << OK_PASSED


def test_what_must_not_come_late_is_left_out_behind_a_request_that_is_collected(converse: Start):
    def spoil(fields: Fields) -> None:
        for name in (b"content-length", b"transfer-encoding", b"host", b"authorization", b"x-egress-identity"):
            fields.set(name, b"1")

    sent = posted(converse, "request-body", Whole(spoil))
    assert sent == b"2\r\nHI\r\n0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n"


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("phase", ANSWERS)
def test_a_filter_sees_the_trailers_of_a_response(converse: Start, phase: str, waits: bool):
    sees = Sees(waits=waits)
    talk = start(converse, phase, sees)
    assert answered(talk).endswith(b"\r\n0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n")
    assert sees.seen == [b"\r\nX-Sum: 1"]


def test_a_response_that_is_held_keeps_them(converse: Start):
    assert answered(start(converse, "response-body", Whole())) == b"2\r\nHI\r\n0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n"


@pytest.mark.parametrize("phase", ANSWERS)
def test_where_one_does_not_see_them_those_of_a_response_go_no_further(converse: Start, phase: str):
    assert answered(start(converse, phase, Sees(), Blind())) == b"2\r\n%b\r\n0\r\n\r\n" % (
        b"HI" if phase == "response-body" else b"hi"
    )


def test_what_must_not_come_late_is_left_out(converse: Start):
    def spoil(fields: Fields) -> None:
        for name in (b"content-length", b"transfer-encoding", b"connection", b"set-cookie", b"x-egress-identity"):
            fields.set(name, b"1")

    assert answered(start(converse, "response-body", Sees(spoil))).endswith(b"0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n")


def test_a_call_keeps_its_status_whatever_a_filter_removes(converse: Start):
    talk = start(converse, "response-body", Sees(lambda fields: fields.remove(b"grpc-status")))
    assert b"grpc-status: 5\r\n" in answered(talk, b"grpc-status: 5\r\nX-Sum: 1\r\n")


def test_a_refusal_of_trailers_breaks_the_response_off(converse: Start):
    def refuse(_fields: Fields) -> None:
        raise Rejected("no")

    talk = start(converse, "response-headers", Sees(refuse))
    talk.counts_octets = False
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.until(lambda: bool(talk.records))
    assert talk.record()["reason"] == "filter_rejected"
    assert not bytes(talk.client.got).endswith(b"0\r\n\r\n")


def test_without_trailers_nobody_is_asked(converse: Start):
    sees = Sees()
    talk = start(converse, "response-headers", sees)
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\n2\r\nhi\r\n")
    talk.origin >> b"0\r\n\r\n"
    talk.client << b"0\r\n\r\n"
    assert sees.seen == []


def test_a_length_stays_where_only_heads_are_looked_at(converse: Start):
    talk = start(converse, "response-headers", Sees())
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    talk.client.take(rb"HTTP/1.1 200 [^\0]*Content-Length: 2\r\n\r\nhi")


def test_a_call_of_grpc_has_the_trailers_that_filters_leave(converse: Start):
    sees = Sees(lambda fields: fields.set(b"grpc-message", b"mended"))
    sees.runs_in = frozenset((Phase.RESPONSE_HEADERS,))
    listener, _policy, *rest = H2C
    extensions = [scripted_filter("f0", "response-headers")]
    talk = converse([listener, m.policy(extensions=extensions), *rest], filters={"f0": sees})
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/s/m", b"front.example", *GRPC, body=b"\0\0\0\0\2hi", ends=True)
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    origin.waits_for(1)
    origin.server.answer(1, b"yes", text=b"fine")
    origin.goes_on()
    answer = client.answer(stream)
    assert bytes(answer.data) == b"\0\0\0\0\3yes"
    assert sorted(answer.trailers) == [(b"grpc-message", b"mended"), (b"grpc-status", b"0"), (b"x-mark", b"1")]


def two_backends(converse: Start, blind: Filter) -> Conversation:
    """A POST with trailers goes to a, and where that answers 503, to b, which has a filter."""
    blind.runs_in = frozenset((Phase.BACKEND_REQUEST,))
    return converse(
        [
            m.gateway(m.http_listener(8080)), m.policy(), m.backend("a", "a.example", 80),
            m.backend("b", "b.example", 80, extensions=[scripted_filter("f0", "backend-request")]),
            m.failover("any", "a", "b"), m.http_route("r", m.prefix_rule("/", "any")),
        ],
        filters={"f0": blind},
    )  # fmt: skip


@pytest.mark.parametrize(("filter_of_b", "end"), [
    (Blind(), b"0\r\n\r\n"), (Sees(), b"0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n")
])  # fmt: skip
def test_a_further_attempt_has_the_trailers_that_the_filters_of_its_backend_leave(
    converse: Start, filter_of_b: Filter, end: bytes
):
    """The body was whole while a backend without filters had it: what is kept has not gone past those of the next."""
    talk = two_backends(converse, filter_of_b)
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.dialled("a.example", 80).take(rb"POST / .*?\r\n\r\n")
    talk.origin << b"2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
    talk.origin >> b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("b.example", 80).take(rb"POST / .*?\r\n\r\n")
    talk.origin << b"2\r\nhi\r\n" + end
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_mirror_whose_filters_do_not_see_them_goes_without(converse: Start):
    blind = Blind()
    blind.runs_in = frozenset((Phase.BACKEND_REQUEST,))
    mirror = {
        "type": "RequestMirror",
        "requestMirror": {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}},
    }
    talk = converse(
        [
            m.gateway(m.http_listener(8080)), m.policy(), m.backend("a", "a.example", 80),
            m.backend("b", "b.example", 80, extensions=[scripted_filter("f0", "backend-request")]),
            m.http_route("r", m.prefix_rule("/", "a", filters=[mirror])),
        ],
        filters={"f0": blind},
    )  # fmt: skip
    talk.client >> b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
    first, copy = both(talk)
    talk.client >> b"0\r\nX-Sum: 1\r\n\r\n"
    for peer, end in ((first, b"0\r\nX-Sum: 1\r\n\r\n"), (copy, b"0\r\n\r\n")):
        peer.take(rb"POST / .*?\r\n\r\n")
        peer << b"2\r\nhi\r\n" + end
        peer >> OK
    talk.client << OK_PASSED


CHUNKED_POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n"
MARKED = b"0\r\nX-Sum: 1\r\nx-mark: 1\r\n\r\n"


@pytest.mark.parametrize("blind", ["a", "b"])
@pytest.mark.parametrize("rule", [{}, {"retry": {"attempts": 1, "codes": [503]}}], ids=["failover", "retries"])
def test_each_attempt_of_a_collected_request_has_the_trailers_that_its_backend_takes(
    converse: Start, blind: str, rule: dict[str, Any]
):
    filters: dict[str, Filter] = {"own": Blind(), "rule": Whole()}
    filters["own"].runs_in = frozenset((Phase.BACKEND_REQUEST,))
    filters["rule"].runs_in = frozenset((Phase.REQUEST_BODY,))
    extensions = {blind: [scripted_filter("own", "backend-request")]}
    talk = converse(
        [
            m.gateway(m.http_listener(8080)), m.policy(extensions=[scripted_filter("rule", "request-body")]),
            m.backend("a", "a.example", 80, extensions=extensions.get("a", [])),
            m.backend("b", "b.example", 80, extensions=extensions.get("b", [])),
            m.failover("any", "a", "b"), m.http_route("r", m.prefix_rule("/", "any", **rule)),
        ],
        filters=filters,
    )  # fmt: skip
    talk.client >> CHUNKED_POST
    for name, answer in (("a", b"HTTP/1.1 503 Failed\r\nContent-Length: 0\r\n\r\n"), ("b", OK)):
        head = talk.dialled(f"{name}.example", 80).take(rb"POST / .*?\r\n\r\n")[0]
        assert (b"Content-Length: 2" in head) == (name == blind)
        talk.origin << (b"HI" if name == blind else b"2\r\nHI\r\n" + MARKED)
        talk.origin >> answer
    talk.client << OK_PASSED


@pytest.mark.parametrize("hedged", [False, True])
def test_the_filters_of_a_backend_see_the_trailers_of_a_collected_request(converse: Start, hedged: bool):
    """A mirror has what the filters of the rule have left."""
    filters: dict[str, Filter] = {"rule": Whole(), "own": Whole(lambda fields: fields.set(b"x-own", b"1"))}
    for each in filters.values():
        each.runs_in = frozenset((Phase.REQUEST_BODY,))
    mirror = {
        "type": "RequestMirror",
        "requestMirror": {"backendRef": {"group": "egressproxy.io", "kind": "Backend", "name": "b"}},
    }
    policy = {"traffic": {"hedging": {"hedgingDelay": "10s"}}} if hedged else {}
    talk = converse(
        [
            m.gateway(m.http_listener(8080)),
            m.policy(extensions=[scripted_filter("rule", "request-body")], **policy),
            m.backend("a", "a.example", 80, extensions=[scripted_filter("own", "request-body")]),
            m.backend("b", "b.example", 80), m.http_route("r", m.prefix_rule("/", "a", filters=[mirror])),
        ],
        filters=filters,
    )  # fmt: skip
    talk.client >> CHUNKED_POST.replace(b"POST", b"PUT")
    first, copy = both(talk)
    for peer, end in ((first, b"0\r\nX-Sum: 1\r\nx-own: 1\r\nx-mark: 1\r\n\r\n"), (copy, MARKED)):
        peer.take(rb"PUT / .*?\r\n\r\n")
        peer << b"2\r\nHI\r\n" + end
        peer >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("length", [False, True])
def test_a_collected_call_of_grpc_keeps_the_trailers_of_its_request(converse: Start, length: bool):
    sees = Whole()
    sees.runs_in = frozenset((Phase.REQUEST_BODY,))
    listener, _policy, *rest = H2C
    extensions = [scripted_filter("f0", "request-body")]
    talk = converse([listener, m.policy(extensions=extensions), *rest], filters={"f0": sees})
    client = speak_http2(talk)
    fields = [*GRPC, (b"content-length", b"7")] if length else GRPC
    stream = client.ask(b"POST", b"/s/m", b"front.example", *fields, body=b"\0\0\0\0\2hi", ends=False)
    client.h2.send_headers(stream, [(b"x-sum", b"1")], end_stream=True)
    client.settle()
    origin = Http2Origin(talk, talk.dialled("a.example", 80))
    call = origin.waits_for(1)[1]
    assert bytes(call.data) == b"\0\0\0\0\2HI"
    assert sorted(call.trailers.items()) == [(b"x-mark", b"1"), (b"x-sum", b"1")]
    origin.server.answer(1, b"yes")
    origin.goes_on()
    assert bytes(client.answer(stream).data) == b"\0\0\0\0\3yes"
