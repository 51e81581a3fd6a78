"""Two filters of one configuration, one of which has the short way taken from it, see the same exchanges."""

import json
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.limits import token_fast_path
from egressproxy.ai.limits.qos_controller import quota as filter_of
from egressproxy.ai.limits.token_quota import TokenQuota
from egressproxy.errors import LimitExceeded
from egressproxy.filters import FilterContext, Phase
from egressproxy.filters.limits import limit_fast_path, memory_store, quota, rate_fields
from egressproxy.filters.limits.limit_fast_path import RequestLimitFastPath
from egressproxy.filters.limits.qos_config import LimitEntry, QoSControllerConfig
from egressproxy.filters.testing import exchange, response
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics
from tests.support.properties import examples

JSON = {"content-type": "application/json"}
CLOCKS = [
    (memory_store, "monotonic"),
    (limit_fast_path, "monotonic"),
    (token_fast_path, "monotonic"),
    (quota, "monotonic"),
    (rate_fields, "time"),
]
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/another"]

EXCHANGE = st.tuples(
    st.sampled_from(PATHS),
    st.integers(0, 900),  # characters of the question
    st.one_of(st.none(), st.integers(0, 400)),  # tokens of the answer that are allowed
    st.one_of(st.none(), st.tuples(st.integers(0, 300), st.integers(0, 700))),  # tokens that the answer tells
    st.sampled_from([0, 200, 200, 200, 500]),  # no attempt was made; the status of the answer
    st.sampled_from([0.0, 0.5, 7.0, 61.0]),  # seconds before it
    st.sampled_from(["a/one", "a/other"]),
)


def made(entry, mode, fields) -> tuple[TokenQuota, FilterMetrics]:
    metrics = FilterMetrics()
    config = QoSControllerConfig(limits=(entry,), mode=mode, rate_limit_headers=fields)
    meter = FilterMeter(metrics, "qos", "egressproxy.io/QoSController:v1")
    return filter_of(FilterContext(config, {}, "q", "s", "s", keyed=OwnCounters().keyed, meter=meter)), metrics


def outcome(each, about, now) -> object:
    """What comes of one exchange: a refusal, or what the limit has counted."""
    path, characters, allowed, told, status, _, identity = about
    x = exchange("POST", f"https://api.example{path}", JSON, identity=identity)
    x.request.body = 1
    asked = {"model": "m", "messages": [{"role": "user", "content": "x" * characters}]}
    if allowed is not None:
        asked["max_tokens"] = allowed
    refused = None
    try:
        each.request_headers(x)
        if each.body_mode_for(x, Phase.REQUEST_BODY) is not None:
            each.request_body(x, json.dumps(asked).encode(), True)
        if status:
            usage = {} if told is None else {"usage": {"prompt_tokens": told[0], "completion_tokens": told[1]}}
            x.response, x.status, x.attempts = response(status, JSON), status, 1
            if each.body_mode_for(x, Phase.RESPONSE_BODY) is not None:
                each.response_body(x, json.dumps(usage).encode(), True)
            each.response_headers(x)
    except LimitExceeded as error:
        refused = error.status, error.message, error.retry_after_s, error.fields, error.remedy
    each.complete(x)
    (rule,) = each.rules
    numbers = rule.table.peek(rule.table.key(rule.text(x, "") + b"\0"), now)
    counts = rule.count_allowed.count, rule.denied, rule.count_reserved.count, rule.count_settled.count
    return refused, numbers, counts, x.would_deny, list(x.response.fields) if x.has_response else []


@settings(max_examples=examples(200), deadline=None)
@given(
    about=st.lists(EXCHANGE, min_size=1, max_size=12),
    limit=st.sampled_from([100.0, 700.0, 5000.0]),
    burst=st.sampled_from([0.0, 400.0]),
    count=st.sampled_from(["Total", "Input", "Output"]),
    mode=st.sampled_from(["Enforce", "Report"]),
    fields=st.sampled_from(["Denied", "Always", "Never"]),
)
def test_the_short_way_counts_what_the_long_way_counts(about, limit, burst, count, mode, fields):
    entry = LimitEntry("Tokens", limit, "Minute", burst=burst, count=count, name="t", per=("Identity",))
    short, short_metrics = made(entry, mode, fields)
    long, long_metrics = made(entry, mode, fields)
    assert short._one is not None
    long._one = None
    now = 1000.0
    with pytest.MonkeyPatch.context() as patched:
        for module, clock in CLOCKS:
            patched.setattr(module, clock, lambda: now)  # `now` as it is when it is asked
        for each in about:
            now += each[5]
            assert outcome(short, each, now) == outcome(long, each, now)
    assert short_metrics.read() == long_metrics.read()


def test_a_limit_that_is_no_bucket_in_memory_of_one_rule_goes_the_long_way():
    day, _ = made(LimitEntry("Tokens", 9.0, "Day", name="t"), "Enforce", "Denied")
    cost, _ = made(LimitEntry("Requests", 9.0, "Minute", name="t", per=("Model",)), "Enforce", "Denied")
    assert (day._one, cost._one) == (None, None)


# --- requests --------------------------------------------------------------------------------------------------------
SLOT = st.tuples(
    st.sampled_from(["a/one", "a/two", "b/one", "-/-"]),
    st.sampled_from(["192.0.2.1:1", "192.0.2.2:1"]),
    st.sampled_from([0.0, 0.0, 0.25, 1.0, 7.0]),  # seconds before it
)


def requests_of(per, burst, mode, max_keys=0, *, is_short: bool) -> tuple[quota.Quota, FilterMetrics]:
    metrics = FilterMetrics()
    entry = LimitEntry("Requests", 3.0, window=2.0, burst=burst, name="r", per=per)
    config = QoSControllerConfig(limits=(entry,), mode=mode, max_keys=max_keys)
    meter = FilterMeter(metrics, "qos", "egressproxy.io/QoSController:v1")
    context = FilterContext(config, {}, "q", "s", "s", keyed=OwnCounters().keyed, meter=meter)
    with pytest.MonkeyPatch.context() as patched:
        if not is_short:
            patched.setattr(RequestLimitFastPath, "of", lambda *_: None)
        return filter_of(context), metrics


@settings(max_examples=examples(200), deadline=None)
@given(
    about=st.lists(SLOT, min_size=1, max_size=30),
    per=st.sampled_from([("Identity",), ("Namespace",), ("Identity", "Namespace"), ("Identity", "Route")]),
    burst=st.sampled_from([0.0, 1.0, 5.0]),
    mode=st.sampled_from(["Enforce", "Report"]),
    max_keys=st.sampled_from([0, 1]),  # 1: some find no room
)
def test_the_short_way_of_a_request_takes_what_the_long_way_takes(about, per, burst, mode, max_keys):
    both = (requests_of(per, burst, mode, max_keys, is_short=is_short) for is_short in (True, False))
    (short, short_metrics), (long, long_metrics) = both
    assert "request_headers" in vars(short)
    assert "request_headers" not in vars(long)
    now, known = 1000.0, {}
    with pytest.MonkeyPatch.context() as patched:
        for module, clock in CLOCKS:
            patched.setattr(module, clock, lambda: now)
        for who, address, pause in about:
            now += pause
            outcomes = []
            for each in (short, long):
                x = exchange("GET", "https://api.example/", identity=who if who != "-/-" else "")
                x.client = address
                if who != "-/-":
                    x.identity = known.setdefault(
                        who, CallerIdentity(*who.split("/"), name=who)
                    )  # as a connection has it
                try:
                    each.request_headers(x)
                    refused = None
                except LimitExceeded as error:
                    refused = error.status, error.message, error.retry_after_s, error.fields
                (rule,) = each.rules
                numbers = rule.table.peek(rule.table.key(rule.text(x, "") + b"\0"), now)
                outcomes.append((refused, numbers, rule.count_allowed.count, rule.denied, x.would_deny))
            assert outcomes[0] == outcomes[1]
    assert short_metrics.read() == long_metrics.read()


def test_what_is_remembered_of_a_client_is_not_taken_for_that_of_another_that_has_its_entry():
    (each, _) = requests_of(("Identity",), 0.0, "Enforce", is_short=True)
    (rule,) = each.rules
    x = exchange("GET", "https://api.example/", identity="a/one")
    x.identity = CallerIdentity("a", "one", name="one")
    each.request_headers(x)
    at = rule.table.find_text(rule.text(x, "") + b"\0", 0.0)
    assert (x.identity.limit_at, x.identity.limit_key) == (at, rule.table.numbers[at - 2])
    rule.table.numbers[at - 2] += 1  # the entry is another key's by now
    rule.table.cells[at] = 1e18
    each.request_headers(x)
    assert rule.table.cells[at] == 1e18


def test_a_client_of_two_limits_by_turns_is_counted_in_both():
    limits = [requests_of(("Identity",), 0.0, "Enforce", is_short=True)[0] for _ in range(2)]
    x = exchange("GET", "https://api.example/")
    x.identity = CallerIdentity("a", "one", name="one")
    for _ in range(3):
        for each in limits:
            each.request_headers(x)
    assert [each.rules[0].count_allowed.count for each in limits] == [3, 3]
    for each in limits:
        with pytest.raises(LimitExceeded):
            each.request_headers(x)


def test_clients_without_a_name_and_those_that_find_no_room_are_not_remembered():
    for max_keys, identity in ((0, ANONYMOUS), (0, CallerIdentity("a", "one")), (1, None)):
        (each, _) = requests_of(("Identity",), 0.0, "Report", max_keys, is_short=True)
        for number in range(9):
            x = exchange("GET", "https://api.example/")
            x.identity = identity or CallerIdentity("a", str(number), name=str(number))
            each.request_headers(x)
        at = each.rules[0].table.find_text(each.rules[0].text(x, "") + b"\0", monotonic())
        assert identity is not None or each.rules[0].table.is_shared_entry(at)
        assert x.identity.limit_number == 0
