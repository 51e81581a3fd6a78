import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.filters import BodyMode, Exchange, Filter, Phase, Rejected
from egressproxy.filters.base import FilterType
from egressproxy.filters.body_plan import is_short
from egressproxy.filters.chain import compile_chain, finish
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.settings import FilterConfig
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import StateSlot
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead

TYPE = FilterType("test/Any:v1", frozenset(Phase), FilterConfig, lambda _context: Filter())


class Upper(Filter):
    keeps_length = True

    def request_body(self, x, data, last):
        return data.upper()

    response_body = request_body


class Around(Filter):
    """Buffers, and shows where the whole began and ended."""

    body_mode = BodyMode.BUFFER
    max_buffer_bytes = 16

    def request_body(self, x, data, last):
        return b"<" + data + b">"

    response_body = request_body


class Hold(Filter):
    """Holds one piece back."""

    def request_body(self, x, data, last):
        before = (x.notes or {}).get("hold", b"")
        x.note("hold", data)
        return before + (data if last else b"")


class FailAt(Filter):
    """Passes `good` pieces, then fails."""

    def __init__(self, good, error=RuntimeError, change=False):
        self.good, self.error, self.change = good, error, change

    def request_body(self, x, data, last):
        if self.good == 0:
            raise self.error("hunter2")
        self.good -= 1
        return data + b"!" if self.change else data


class Slow(Filter):
    async def request_body(self, x, data, last):
        await asyncio.sleep(0)
        return b"(" + data + b")"


def body(*filters, phase="request-body", **more):
    x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    x.request, x.response = RequestHead(b"POST", b"/", Fields()), ResponseHead(200, b"OK", Fields())
    specs = {ExtensionIR(f"f{n}", TYPE.name, phase, **more): f for n, f in enumerate(filters)}
    made = {s: ConfiguredFilter(s, f) for s, f in specs.items()}
    chain = compile_chain(made, made.__getitem__)
    return x, chain.request_body or chain.response_body, list(made.values())


def send(filters, *pieces, **more):
    """What comes out for each piece; the last one is the last."""
    x, plan, _ = body(*filters, **more)
    talk = plan.begin(x)
    return [talk.feed(x, piece, n == len(pieces) - 1) for n, piece in enumerate(pieces)]


def test_stream_filters_give_each_piece_on():
    assert send([Upper()], b"ab", b"cd", b"") == [b"AB", b"CD", b""]


def test_a_buffer_filter_is_called_once_with_the_whole():
    assert send([Around()], b"ab", b"", b"cd", b"") == [b"", b"", b"", b"<abcd>"]


def test_filters_of_both_kinds_run_in_order():
    assert send([Upper(), Around(), Hold()], b"ab", b"cd") == [b"", b"<ABCD>"]
    assert send([Around(), Upper()], b"ab") == [b"<AB>"]
    assert send([Hold(), Upper()], b"ab", b"cd", b"") == [b"", b"AB", b"CD"]


def test_a_request_beyond_the_buffer_is_413_and_a_response_502():
    with pytest.raises(LimitExceeded) as caught:
        send([Around()], b"a" * 10, b"b" * 7)
    assert (caught.value.status, caught.value.reason, caught.value.close) == (413, Reason.BODY_TOO_LARGE, True)
    with pytest.raises(UpstreamFault) as caught:
        send([Around()], b"a" * 17, phase="response-body")
    assert caught.value.status == 502
    assert send([Around()], b"a" * 16) == [b"<" + b"a" * 16 + b">"]


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, BaseException])
def test_a_body_filter_that_would_end_the_process_fails_like_any_other(error):
    with pytest.raises(GatewayFault, match="filter f0 failed") as caught:
        send([FailAt(0, error)], b"a")
    assert "hunter2" not in caught.value.detail


@pytest.mark.parametrize("given", [b"abc", b"a"])
def test_a_filter_that_breaks_its_promise_on_the_length_fails(given):
    class Liar(Filter):
        keeps_length = True

        def request_body(self, x, data, last):
            return given if last else data

    with pytest.raises(GatewayFault, match="filter f0 did not keep the length") as caught:
        send([Liar()], b"ab", b"ab")
    assert caught.value.reason is Reason.FILTER_FAILED
    assert caught.value.close


def test_a_failure_closes_without_repeating_what_was_raised():
    with pytest.raises(GatewayFault, match="filter f0 failed") as caught:
        send([FailAt(0)], b"a")
    assert "hunter2" not in caught.value.detail


def test_a_filter_fails_open_while_it_has_changed_nothing():
    assert send([FailAt(1), Upper()], b"a", b"b", b"c", fail_open=True) == [b"A", b"B", b"C"]


def test_a_filter_that_changed_something_can_no_longer_fail_open():
    with pytest.raises(GatewayFault):
        send([FailAt(1, change=True)], b"a", b"b", fail_open=True)


def test_a_buffer_filter_fails_open_with_the_original_whole():
    class Failing(Around):
        def request_body(self, x, data, last):
            raise RuntimeError

    assert send([Failing(), Upper()], b"ab", b"cd", fail_open=True) == [b"", b"ABCD"]


def test_a_refusal_never_fails_open():
    with pytest.raises(Rejected):
        send([FailAt(0, error=Rejected)], b"a", fail_open=True)


def test_a_result_that_is_no_bytes_is_a_failure():
    class Wrong(Filter):
        def request_body(self, x, data, last):
            return None

    with pytest.raises(GatewayFault):
        send([Wrong()], b"a")


async def test_a_filter_that_waits_gives_a_task_and_the_rest_follows():
    x, plan, _ = body(Slow(), Upper(), Slow())
    talk = plan.begin(x)
    task = talk.feed(x, b"ab", False)
    assert isinstance(task, asyncio.Task)
    assert await task == b"((AB))"
    assert await talk.feed(x, b"c", True) == b"((C))"


async def test_a_deadline_ends_a_body_filter_that_waits():
    class Stuck(Filter):
        async def request_body(self, x, data, last):
            await asyncio.Event().wait()

    x, plan, (placed,) = body(Stuck(), timeout_s=0.01)
    with pytest.raises(GatewayFault, match="did not answer in time"):
        await plan.begin(x).feed(x, b"a", True)
    assert placed.stats_in(Phase.REQUEST_BODY).timed_out == 1


def test_length_is_kept_only_where_every_filter_keeps_it():
    for filters, is_kept in (([Upper()], True), ([Upper(), Around()], False)):
        x, plan, _ = body(*filters)
        assert plan.begin(x).keeps_length is is_kept


def test_complete_follows_a_body():
    done = []

    class Completing(Upper):
        def complete(self, x):
            done.append(x)

    x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    spec = ExtensionIR("f", TYPE.name, "request-body")
    chain = compile_chain([spec], lambda s: ConfiguredFilter(s, Completing(), mark=StateSlot("m")))
    chain.request_body.begin(x)
    finish(chain.complete, x)
    assert done == [x]


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=4), st.permutations([0, 1, 2]))
def test_nothing_is_lost_however_the_body_is_cut(pieces, order):
    filters = [[Upper(), Around(), Hold()][n] for n in order]
    if sum(map(len, pieces)) <= 12:
        whole = b"".join(send(filters, b"".join(pieces)))
        assert b"".join(send(filters, *pieces)) == whole


@pytest.mark.parametrize("made", [Upper(), Around(), FailAt(10**9)], ids=["stream", "buffer", "open"])
def test_a_body_in_very_many_pieces_is_held_once(made):
    """A hundred thousand pieces of one byte: what is held is the bytes, not the pieces."""
    made.max_buffer_bytes = 10**5
    x, plan, _ = body(made, fail_open=isinstance(made, FailAt))
    talk = plan.begin(x)
    sent = sum(len(talk.feed(x, b"a", False)) for _ in range(10**5))
    assert talk.held(x) == (10**5 if isinstance(made, Around) else 0)
    sent += len(talk.feed(x, b"", True))
    assert sent == 10**5 + 2 * isinstance(made, Around)


def test_a_body_is_collected_up_to_the_bound_of_a_first_filter_that_buffers():
    for filters, length, expected in (
        ((Around(),), 16, True),
        ((Around(),), 17, False),
        ((Around(),), -1, False),
        ((Around(), Upper()), 16, True),
        ((Upper(), Around()), 4, False),
        ((Upper(),), 4, False),
    ):
        x, plan, _ = body(*filters)
        assert is_short(plan.choose(x), length) is expected


def test_a_body_in_one_piece_that_is_too_long_is_refused_all_the_same():
    x, plan, _ = body(Around())
    with pytest.raises(LimitExceeded):
        plan.begin(x).feed(x, b"x" * 17, True)
