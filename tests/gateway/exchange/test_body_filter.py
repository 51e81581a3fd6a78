"""Filters of every phase, and bodies that run through filters."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest

from egressproxy import build
from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import MORE, BodyMode, Filter, Phase, Rejected
from egressproxy.filters.testing import exchange as an_exchange
from egressproxy.gateway.exchange.body_filter import BodyFilter
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from tests.gateway.conftest import Start
from tests.gateway.kit import GET, GET_SENT, OK, OK_PASSED, exchange, forward
from tests.support.conversation import Conversation, scripted_filter

HEADER_PHASES = ["request_headers", "connect", "backend_request", "backend_response", "response_headers"]
EXITS = [GeneratorExit, SystemExit, KeyboardInterrupt]
POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
BIG = bytes(range(256)) * 4096


class Script(Filter):
    """Does `what` (a callable) in one header phase, and counts its completions."""

    def __init__(self, phase: str, what: Any, *, is_async: bool = False) -> None:
        self.completed = 0
        self.runs = 0
        self.is_on = True
        self.runs_in = frozenset([_phase(phase)])

        def act(x: Exchange) -> Any:
            self.runs += 1
            return what(x) if self.is_on else None

        async def act_later(x: Exchange) -> Any:
            await asyncio.sleep(0)
            return act(x)

        self.action = act_later if is_async else act

    def request_headers(self, x: Exchange) -> Any:
        return self.action(x)

    connect = backend_request = backend_response = response_headers = request_headers

    def complete(self, x: Exchange) -> None:
        self.completed += 1


def _phase(name: str) -> Any:
    from egressproxy.filters.base import Phase

    return Phase(name.replace("_", "-"))


def fail(_x: Exchange) -> Any:
    raise RuntimeError("a secret")


def placed(name: str, phase: str, **more: Any) -> Any:
    return forward(extensions=[scripted_filter(name, phase.replace("_", "-"), **more)])


def begin(talk: Conversation, phase: str) -> None:
    """Go as far as this phase needs."""
    talk.client >> GET
    if phase in ("request_headers", "connect"):
        return
    talk.dialled("a.example", 80)
    if phase != "backend_request":
        talk.origin << GET_SENT
        talk.origin >> OK


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", HEADER_PHASES)
def test_a_filter_that_fails_fails_closed_and_the_next_request_is_fine(converse: Start, phase: str, is_async: bool):
    script = Script(phase, fail, is_async=is_async)
    talk = converse(placed("f", phase), filters={"f": script})
    begin(talk, phase)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "filter_failed")
    assert "secret" not in str(error) + str(talk.record())
    assert script.completed == 1
    script.is_on = False
    exchange(talk)
    assert script.completed == 2


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", [phase for phase in HEADER_PHASES if phase != "connect"])
def test_a_filter_may_answer_in_any_phase_but_connect(converse: Start, phase: str, is_async: bool):
    script = Script(phase, lambda _x: LocalResponse(418, ((b"X-By", b"f"),), b"tea"), is_async=is_async)
    talk = converse(placed("f", phase), filters={"f": script})
    begin(talk, phase)
    talk.client.take(rb"HTTP/1.1 418 [^\r]*\r\nX-By: f\r\nContent-Length: 3\r\n\r\ntea")
    talk.client.is_open()
    assert script.completed == 1
    assert talk.record()["status"] == 418


def test_an_answer_in_the_connect_phase_is_a_failure(converse: Start):
    script = Script("connect", lambda _x: LocalResponse(200))
    talk = converse(placed("f", "connect"), filters={"f": script})
    talk.client >> GET
    assert talk.client.answer()[0] == 502
    talk.no_dial()


@pytest.mark.parametrize("phase", HEADER_PHASES)
def test_a_filter_may_refuse_in_any_phase(converse: Start, phase: str):
    def refuse(_x: Exchange) -> Any:
        raise Rejected("not here", status=451)

    talk = converse(placed("f", phase), filters={"f": Script(phase, refuse)})
    begin(talk, phase)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (451, "filter_rejected")
    assert talk.series("denied") == 1


@pytest.mark.parametrize("phase", HEADER_PHASES)
def test_a_client_that_leaves_while_a_filter_waits_cancels_it(converse: Start, phase: str):
    cancelled = []

    async def forever(_x: Exchange) -> Any:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(phase)
            raise

    script = Script(phase, forever)
    talk = converse(placed("f", phase, timeout="60s"), filters={"f": script})
    begin(talk, phase)
    talk.client.leaves()
    assert cancelled == [phase]
    assert script.completed == 1
    assert talk.open == 0


def test_a_filter_that_fails_as_the_client_leaves_is_no_error_of_ours(converse: Start):
    gate: list[asyncio.Future[None]] = []

    async def wait(_x: Exchange) -> Any:
        gate.append(asyncio.get_running_loop().create_future())
        await gate[0]
        raise RuntimeError("late")

    talk = converse(placed("f", "request_headers"), filters={"f": Script("request_headers", wait)})
    talk.client >> GET

    async def both() -> None:
        gate[0].set_result(None)
        for _ in range(20):  # until the task is done, and not yet asked for its result
            await asyncio.sleep(0)
            if talk.failures:
                break
        talk.client.transport.lose(None)

    talk.run(both())
    talk.settle()
    import gc

    gc.collect()
    talk.settle()


@pytest.mark.parametrize(("field", "value"), [("status", 1000), ("phrase", "no bytes"), ("body", "no number")])
def test_a_response_that_cannot_be_written_as_a_filter_leaves_it_is_answered_500(
    converse_on: Start, field: str, value: Any
):
    """Nothing of it is sent, so the client is told, and nothing that was never said is logged or counted.

    A compiled head takes no value of another type: there it is the filter that fails.
    """
    is_refused = build.name() == build.COMPILED and field != "status"
    told = (502, "filter_failed") if is_refused else (500, "internal")
    broken = Script("response_headers", lambda x: setattr(x.response, field, value))
    talk = converse_on(forward(extensions=[scripted_filter("own")]), filters={"own": broken})
    talk.expects_failures = True
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> OK
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == told
    record = talk.record()
    assert (record["status"], record["reason"]) == told


# --- bodies --------------------------------------------------------------------------------------------------------
class Body(Filter):
    """Turns a body into upper case, in one way or another."""

    def __init__(self, *, mode: BodyMode = BodyMode.STREAM, is_async: bool = False, direction: str = "request") -> None:
        self.body_mode = mode  # type: ignore[misc]
        self.is_async = is_async
        self.pieces: list[bytes] = []
        self.gate: asyncio.Event | None = None
        self.fails = False
        self.runs_in = frozenset([_phase(f"{direction}_body")])

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        self.pieces.append(data)
        if self.is_async:
            return self._later(data)
        if self.fails:
            raise RuntimeError
        return data.upper()

    response_body = request_body

    async def _later(self, data: bytes) -> bytes:
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        if self.fails:
            raise RuntimeError
        return data.upper()


MODES = [(BodyMode.STREAM, False), (BodyMode.STREAM, True), (BodyMode.BUFFER, False), (BodyMode.BUFFER, True)]


@pytest.mark.parametrize(("mode", "is_async"), MODES)
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_request_bodies_run_through_filters(converse: Start, mode: BodyMode, is_async: bool, framing: str):
    talk = converse(placed("b", "request_body"), filters={"b": Body(mode=mode, is_async=is_async)})
    if framing == "length":
        talk.client >> POST + b"Content-Length: 6\r\n\r\nabc"
        rest = b"def"
    else:
        talk.client >> POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        rest = b"3\r\ndef\r\n0\r\n\r\n"
    if mode is BodyMode.STREAM:
        talk.dialled("a.example", 80)
        talk.client >> rest
        talk.origin.take(
            rb"POST / .*Transfer-Encoding: chunked\r\n\r\n(3\r\nABC\r\n3\r\nDEF\r\n|6\r\nABCDEF\r\n)0\r\n\r\n"
        )
    else:
        talk.client >> rest
        talk.dialled("a.example", 80)
        talk.origin.take(rb"POST / .*Content-Length: 6\r\n\r\nABCDEF")
    talk.origin >> OK
    talk.client << OK_PASSED
    exchange(talk, is_new=False)


@pytest.mark.parametrize(("mode", "is_async"), MODES)
def test_response_bodies_run_through_filters(converse: Start, mode: BodyMode, is_async: bool):
    body = Body(mode=mode, is_async=is_async, direction="response")
    talk = converse(placed("b", "response_body"), filters={"b": body})
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc"
    talk.origin >> b"def"
    pattern = rb"Transfer-Encoding: chunked\r\n\r\n(3\r\nABC\r\n3\r\nDEF\r\n|6\r\nABCDEF\r\n)0\r\n\r\n"
    if mode is BodyMode.BUFFER:
        pattern = rb"Content-Length: 6\r\n\r\nABCDEF"
    talk.client.take(rb"HTTP/1.1 200 OK\r\nVia: 1.1 gw\r\n" + pattern)
    talk.until(lambda: talk.idle == 1)
    assert talk.idle == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_big_upload_through_a_filter_arrives_whole_however_slow_the_upstream(converse: Start, is_async: bool):
    talk = converse(placed("b", "request_body"), filters={"b": Body(is_async=is_async)})
    talk.client >> POST + b"Content-Length: %d\r\n\r\n" % len(BIG)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\n")
    talk.origin.stalls()
    talk.client >> BIG
    assert talk.client.transport.is_paused
    assert talk.origin.transport.get_write_buffer_size() < 300_000
    talk.origin.reads_on()
    talk.until(lambda: talk.origin.got.endswith(b"0\r\n\r\n"))
    assert dechunked(talk.origin.got) == BIG.upper()
    talk.origin.received.clear()
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("is_async", [False, True])
def test_a_big_download_through_a_filter_arrives_whole_however_slow_the_client(converse: Start, is_async: bool):
    talk = converse(placed("b", "response_body"), filters={"b": Body(is_async=is_async, direction="response")})
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.client.stalls()
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG
    assert talk.origin.transport.is_paused
    assert talk.client.transport.get_write_buffer_size() < 300_000
    talk.client.reads_on()
    talk.until(lambda: talk.client.got.endswith(b"0\r\n\r\n"))
    assert dechunked(talk.client.got.partition(b"\r\n\r\n")[2]) == BIG.upper()
    talk.client.received.clear()
    assert talk.idle == 1


def test_what_comes_while_a_filter_waits_is_bounded(converse: Start):
    body = Body(is_async=True)
    talk = converse(placed("b", "request_body", timeout="60s"), filters={"b": body})
    body.gate = asyncio.Event()
    talk.client >> POST + b"Content-Length: %d\r\n\r\n" % len(BIG)
    talk.dialled("a.example", 80)
    talk.act(lambda: talk.client.transport.deliver(BIG))
    assert talk.client.transport.is_paused
    assert sum(map(len, body.pieces)) <= 65536
    talk.act(body.gate.set)
    talk.until(lambda: talk.origin.got.endswith(b"0\r\n\r\n"))
    assert dechunked(talk.origin.got.partition(b"\r\n\r\n")[2]) == BIG.upper()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_body_filter_that_fails_is_a_502_and_the_upstream_is_cut(converse: Start, is_async: bool):
    body = Body(is_async=is_async)
    body.fails = True
    talk = converse(placed("b", "request_body"), filters={"b": body})
    talk.client >> POST + b"Content-Length: 6\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.client >> b"abc"
    assert talk.client.answer()[0] == 502
    assert talk.origin.is_gone
    assert talk.open == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_response_body_filter_that_fails_breaks_the_response_off_visibly(converse: Start, is_async: bool):
    body = Body(is_async=is_async, direction="response")
    talk = converse(placed("b", "response_body"), filters={"b": body})
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc"
    body.fails = True
    talk.origin >> b"def"
    talk.until(lambda: talk.client.is_gone)
    assert talk.client.transport.was_aborted
    assert not talk.client.got.endswith(b"0\r\n\r\n")
    assert talk.record()["reason"] == "filter_failed"


def test_a_buffering_filter_asks_for_the_body_itself(converse_on: Start):
    talk = converse_on(placed("b", "request_body"), filters={"b": Body(mode=BodyMode.BUFFER)})
    talk.client >> POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    talk.client << b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client >> b"body"
    talk.dialled("a.example", 80)
    talk.origin << b"POST / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 4\r\n\r\nBODY"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_body_over_the_limit_is_a_413_before_anything_is_sent(converse: Start):
    talk = converse(forward(limits={"maxBodyBytes": 5}))
    talk.client >> POST + b"Content-Length: 6\r\n\r\n"
    status, _, fields, error = talk.client.answer()
    assert (status, error["reason"], fields["Connection"]) == (413, "body_too_large", "close")
    talk.no_dial()
    talk.client.ends()


def test_a_chunked_body_is_cut_at_the_limit(converse: Start):
    talk = converse(forward(limits={"maxBodyBytes": 5}))
    talk.client >> POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*3\r\nabc\r\n")
    talk.client >> b"3\r\ndef\r\n0\r\n\r\n"
    assert talk.client.answer()[0] == 413
    talk.until(lambda: talk.origin.has_eof)
    talk.origin.is_closed()
    talk.client.ends()


def test_a_malformed_chunk_is_a_400_and_the_upstream_is_cut(converse: Start):
    talk = converse(forward())
    talk.client >> POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*3\r\nabc\r\n")
    talk.client >> b"zz\r\n"
    assert talk.client.answer()[0] == 400
    talk.until(lambda: talk.origin.has_eof)
    talk.origin.is_closed()
    talk.client.ends()


# --- by itself -----------------------------------------------------------------------------------------------------
def test_faults_of_a_filter_carry_its_name(converse: Start):
    script = Script("request_headers", fail)
    talk = converse(placed("named", "request_headers"), filters={"named": script})
    talk.client >> GET
    assert "filter named" in talk.client.answer()[3]["message"]
    assert issubclass(GatewayFault, GatewayError)
    assert talk.record()["reason"] == Reason.FILTER_FAILED


def dechunked(data: bytes) -> bytes:
    body = bytearray()
    while True:
        size, _, data = data.partition(b"\r\n")
        if not int(size, 16):
            assert data == b"\r\n"
            return bytes(body)
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


# --- filters that raise what is no Exception -----------------------------------------------------------------------
def leave(error: type[BaseException]) -> Any:
    def act(_x: Exchange) -> Any:
        raise error

    return act


@pytest.mark.parametrize("error", EXITS)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", ["request_headers", "backend_request", "response_headers"])
def test_a_filter_that_would_end_more_than_itself_ends_its_own_exchange(
    converse: Start, phase: str, error: type[BaseException], is_async: bool
):
    script = Script(phase, leave(error), is_async=is_async)
    talk = converse(placed("f", phase), filters={"f": script})
    talk.expects_failures = True
    talk.client >> GET
    if phase == "response_headers":
        talk.dialled("a.example", 80)
        talk.origin << GET_SENT
        talk.origin >> OK
    elif phase == "backend_request":
        talk.dialled("a.example", 80)
    assert talk.client.answer()[0] in (500, 502)
    assert script.completed == 1
    script.is_on = False
    talk.client = talk.connect()
    exchange(talk, is_new=not talk.idle)


class Leaving(Filter):
    """Raises this within the request's body."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error: type[BaseException] | None = error

    async def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return data


@pytest.mark.parametrize("error", EXITS)
def test_a_body_filter_that_would_end_more_than_itself_ends_its_own_exchange(
    converse: Start, error: type[BaseException]
):
    script = Leaving(error)
    talk = converse(placed("f", "request_body"), filters={"f": script})
    talk.expects_failures = True
    talk.client >> POST + b"Content-Length: 4\r\n\r\nbody"
    talk.dialled("a.example", 80)
    assert talk.client.answer()[0] in (500, 502)
    script.error = None
    talk.client = talk.connect()
    exchange(talk)


class Choosing(Body):
    """Chooses how it gets a body by its media type: JSON whole, events as they come, nothing else."""

    def __init__(self, act: Any = None, *, is_async: bool = False, direction: str = "response") -> None:
        super().__init__(is_async=is_async, direction=direction)
        self.act = act
        self.asked = 0

    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        self.asked += 1
        head = x.response if phase is Phase.RESPONSE_BODY else x.request
        kind = head.fields.get(b"content-type")
        return {b"application/json": BodyMode.BUFFER, b"text/event-stream": BodyMode.STREAM}.get(kind or b"")

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        if self.act is None:
            return super().request_body(x, data, last)
        self.pieces.append(data)
        if self.is_async:
            return self._act_later(x)
        return self.act(x)

    async def _act_later(self, x: Exchange) -> Any:
        await asyncio.sleep(0)
        return self.act(x)

    response_body = request_body


def answer_of(talk: Conversation, kind: bytes, *, rest: bytes = b"def", head: bytes = b"") -> None:
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%sContent-Length: 6\r\n\r\nabc" % (kind, head)
    if rest:
        talk.origin >> rest


@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_chooses_for_each_response_how_it_gets_the_body(converse: Start, is_async: bool):
    body = Choosing(is_async=is_async)
    talk = converse(placed("b", "response_body"), filters={"b": body})
    answer_of(talk, b"image/png")
    talk.client << b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nVia: 1.1 gw\r\nContent-Length: 6\r\n\r\nabcdef"
    assert (body.asked, body.pieces) == (1, [])
    talk.client >> GET
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\nabc"
    talk.client.hears_nothing()
    talk.origin >> b"def"
    (
        talk.client
        << b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nVia: 1.1 gw\r\nContent-Length: 6\r\n\r\nABCDEF"
    )
    assert body.pieces == [b"abcdef"]
    talk.client >> GET
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 6\r\n\r\nabc"
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*Transfer-Encoding: chunked\r\n\r\n3\r\nABC\r\n")
    talk.origin >> b"def"
    talk.client.take(rb"3\r\nDEF\r\n0\r\n\r\n")
    assert body.asked == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_chooses_for_each_request_how_it_gets_the_body(converse: Start, is_async: bool):
    body = Choosing(is_async=is_async, direction="request")
    talk = converse(placed("b", "request_body"), filters={"b": body})
    talk.client >> POST + b"Content-Type: image/png\r\nContent-Length: 6\r\n\r\nabc"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*Content-Length: 6\r\n\r\nabc")
    talk.client >> b"def"
    talk.origin << b"def"
    talk.origin >> OK
    talk.client << OK_PASSED
    assert (body.asked, body.pieces) == (1, [])
    talk.client >> POST + b"Content-Type: application/json\r\nContent-Length: 6\r\n\r\nabc"
    talk.client >> b"def"
    talk.origin.take(rb"POST / .*Content-Length: 6\r\n\r\nABCDEF")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.client >> POST + b"Content-Type: text/event-stream\r\nContent-Length: 6\r\n\r\nabc"
    talk.origin.take(rb"POST / .*Transfer-Encoding: chunked\r\n\r\n3\r\nABC\r\n")
    talk.client >> b"def"
    talk.origin.take(rb"3\r\nDEF\r\n0\r\n\r\n")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_request_that_every_filter_lets_pass_is_not_read_early_where_the_rule_has_retries(converse: Start):
    body = Choosing(direction="request")
    talk = converse(
        forward(extensions=[scripted_filter("b", "request-body")], traffic={"retries": {"attempts": 1}}),
        filters={"b": body},
    )
    talk.client >> POST + b"Content-Type: image/png\r\nContent-Length: 6\r\n\r\nabc"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*Content-Length: 6\r\n\r\nabc")
    talk.client >> b"def"
    talk.origin << b"def"
    talk.origin >> OK
    talk.client << OK_PASSED
    assert body.asked == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_of_a_whole_response_changes_its_head(converse: Start, is_async: bool):
    def change(x: Exchange) -> bytes:
        x.response.status = 203
        x.response.fields.set(b"x-seen", b"yes")
        return b"other"

    talk = converse(placed("b", "response_body"), filters={"b": Choosing(change, is_async=is_async)})
    answer_of(talk, b"application/json")
    talk.client.take(rb"HTTP/1.1 203 .*x-seen: yes\r\nVia: 1.1 gw\r\nContent-Length: 5\r\n\r\nother")
    talk.until(lambda: talk.idle == 1)
    assert talk.record()["status"] == 203


@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_of_a_whole_response_refuses_with_a_status_that_the_client_gets(converse: Start, is_async: bool):
    def refuse(_x: Exchange) -> bytes:
        raise Rejected("not this", status=451)

    talk = converse(placed("b", "response_body"), filters={"b": Choosing(refuse, is_async=is_async)})
    answer_of(talk, b"application/json")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["message"]) == (451, "filter_rejected", "not this")
    talk.client.is_open()
    talk.until(lambda: talk.idle == 1)
    assert (talk.idle, talk.open) == (1, 1)  # the backend has done nothing wrong


@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_of_a_whole_response_answers_in_its_place(converse_on: Start, is_async: bool):
    def answer(_x: Exchange) -> LocalResponse:
        return LocalResponse(418, ((b"X-By", b"b"), (b"Content-Length", b"9")), b"tea")

    dressing = Script("response_headers", lambda x: x.response.fields.set(b"x-dressed", b"yes"))
    chain = [scripted_filter("b", "response-body"), scripted_filter("d", "response-headers")]
    talk = converse_on(forward(extensions=chain), filters={"b": Choosing(answer, is_async=is_async), "d": dressing})
    answer_of(talk, b"application/json")
    talk.client.take(rb"HTTP/1.1 418 [^\r]*\r\nx-by: b\r\nx-dressed: yes\r\nContent-Length: 3\r\n\r\ntea")
    talk.client.is_open()
    talk.until(lambda: talk.idle == 1)  # all of the backend's answer was read
    record = talk.record()
    assert (record["status"], record["reason"]) == (418, "-")


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_to_a_response_whose_head_has_gone_is_a_failure(converse: Start, is_async: bool):
    body = Choosing(lambda _x: LocalResponse(418), is_async=is_async)
    talk = converse(placed("b", "response_body"), filters={"b": body})
    answer_of(talk, b"text/event-stream", rest=b"")
    talk.until(lambda: talk.client.is_gone)
    assert talk.client.transport.was_aborted
    assert talk.record()["reason"] == "filter_failed"


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_filter_of_a_request_body_answers_it(converse: Start, is_async: bool, kind: bytes):
    body = Choosing(lambda _x: LocalResponse(418, (), b"tea"), is_async=is_async, direction="request")
    talk = converse(placed("b", "request_body"), filters={"b": body})
    talk.client >> POST + b"Content-Type: %s\r\nContent-Length: 6\r\n\r\nabcdef" % kind
    if kind == b"text/event-stream":
        talk.dialled("a.example", 80)
        talk.until(lambda: talk.open == 0)  # a request that is not whole
    talk.client.take(rb"HTTP/1.1 418 [^\r]*\r\nContent-Length: 3\r\n\r\ntea")
    talk.client.is_open()
    record = talk.record()
    assert (record["status"], record["reason"]) == (418, "-")


def test_a_response_that_is_held_keeps_what_grpc_says_in_trailers(converse: Start):
    talk = converse(placed("b", "response_body"), filters={"b": Choosing()})
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.origin >> b"3\r\nabc\r\n0\r\ngrpc-status: 5\r\nX-Other: y\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*chunked\r\n\r\n3\r\nABC\r\n0\r\ngrpc-status: 5\r\n\r\n")


def test_a_response_that_is_held_is_no_stalled_one_while_its_backend_sends(converse: Start):
    """`idle` is for what does not move; a long answer that a filter gets whole sends nothing on for long."""
    body = Choosing()
    talk = converse(
        forward(extensions=[scripted_filter("b", "response-body")], traffic={"timeouts": {"idle": "10s"}}),
        filters={"b": body},
    )
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 6\r\n\r\n"
    for piece in (b"a", b"b", b"c", b"d", b"e"):
        talk.after(6)
        talk.origin >> piece
    talk.after(6)
    talk.origin >> b"f"
    talk.client.take(rb"HTTP/1.1 200 .*\r\n\r\nABCDEF")


def test_no_body_is_held_for_a_filter_where_no_memory_is_left(converse: Start):
    body = Choosing()
    talk = converse(placed("b", "response_body"), filters={"b": body})
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT
    talk.connection_manager.has_no_memory = True
    (
        talk.origin
        >> b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n" + b"a" * 100000
    )
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "overloaded")
    assert talk.open == 0


@pytest.mark.parametrize("kind", [b"application/json", b"image/png"])
@pytest.mark.parametrize("method", [b"HEAD", b"GET"])
def test_a_response_without_a_body_is_described_as_the_one_with_its_body(converse: Start, method: bytes, kind: bytes):
    body = Choosing()
    talk = converse(placed("b", "response_body"), filters={"b": body})
    talk.client >> GET.replace(b"GET", method)
    talk.dialled("a.example", 80)
    talk.origin << GET_SENT.replace(b"GET", method)
    status = b"200 OK" if method == b"HEAD" else b"304 Not Modified"
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\n" % (status, kind)
    talk.origin >> head + b'ETag: "x"\r\nDigest: y\r\nContent-Length: 7\r\n\r\n'
    got = talk.client.take(re.escape(head) + rb".*?\r\n\r\n")[0]
    changes = kind == b"application/json"
    assert (b'etag: W/"x"' in got, b'ETag: "x"' in got) == (changes, not changes)
    assert (b"Digest" in got) is not changes
    assert b"Content-Length" not in got or not changes
    assert body.pieces == []
    assert talk.idle == 1


class Framing(Filter):
    """Gets requests whole, and shows where they begin and end."""

    body_mode = BodyMode.BUFFER

    def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        assert last
        return b"<" + data + b">"


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("expects", [False, True])
def test_a_filter_gets_a_request_whole_however_it_comes(converse: Start, cut: int, expects: bool):
    talk = converse(placed("b", "request_body"), filters={"b": Framing()})
    for number in range(2):
        talk.client >> POST + b"Content-Length: 3\r\n" + b"Expect: 100-continue\r\n" * expects + b"\r\n" + b"abc"[:cut]
        if cut < 3:
            talk.client >> b"abc"[cut:]
        if not number:
            talk.dialled("a.example", 80)
        sent = talk.origin.take(rb"POST / .*?\r\n\r\n<abc>").group()
        assert b"Content-Length: 5\r\n" in sent
        assert b"Expect" not in sent
        talk.origin >> OK
        talk.client.take((rb"HTTP/1.1 100 .*?\r\n\r\n" if expects else b"") + re.escape(OK_PASSED))
    talk.client >> GET
    talk.origin << GET_SENT
    assert [record["status"] for record in talk.records] == [200, 200]


def test_a_request_that_comes_whole_and_is_too_long_for_its_route_never_reaches_a_filter(converse: Start):
    body = Framing()
    script = Script("request_headers", lambda x: setattr(x, "max_body_bytes", 2))
    talk = converse(
        forward(extensions=[scripted_filter("s", "request-headers"), scripted_filter("b", "request-body")]),
        filters={"s": script, "b": body},
    )
    talk.client >> POST + b"Content-Length: 3\r\n\r\nabc"
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (413, "body_too_large")


def test_what_follows_a_request_that_comes_whole_is_the_next_request(converse: Start):
    talk = converse(placed("b", "request_body"), filters={"b": Framing()})
    talk.client >> (POST + b"Content-Length: 3\r\n\r\nabc") + GET
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\n<abc>")
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.origin << GET_SENT


def test_a_client_that_ends_behind_a_request_that_comes_whole_is_answered(converse: Start):
    talk = converse(placed("b", "request_body"), filters={"b": Framing()})
    talk.client >> POST + b"Content-Length: 3\r\n\r\nabc"
    talk.client.ends()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST / .*?\r\n\r\n<abc>")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*")
    talk.client.is_closed()


# --- filters that have more to send when nothing comes


class _Waits:
    """A sink and a source that remember what they were told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def send_body(self, data: bytes) -> None:
        self.told.append(data)

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


def test_what_a_filter_has_more_waits_for_a_sink_that_is_full() -> None:
    sink, source = _Waits(), _Waits()
    asked: list[str] = []
    chain: Any = SimpleNamespace(
        sends_more=True, is_of_request=False, feed_more=lambda x, own: asked.append(own) or b"more"
    )
    x = an_exchange("GET", "http://a.example/")
    body_filter = BodyFilter(x, chain, sink, source, None)  # type: ignore[arg-type]
    more = MORE.get(x)
    assert more is not None
    body_filter.pause_reading()
    more("first")
    more("second")
    more("first")
    assert (asked, sink.told) == ([], [])
    body_filter.resume_reading()
    assert (asked, sink.told) == (["first", "second"], [b"more", b"more"])
    assert source.told == ["pause", "resume"]
    body_filter.cancel()
    more("first")
    assert asked == ["first", "second"]
    assert MORE.get(x) is None


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_chunked_response_that_is_here_whole_is_filtered_as_one_with_a_length(converse: Start, mode: BodyMode):
    class Said(Filter):
        body_mode = mode

        def response_headers(self, x: Exchange) -> None:
            x.response.fields.set(b"x-mode", mode.value.encode())

        def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
            return data.upper()

    talk = converse(placed("b", "response_body"), filters={"b": Said()})
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for number in range(2):
        talk.client >> GET
        if not number:
            talk.dialled("a.example", 80)
        talk.origin << GET_SENT
        talk.origin >> head + b"2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"
        if mode is BodyMode.BUFFER:
            talk.client.take(rb"HTTP/1.1 200 [^\0]*Content-Length: 5\r\n\r\nABCDE")
        else:
            talk.client.take(rb"HTTP/1.1 200 [^\0]*Transfer-Encoding: chunked\r\n\r\n5\r\nABCDE\r\n0\r\n\r\n")
    talk.client >> GET
    talk.origin << GET_SENT
    talk.origin >> head + b"0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 .*")
    talk.client >> GET
    talk.origin << GET_SENT
