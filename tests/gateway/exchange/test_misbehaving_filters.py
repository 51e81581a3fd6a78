"""Filters that throw, hang, flood, exit and allocate, in every phase, in places that fail closed and open.

One request never takes another with it, nothing is left behind, and what the filter said is nowhere.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import BodyMode, Filter, Phase
from egressproxy.filters.body import MAX_RESULT
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from tests.gateway.conftest import Start
from tests.gateway.kit import forward
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

POST = b"POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\n\r\nbody"
SECRET = "hunter2"
HEADS = [phase for phase in Phase if not phase.value.endswith("body")]
BODIES = [Phase.REQUEST_BODY, Phase.RESPONSE_BODY]


class Misbehaving(Filter):
    def __init__(self, phase: Phase, act: Callable[[Exchange], Any], *, is_async: bool, mode: BodyMode) -> None:
        self.runs_in = frozenset([phase])
        self.act = act
        self.is_async = is_async
        self.body_mode = mode  # type: ignore[misc]
        self.completed = 0

    def request_headers(self, x: Exchange) -> Any:
        return self._later(x) if self.is_async else self.act(x)

    connect = backend_request = backend_response = response_headers = request_headers

    def request_body(self, x: Exchange, data: bytes, last: bool) -> Any:
        return self.request_headers(x)

    response_body = request_body

    async def _later(self, x: Exchange) -> Any:
        await asyncio.sleep(0)
        result = self.act(x)
        return await result if asyncio.iscoroutine(result) else result

    def complete(self, x: Exchange) -> None:
        self.completed += 1
        raise SystemExit(SECRET)


def throws(error: type[BaseException]) -> Callable[[Exchange], Any]:
    def act(_x: Exchange) -> Any:
        raise error(SECRET)

    return act


def grows_notes(x: Exchange) -> Any:
    for n in range(50_000):
        x.note(f"{n}", bytes(100))
    raise RuntimeError(SECRET)


async def hang(_x: Exchange) -> Any:
    await asyncio.get_running_loop().create_future()


def refuses_with(**said: Any) -> Callable[[Exchange], Any]:
    """A refusal that says something of another type than it should."""

    def act(_x: Exchange) -> Any:
        error = Denied(Reason.FILTER_REJECTED, "no")
        for name, value in said.items():
            setattr(error, name, value)
        raise error

    return act


ACTS = {
    "throws": throws(RuntimeError), "exits": throws(SystemExit), "is interrupted": throws(KeyboardInterrupt),
    "closes": throws(GeneratorExit), "is out of memory": throws(MemoryError), "recurses": throws(RecursionError),
    "cancels": throws(asyncio.CancelledError), "stops": throws(StopIteration), "notes": grows_notes,
    "refuses for no reason": refuses_with(reason=SECRET),
    "refuses with an error": refuses_with(detail=ValueError(SECRET)),
    "responds with text": lambda _x: LocalResponse(200, body=SECRET),  # type: ignore[arg-type]
    "responds with a fraction": lambda _x: LocalResponse(200.5),  # type: ignore[arg-type]
    "returns a number": lambda _x: 7, "returns text": lambda _x: SECRET, "returns a list": lambda _x: [b"x"] * 1000,
}  # fmt: skip


def outcome(talk: Conversation) -> int:
    """Ask once; the status that the client gets, 0 where its connection is broken off."""
    talk.client >> POST
    if talk.pending_dial() is not None:
        talk.dialled("a.example", 80)
    talk.until(lambda: bool(talk.client.got) or (hasattr(talk, "origin") and talk.origin.got.endswith(b"body")) or (
        hasattr(talk, "origin") and talk.origin.got.endswith(b"0\r\n\r\n")))  # fmt: skip
    if not talk.client.got:
        talk.origin.received.clear()
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
        talk.until(lambda: talk.client.is_gone or bool(talk.records))
    got = talk.client.got
    talk.client.received.clear()
    assert SECRET.encode() not in got
    return 0 if talk.client.is_gone else int(got[9:12])


@pytest.mark.parametrize("fails_open", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("name", ACTS)
def test_a_filter_that_misbehaves_ends_its_own_exchange_at_most(
    converse: Start, name: str, phase: Phase, is_async: bool, fails_open: bool
):
    made = Misbehaving(phase, ACTS[name], is_async=is_async, mode=BodyMode.BUFFER)
    talk = converse(forward(extensions=[scripted_filter("f", phase.value, failOpen=fails_open)]), filters={"f": made})
    status = outcome(talk)
    assert status == (200 if fails_open else 502)
    record = talk.record()
    assert SECRET not in str(record)
    assert made.completed == 1
    assert talk.snapshot.filters.stats()[0].failed >= 1
    assert fails_open or record["reason"] == "filter_failed"
    gc.collect()


@pytest.mark.parametrize("fails_open", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
def test_a_filter_that_hangs_is_ended_by_its_timeout(converse: Start, phase: Phase, fails_open: bool):
    made = Misbehaving(phase, hang, is_async=True, mode=BodyMode.BUFFER)
    extension = scripted_filter("f", phase.value, failOpen=fails_open, timeout="20ms")
    talk = converse(forward(extensions=[extension]), filters={"f": made})
    talk.client >> POST
    if phase not in (Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.CONNECT) or fails_open:
        talk.until(lambda: bool(talk.dialer.dials))
        talk.dialled("a.example", 80)
        if phase is not Phase.BACKEND_REQUEST or fails_open:
            talk.until(lambda: talk.origin.got.endswith(b"body"))
            talk.origin.received.clear()
            talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    talk.until(lambda: bool(talk.records))
    talk.client.take(rb"HTTP/1.1 200 .*hi" if fails_open else rb"HTTP/1.1 502 .*did not answer in time.*\n?")
    assert talk.snapshot.filters.stats()[0].timed_out == 1


@pytest.mark.parametrize("fails_open", [False, True])
@pytest.mark.parametrize("phase", BODIES)
def test_a_filter_that_returns_more_than_any_body_is_has_failed(converse: Start, phase: Phase, fails_open: bool):
    flood = bytes(MAX_RESULT + 1)
    made = Misbehaving(phase, lambda _x: flood, is_async=False, mode=BodyMode.BUFFER)
    talk = converse(forward(extensions=[scripted_filter("f", phase.value, failOpen=fails_open)]), filters={"f": made})
    assert outcome(talk) == (200 if fails_open else 502)


@pytest.mark.parametrize("speaks_http2", [False, True])
@pytest.mark.parametrize("place", ["path", "host", "method"])
@pytest.mark.parametrize("end", ["%0D%0A", "%0A", "%0D"])
def test_a_line_break_that_a_filter_decodes_begins_no_other_request(
    converse: Start, end: str, place: str, speaks_http2: bool
):
    class Decoding(Filter):
        def request_headers(self, x: Exchange) -> None:
            decoded = unquote_to_bytes(x.request.path)
            if place == "host":
                x.upstream_host = decoded
            else:
                setattr(x.request, place, decoded)

    backend = m.backend("a", "a.example", 80, protocol="H2C" if speaks_http2 else "HTTP")
    rule = m.http_route("route", m.prefix_rule("/", "a"))
    extension = m.policy(extensions=[scripted_filter("decodes")])
    talk = converse([m.gateway(m.http_listener(8080)), extension, backend, rule], filters={"decodes": Decoding()})
    talk.client >> f"GET /x{end}{end}GET%20/admin HTTP/1.1\r\nHost: a.example\r\n\r\n".encode()
    talk.dialled("a.example", 80)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (502, "filter_failed")
    assert b"admin" not in talk.origin.got
