import asyncio

import pytest

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.filters import Exchange, Filter, LocalResponse, Phase, Rejected
from egressproxy.filters.base import FilterType
from egressproxy.filters.chain import compile_chain, finish, run
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.settings import FilterConfig
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import StateSlot

TYPE = FilterType("test/Any:v1", frozenset(Phase), FilterConfig, lambda _context: Filter())


def exchange():
    return Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)


def spec(name="f", phase="request-headers", **more):
    return ExtensionIR(name, TYPE.name, phase, source="EgressPolicy ns/p", **more)


def chain(*placed, also=frozenset()):
    """Filters given as (spec, instance)."""
    made = {s: ConfiguredFilter(s, f, also, mark=StateSlot(s.name)) for s, f in placed}
    return compile_chain(made, made.__getitem__), list(made.values())


def filter_of(**methods):
    """A filter with these methods, each called with the exchange."""
    return type("Made", (Filter,), {name: lambda self, x, call=call: call(x) for name, call in methods.items()})()


def only(call, **more):
    """A chain of one filter in request-headers, and its counters."""
    made, (placed,) = chain((spec(**more), filter_of(request_headers=call)))
    return made.request_headers, placed.stats_in(Phase.REQUEST_HEADERS)


def boom(x):
    raise RuntimeError("the secret is hunter2")


def test_a_failure_names_the_line_of_the_filter_and_no_word_of_it():
    def fails(x):
        return int("hunter2")

    line = fails.__code__.co_firstlineno + 1
    with pytest.raises(GatewayFault) as caught:
        run(only(fails)[0], exchange())
    assert caught.value.detail == f"filter f: ValueError at test_chain.py:{line}"


async def test_a_failure_of_an_async_filter_names_its_line_too():
    class Fails(Filter):
        async def request_headers(self, x):
            await asyncio.sleep(0)
            return int("hunter2")

    made, _ = chain((spec(), Fails()))
    line = Fails.request_headers.__code__.co_firstlineno + 2
    with pytest.raises(GatewayFault) as caught:
        await run(made.request_headers, exchange())
    assert caught.value.detail == f"filter f: ValueError at test_chain.py:{line}"


def test_phases_without_filters_are_none():
    made, _ = chain((spec(), filter_of(request_headers=lambda x: None)))
    assert made.request_headers is not None
    assert (
        made.connect is made.backend_request is made.response_headers is made.request_body is made.response_body is None
    )


def test_a_phase_that_a_filter_does_not_override_is_left_out():
    made, _ = chain((spec(), filter_of(connect=lambda x: None)))
    assert made.request_headers is None
    assert made.connect is None


def test_also_phases_run_too_unless_the_instance_says_otherwise():
    also = frozenset((Phase.RESPONSE_HEADERS,))
    both = filter_of(request_headers=lambda x: None, response_headers=lambda x: None)
    made, _ = chain((spec(), both), also=also)
    assert made.response_headers is not None
    both.runs_in = frozenset((Phase.REQUEST_HEADERS,))
    made, _ = chain((spec(), both), also=also)
    assert made.request_headers is not None
    assert made.response_headers is None


def test_order_is_pre_auth_then_priority_then_level_then_as_given():
    seen = []
    specs = [
        spec("late", priority=200), spec("route", level=1), spec("older"), spec("younger"), spec("backend", level=2),
        spec("early", priority=1, level=2), spec("first", priority=900, pre_auth=True),
    ]  # fmt: skip
    made, _ = chain(*((s, filter_of(request_headers=lambda x, n=s.name: seen.append(n))) for s in specs))
    assert run(made.request_headers, exchange()) is None
    assert seen == ["first", "early", "older", "younger", "route", "backend", "late"]


def test_an_answer_ends_the_phase_and_is_attributed():
    later = []
    made, (first, _) = chain(
        (spec("a"), filter_of(request_headers=lambda x: LocalResponse(204))),
        (spec("b"), filter_of(request_headers=later.append)),
    )
    x = exchange()
    assert run(made.request_headers, x) == LocalResponse(204)
    assert first.stats_in(Phase.REQUEST_HEADERS).answered == 1
    assert not later


def test_a_refusal_goes_on_and_names_who_decided():
    def refuse(x):
        raise Rejected("no cats", status=451)

    steps, stats = only(refuse, fail_open=True)
    with pytest.raises(Rejected) as caught:
        run(steps, exchange())
    assert (caught.value.status, caught.value.rule) == (451, "EgressPolicy ns/p")
    assert (stats.runs, stats.rejected, stats.failed) == (1, 1, 0)


def test_a_refusal_keeps_the_rule_that_it_names():
    def refuse(x):
        raise Denied(Reason.PLAINTEXT_CREDENTIAL, "no", rule="Backend ns/b")

    with pytest.raises(Denied) as caught:
        run(only(refuse)[0], exchange())
    assert caught.value.rule == "Backend ns/b"


def test_a_failure_closes_with_the_filters_name_and_never_its_words():
    steps, stats = only(boom)
    with pytest.raises(GatewayFault) as caught:
        run(steps, exchange())
    fault = caught.value
    assert (fault.status, fault.reason, fault.message) == (502, Reason.FILTER_FAILED, "filter f failed")
    assert "RuntimeError" in fault.detail
    assert "hunter2" not in repr(fault) + fault.message + fault.detail + fault.remedy
    assert stats.failed == 1


def test_a_failure_that_may_fail_open_goes_on_with_the_next_filter():
    seen = []
    made, (first, _) = chain(
        (spec("a", fail_open=True), filter_of(request_headers=boom)),
        (spec("b"), filter_of(request_headers=seen.append)),
    )
    assert run(made.request_headers, exchange()) is None
    assert len(seen) == first.stats_in(Phase.REQUEST_HEADERS).failed == 1


def test_a_result_of_another_type_is_a_failure():
    with pytest.raises(GatewayFault):
        run(only(lambda x: True)[0], exchange())


def awaiting(outcome, gate=None):
    async def call(x):
        await (gate.wait() if gate else asyncio.sleep(0))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return call


async def test_a_filter_that_waits_continues_in_a_task_with_the_filters_after_it():
    seen = []
    made, placed = chain(
        (spec("a"), filter_of(request_headers=lambda x: seen.append("a"))),
        (spec("b"), filter_of(request_headers=awaiting(None))),
        (spec("c"), filter_of(request_headers=lambda x: seen.append("c"))),
        (spec("d"), filter_of(request_headers=awaiting(LocalResponse(200)))),
        (spec("e"), filter_of(request_headers=lambda x: seen.append("e"))),
    )
    x = exchange()
    task = run(made.request_headers, x)
    assert isinstance(task, asyncio.Task)
    assert seen == ["a"]
    assert await task == LocalResponse(200)
    assert seen == ["a", "c"]
    assert [each.stats_in(Phase.REQUEST_HEADERS).answered for each in placed] == [0, 0, 0, 1, 0]


async def test_a_deadline_ends_a_filter_that_waits():
    steps, stats = only(awaiting(None, asyncio.Event()), timeout_s=0.01)
    with pytest.raises(GatewayFault, match="filter f did not answer in time") as caught:
        await run(steps, exchange())
    assert caught.value.status == 502
    assert (stats.timed_out, stats.failed) == (1, 1)


async def test_a_deadline_may_fail_open():
    steps, stats = only(awaiting(LocalResponse(200), asyncio.Event()), timeout_s=0.01, fail_open=True)
    assert await run(steps, exchange()) is None
    assert stats.timed_out == 1


async def test_a_timeout_of_the_filters_own_is_a_failure_and_no_deadline():
    steps, stats = only(awaiting(TimeoutError()))
    with pytest.raises(GatewayFault, match="filter f failed"):
        await run(steps, exchange())
    assert (stats.timed_out, stats.failed) == (0, 1)


async def test_a_filter_that_cancels_itself_fails_closed():
    steps, stats = only(awaiting(asyncio.CancelledError()))
    with pytest.raises(GatewayFault, match="filter f failed"):
        await run(steps, exchange())
    assert stats.failed == 1


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException])
def test_a_filter_that_would_end_the_process_fails_like_any_other(error):
    def call(x):
        raise error("hunter2")

    steps, stats = only(call)
    with pytest.raises(GatewayFault) as caught:
        run(steps, exchange())
    assert caught.value.reason is Reason.FILTER_FAILED
    assert "hunter2" not in caught.value.message + caught.value.detail
    assert stats.failed == 1
    steps, _ = only(call, fail_open=True)
    assert run(steps, exchange()) is None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException])
async def test_a_waiting_filter_that_would_end_the_process_fails_like_any_other(error):
    async def call(x):
        await asyncio.sleep(0)
        raise error("hunter2")

    steps, stats = only(call)
    with pytest.raises(GatewayFault) as caught:
        await run(steps, exchange())
    assert caught.value.reason is Reason.FILTER_FAILED
    assert "hunter2" not in caught.value.message + caught.value.detail
    assert stats.failed == 1


def test_complete_cannot_end_the_process():
    def leave(x):
        raise SystemExit

    made, (placed,) = chain((spec(), filter_of(request_headers=lambda x: None, complete=leave)))
    x = exchange()
    run(made.request_headers, x)
    finish(made.complete, x)
    assert placed.stats_in(Phase.REQUEST_HEADERS).failed == 1


async def test_a_waiting_filter_that_gives_another_type_is_a_failure():
    with pytest.raises(GatewayFault):
        await run(only(awaiting("yes"))[0], exchange())


async def test_cancelling_the_task_cancels_the_filter():
    ended = []

    async def call(x):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    steps, stats = only(call, fail_open=True)
    task = run(steps, exchange())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    assert stats.failed == 0


@pytest.mark.filterwarnings("error")
async def test_a_task_cancelled_before_it_began_leaves_no_warning():
    task = run(only(awaiting(None))[0], exchange())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_refusals_and_failures_of_waiting_filters_count_as_those_of_others():
    steps, stats = only(awaiting(Rejected("no")))
    waiting = run(steps, exchange())
    assert stats.runs == 0  # a scrape that sees it as passed would see the counter fall
    with pytest.raises(Rejected):
        await waiting
    assert (stats.runs, stats.rejected) == (1, 1)
    steps, stats = only(awaiting(ValueError("hunter2")), fail_open=True)
    assert await run(steps, exchange()) is None
    assert (stats.runs, stats.failed) == (1, 1)


def test_complete_runs_once_for_filters_that_ran_and_only_for_those():
    done = []

    def completing(name, headers):
        return filter_of(request_headers=headers, complete=lambda x: done.append(name))

    made, _ = chain(
        (spec("ran"), completing("ran", lambda x: None)),
        (spec("answered"), completing("answered", lambda x: LocalResponse(200))),
        (spec("not reached"), completing("not reached", lambda x: None)),
    )
    x = exchange()
    finish(made.complete, x)
    assert done == []
    run(made.request_headers, x)
    finish(made.complete, x)
    finish(made.complete, x)
    assert done == ["ran", "answered"]


def test_complete_runs_though_the_filter_failed_and_what_it_raises_is_counted():
    made, (placed,) = chain((spec(), filter_of(request_headers=boom, complete=boom)))
    x = exchange()
    with pytest.raises(GatewayFault):
        run(made.request_headers, x)
    finish(made.complete, x)
    assert placed.stats_in(Phase.REQUEST_HEADERS).failed == 2


@pytest.mark.parametrize(
    "wrong",
    [
        LocalResponse(200, ((b"x y", b"1"),)),
        LocalResponse(200, ((b"x", b"a\r\nb: c"),)),
        LocalResponse(200, ((b"x", "text"),)),  # type: ignore[arg-type]
        LocalResponse(200, phrase=b"OK\r\nb: c"),
    ],
    ids=["name", "lines", "text", "phrase"],
)
def test_an_invalid_response_is_a_failure_of_the_filter(wrong):
    steps, stats = only(lambda x: wrong)
    with pytest.raises(GatewayFault) as caught:
        run(steps, exchange())
    assert (caught.value.reason, caught.value.status) == (Reason.FILTER_FAILED, 502)
    assert (stats.failed, stats.answered) == (1, 0)


async def test_the_framing_of_a_response_is_not_the_filters_to_say():
    lines = ((b"Content-Length", b"9"), (b"X-A", b"1"), (b"transfer-encoding", b"chunked"), (b"connection", b"x-a"))

    async def later(x):
        return LocalResponse(200, lines, b"body")

    for call in (lambda x: LocalResponse(200, list(lines), b"body"), later):
        made = run(only(call)[0], exchange())
        made = await made if isinstance(made, asyncio.Task) else made
        assert (made.fields, made.body) == (((b"X-A", b"1"),), b"body")


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_that_has_no_body_gets_none_from_a_filter(status):
    made = run(only(lambda x: LocalResponse(status, body=b"HTTP/1.1 200 OK\r\n\r\n"))[0], exchange())
    assert made == LocalResponse(status)
