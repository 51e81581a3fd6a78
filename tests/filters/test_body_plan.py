"""A body that is whole goes through its filters as through a chain that gets it in one piece."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.errors import GatewayError, LimitExceeded, Reason
from egressproxy.filters import BodyMode, Exchange, Filter, Phase, Rejected
from egressproxy.filters.base import FilterType
from egressproxy.filters.body_plan import BodyPath, path_of
from egressproxy.filters.chain import compile_chain
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.filters.filter_step import FilterAnswered
from egressproxy.filters.settings import FilterConfig
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.exchange import StateSlot
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from tests.support.properties import examples

TYPE = FilterType("test/Any:v1", frozenset(Phase), FilterConfig, lambda _context: Filter())
FIELDS = [
    (b"content-type", b"text/plain"),
    (b"etag", b'"a"'),
    (b"content-md5", b"x"),
    (b"Digest", b"y"),
    (b"accept-ranges", b"bytes"),
]


def fail(data):
    raise RuntimeError("a secret")


def refuse(data):
    raise Rejected("no", status=451)


def end(data):
    raise SystemExit


DOES = {
    "pass": lambda data: data,
    "copy": lambda data: bytes(bytearray(data)),
    "add": lambda data: data + b"!",
    "cut": lambda data: data[:-1],
    "upper": bytes.upper,
    "empty": lambda data: b"",
    "fail": fail,
    "refuse": refuse,
    "end": end,
    "nothing": lambda data: None,
    "text": lambda data: "text",
    "answer": lambda data: LocalResponse(418, ((b"x-a", b"b"),)),
    "no field": lambda data: LocalResponse(200, ((b"x a", b"b"),)),
}


class Scripted(Filter):
    def __init__(self, how, mode, bound, is_async, keeps_length, only_reads, needs_original):
        self.how, self.mode, self.max_buffer_bytes = how, mode, bound
        self.keeps_length, self.only_reads, self.needs_original = keeps_length, only_reads, needs_original
        if is_async:
            self.request_body = self.later

    def body_mode_for(self, x, phase):
        if self.mode == "fail":
            raise RuntimeError("a secret")
        return self.mode

    def request_body(self, x, data, last):
        x.note(f"seen by {id(self)}", (data, last, (x.notes or {}).get("original body")))
        return DOES[self.how](data)

    async def later(self, x, data, last):
        await asyncio.sleep(0)
        return Scripted.request_body(self, x, data, last)

    def response_body(self, x, data, last):
        return self.request_body(x, data, last)


modes = st.sampled_from([BodyMode.BUFFER, BodyMode.BUFFER, BodyMode.STREAM, None, "fail", "buffer"])
flags = st.booleans()
does = st.one_of(st.sampled_from(["pass", "copy", "add", "cut", "upper"]), st.sampled_from(list(DOES)))
scripts = st.tuples(does, modes, st.sampled_from([3, 100]), flags, flags, flags, flags)


def begun(filters, opens, phase):
    """An exchange, and the plan of these filters; `opens` are those that fail open."""
    x = Exchange("127.0.0.1:1", "ns/gw", "proxy", 0.0)
    x.request = RequestHead(b"POST", b"/", Fields.of(FIELDS))
    x.response = ResponseHead(200, b"OK", Fields.of(FIELDS))
    specs = {
        ExtensionIR(f"f{n}", TYPE.name, phase, fail_open=is_open): each
        for n, (each, is_open) in enumerate(zip(filters, opens, strict=True))
    }
    made = {s: ConfiguredFilter(s, f, mark=StateSlot(s.name)) for s, f in specs.items()}
    chain = compile_chain(made, made.__getitem__)
    return x, chain.request_body or chain.response_body, list(made.values())


async def outcome_of(filters, opens, phase, body, *, in_short):
    """Everything that can be told of a body's way."""
    x, plan, placed = begun(filters, opens, phase)
    counts = [each.stats_in(Phase(phase)) for each in placed]
    result = is_short = None
    try:
        chosen = plan.choose(x)
        if path_of(chosen, x.request.fields) == BodyPath.WHOLE:
            is_short = True
            outcome = chosen.pass_whole(x, body) if in_short else plan.chain(x, chosen).feed(x, body, True)
            result = outcome if isinstance(outcome, bytes) else await outcome
    except FilterAnswered as error:
        result = error.answer
    except GatewayError as error:
        result = (error.reason, error.status, error.message, error.rule, error.detail.partition(" at ")[0], error.close)
    numbers = [(n.runs, n.rejected, n.answered, n.failed, n.timed_out) for n in counts]
    marks = sorted(slot.name for slot, _ in x.state.items())
    return is_short, result, numbers, x.notes, marks, x.request.fields.block, x.response.fields.block


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(scripts, flags), min_size=1, max_size=4),
    st.sampled_from(["request-body", "response-body"]),
    st.binary(max_size=6),
)
def test_the_short_way_makes_of_a_body_what_a_chain_makes_of_it(placed, phase, body):
    filters = [Scripted(*script) for script, _ in placed]
    opens = [is_open for _, is_open in placed]
    short, long = (
        asyncio.run(outcome_of(filters, opens, phase, body, in_short=in_short)) for in_short in (True, False)
    )
    assert short == long


def test_filters_that_choose_alike_share_what_is_known_of_them():
    buffering = Scripted("add", BodyMode.BUFFER, 100, False, False, False, False)
    x, plan, _ = begun([buffering, buffering], [False, False], "request-body")
    first = plan.choose(x)
    assert plan.choose(x) is first
    buffering.mode = BodyMode.STREAM
    second = plan.choose(x)
    assert (first.holds, second.holds) == (True, False)
    buffering.mode = None
    assert plan.choose(x) is None


def test_a_coded_body_takes_the_long_way_where_a_filter_wants_its_content():
    for decodes, lines, expected in (
        (True, [(b"content-encoding", b"gzip")], False),
        (True, [(b"Content-Encoding", b"identity")], False),
        (True, [], True),
        (False, [(b"content-encoding", b"gzip")], True),
    ):
        reading = Scripted("pass", BodyMode.BUFFER, 100, False, False, False, False)
        reading.decodes = decodes
        x, plan, _ = begun([reading], [False], "request-body")
        x.request.fields = Fields.of(lines)
        assert (path_of(plan.choose(x), x.request.fields) == BodyPath.WHOLE) is expected


def test_a_body_that_only_flows_takes_the_long_way():
    x, plan, _ = begun([Scripted("add", BodyMode.STREAM, 100, False, False, False, False)], [False], "response-body")
    assert path_of(plan.choose(x), x.request.fields) == BodyPath.STREAM


def test_what_is_too_long_is_refused_as_in_a_chain():
    x, plan, placed = begun([Scripted("add", BodyMode.BUFFER, 3, False, False, False, False)], [True], "request-body")
    with pytest.raises(LimitExceeded) as caught:
        plan.choose(x).pass_whole(x, b"abcd")
    assert (caught.value.reason, caught.value.status) == (Reason.BODY_TOO_LARGE, 413)
    stats = placed[0].stats_in(Phase.REQUEST_BODY)
    assert (stats.runs, stats.rejected) == (1, 1)


@pytest.mark.parametrize("mode", ["buffer", "fail"])
def test_a_choice_that_is_none_fails_closed_or_lets_the_body_pass(mode):
    for opens in (False, True):
        x, plan, placed = begun([Scripted("add", mode, 9, False, False, False, False)], [opens], "response-body")
        if opens:
            assert plan.choose(x) is None
        else:
            with pytest.raises(GatewayError) as caught:
                plan.choose(x)
            assert (caught.value.status, caught.value.reason) == (502, Reason.FILTER_FAILED)
            assert "secret" not in caught.value.message + caught.value.detail
        stats = placed[0].stats_in(Phase.RESPONSE_BODY)
        assert (stats.runs, stats.failed) == (1, 1)


def test_a_filter_that_answers_a_body_is_counted_so():
    x, plan, placed = begun(
        [Scripted("answer", BodyMode.BUFFER, 9, False, False, False, False)], [False], "request-body"
    )
    with pytest.raises(FilterAnswered):
        plan.choose(x).pass_whole(x, b"abc")
    stats = placed[0].stats_in(Phase.REQUEST_BODY)
    assert (stats.runs, stats.answered, stats.rejected, stats.failed) == (1, 1, 0, 0)
