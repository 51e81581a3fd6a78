"""What the clock of an exchange says when its deadline has passed, from times and counts of bytes."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from egressproxy.errors import GatewayError, Reason
from egressproxy.gateway.exchange.clock import ANSWER_S, STOPPED, started_clock
from egressproxy.gateway.exchange.grpc_call import GrpcCall
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.net.timers import NEVER, Deadline, TimerWheel
from egressproxy.protocols.grpc.statuses import parsed_timeout
from tests.support.builds import of_sources

pytestmark = of_sources  # a client that is none


def client(*, request_s: float = 0.0, idle_s: float = 0.0, **more: Any) -> Any:
    wheel = TimerWheel()
    made = SimpleNamespace(
        wheel=wheel, deadline=Deadline(wheel, lambda: None), call=None, own_clock=None, bytes_in=100, bytes_out=0,
        unsent_bytes=0, has_ended=False, awaits_bytes=False,
        pipeline=SimpleNamespace(held_bytes=None, upstream=None, backend=None, route=None, exchange=None),
    )  # fmt: skip
    vars(made).update(more)
    made.began = wheel.now
    made.clock = started_clock(made, request_s, idle_s)
    return made


def looked(made: Any, seconds: float, moved: int = 0) -> tuple[Reason | None, float]:
    """The fault after so many seconds, and the next look, in seconds since the beginning."""
    made.wheel.now = made.began + seconds
    made.bytes_in += moved
    fault = made.clock.look(made)
    return fault and fault.reason, made.deadline.at - made.began


@pytest.mark.parametrize(
    ("request_s", "idle_s", "at"), [(0, 0, NEVER), (9, 0, 9), (0, 5, 5), (9, 5, 5), (5, 9, 5), (9, 9, 9)]
)
def test_the_deadline_is_the_earliest_of_the_request_and_the_next_look(request_s: float, idle_s: float, at: float):
    made = client(request_s=request_s, idle_s=idle_s)
    assert made.deadline.at - made.began == pytest.approx(at)


def test_an_exchange_in_which_nothing_moves_ends_and_one_that_moves_goes_on():
    made = client(request_s=100, idle_s=5)
    assert looked(made, 5, moved=1) == (None, pytest.approx(10))
    assert looked(made, 10)[0] is Reason.RESPONSE_TIMEOUT
    assert looked(made, 15, moved=1)[0] is None
    assert looked(made, 100, moved=1)[0] is Reason.REQUEST_TIMEOUT


@pytest.mark.parametrize(
    ("has_sent_all", "has_ended", "is_quiet"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_backend_that_has_the_whole_request_may_take_its_time(has_sent_all: bool, has_ended: bool, is_quiet: bool):
    """Not one whose client has ended its side with the request, and may have left."""
    made = client(idle_s=5, has_ended=has_ended)
    made.pipeline.upstream = SimpleNamespace(
        has_sent_all=has_sent_all, head=None, is_write_blocked=False, last_read=made.began
    )
    assert (looked(made, 5)[0] is None) is is_quiet
    assert looked(made, ANSWER_S)[0] is Reason.RESPONSE_TIMEOUT


def test_an_attempt_has_a_time_of_its_own_within_that_of_the_request():
    made = client(request_s=10, idle_s=0)
    made.clock.start_attempt(made, 3)
    assert looked(made, 3)[0] is Reason.RESPONSE_TIMEOUT
    made.clock.end_attempt(made)
    assert looked(made, 4) == (None, pytest.approx(10))
    made.clock.start_attempt(made, 30)
    assert made.deadline.at - made.began == pytest.approx(10)
    assert looked(made, 10)[0] is Reason.REQUEST_TIMEOUT


def test_several_attempts_have_clocks_of_their_own_and_one_takes_this_one_back():
    made = client(request_s=100, idle_s=5)
    made.clock.leave_to_attempts(made)
    assert looked(made, 50) == (None, pytest.approx(100))
    made.clock.take_back(made, made.began + 60, 5)
    assert looked(made, 55) == (None, pytest.approx(60))
    assert looked(made, 60)[0] is Reason.RESPONSE_TIMEOUT


def test_a_clock_that_is_stopped_ends_nothing():
    made = client()
    made.clock = STOPPED
    assert [looked(made, seconds)[0] for seconds in (1, 1000, 1000)] == [None] * 3
    made.awaits_bytes = True
    assert looked(made, 2000)[0] is Reason.CLIENT_TIMEOUT


@pytest.mark.parametrize(
    ("timeout", "request_s", "at"), [([b"2S"], 0, 2), ([b"2S"], 9, 2), ([b"9S"], 2, 2), ([], 2, 2), ([], 0, NEVER)]
)
def test_of_a_call_the_earlier_of_two_deadlines_holds(timeout: list[bytes], request_s: float, at: float):
    made = client(request_s=request_s, call=GrpcCall(timeout))
    assert made.deadline.at - made.began == pytest.approx(at)


@pytest.mark.parametrize(("exchange_s", "attempt_s", "left"), [(9, NEVER, 9), (99, NEVER, 20), (99, 5, 5)])
def test_a_backend_is_told_the_earliest_of_the_deadlines(exchange_s: float, attempt_s: float, left: float):
    made, head = GrpcCall([b"20S"]), RequestHead(b"POST", b"/", Fields.of([(b"grpc-timeout", b"20S")]))
    made.begin(0.0)
    made.tell_time_left(head, monotonic() + exchange_s, monotonic() + attempt_s)
    assert left - 1 < parsed_timeout(head.fields.get(b"grpc-timeout") or b"") <= left


@pytest.mark.parametrize("timeout", [[b"0S"], [b"2S", b"2S"], [b"soon"], [b"1s"], [b""], [b"123456789S"]])
def test_a_call_without_time_or_sense_does_not_begin(timeout: list[bytes]):
    with pytest.raises(GatewayError):
        client(call=GrpcCall(timeout))
