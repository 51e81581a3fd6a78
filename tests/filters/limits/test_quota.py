import json
import math
import re

import pytest

from egressproxy.ai.limits.qos_controller import QOS_CONTROLLER, quota
from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import FilterContext, Phase
from egressproxy.filters.limits.filter_types import RequestRateLimit
from egressproxy.filters.limits.qos_config import LimitEntry, QoSControllerConfig
from egressproxy.filters.limits.quota import Quota, SettledQuota
from egressproxy.filters.testing import exchange, response
from egressproxy.filters.validation import validated
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

METER = FilterMeter(FilterMetrics(), "qos", "egressproxy.io/QoSController:v1")


def limit(*entries, counters=None, phase=Phase.REQUEST_HEADERS, **config) -> Quota:
    made = QoSControllerConfig(limits=tuple(LimitEntry(**entry) for entry in entries), **config)
    keyed = (counters or OwnCounters()).keyed
    return quota(
        FilterContext(made, {}, "qos", "Gateway a/gw", "EgressPolicy a/p", phase=phase, keyed=keyed, meter=METER)
    )


def ask(made, x=None, **about):
    x = x or exchange("POST", "https://a.example/v1", **about)
    made.request_headers(x)
    return x


def refused(made, **about) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as caught:
        ask(made, **about)
    return caught.value


def test_each_identity_has_a_count_of_its_own():
    made = limit({"type": "Requests", "limit": 2, "unit": "Hour", "per": ("Identity",)})
    for who in ("agents/a", "agents/b"):
        ask(made, identity=who), ask(made, identity=who)
        error = refused(made, identity=who)
        assert (error.status, error.reason, error.rule) == (429, Reason.REQUEST_RATE, "EgressPolicy a/p")
        assert error.message == "more than 2 requests in an hour for each Identity"
        assert 1700 < error.retry_after_s <= 1800


def test_a_refused_request_counts_in_no_limit():
    made = limit(
        {"type": "Requests", "limit": 5, "unit": "Day", "name": "day"},
        {"type": "Requests", "limit": 1, "unit": "Hour", "name": "hour"},
    )
    ask(made)
    for _ in range(9):
        refused(made)
    policy, state = (dict(refused(made).fields)[name] for name in (b"RateLimit-Policy", b"RateLimit"))
    assert policy == b'"day";q=5;w=86400, "hour";q=1;w=3600'
    assert state.startswith(b'"day";r=4;')


def test_a_reload_that_changes_how_much_is_allowed_forgets_nothing():
    counters = OwnCounters()
    entry = {"type": "Requests", "limit": 3, "unit": "Month", "per": ("Namespace",)}
    before = limit(entry, counters=counters)
    for _ in range(3):
        ask(before, identity="agents/a")
    after = limit({**entry, "limit": 4}, counters=counters)
    ask(after, identity="agents/a")
    refused(after, identity="agents/a")


def test_nothing_is_counted_where_mode_is_report_and_the_log_tells():
    made = limit({"type": "Requests", "limit": 1, "unit": "Hour"}, mode="Report")
    assert ask(made).would_deny is None
    assert ask(made).would_deny == [Reason.REQUEST_RATE]
    assert made.rules[0].denied == 1


def test_what_is_left_is_said_on_every_answer_if_asked_for():
    made = limit({"type": "Requests", "limit": 10, "unit": "Hour", "name": "hour"}, rate_limit_headers="Always")
    x = ask(made)
    x.response = response(200, {"RateLimit": "the provider's"})
    made.response_headers(x)
    assert x.response.fields.get(b"ratelimit") == b'"hour";r=9;t=360'
    assert made.runs_in == {Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS}


def test_nothing_is_said_where_that_is_not_wanted():
    made = limit({"type": "Requests", "limit": 1, "unit": "Hour"}, rate_limit_headers="Never")
    ask(made)
    assert refused(made).fields == ()


def test_bytes_are_counted_in_the_end_and_a_declared_length_before():
    made = limit({"type": "Bytes", "limit": 1000, "unit": "Day", "count": "Input"})
    x = exchange("POST", "https://a.example/v1")
    x.request.body = 900
    ask(made, x)
    big = exchange("POST", "https://a.example/v1")
    big.request.body = 200
    with pytest.raises(LimitExceeded) as caught:
        ask(made, big)
    assert caught.value.reason is Reason.BYTE_RATE
    x.bytes_in = 100  # the client left
    made.complete(x)
    ask(made, big)
    assert (made.rules[0].count_reserved.count, made.rules[0].count_settled.count) == (1100.0, 100.0)


def test_an_answer_of_more_bytes_than_are_left_is_a_debt():
    made = limit({"type": "Bytes", "limit": 1000, "unit": "Minute", "count": "Output", "per": ("Identity",)})
    x = ask(made)
    x.bytes_in, x.bytes_out = 7777, 2000
    made.complete(x)
    assert refused(made).retry_after_s == math.ceil(60 + 60 / 1000)
    ask(made, identity="agents/other")


def test_exchanges_in_progress_are_counted_for_each_key_and_once():
    made = limit({"type": "Concurrency", "limit": 2, "per": ("Identity",)})
    one, two = ask(made), ask(made)
    made.backend_request(two)  # another attempt
    error = refused(made)
    assert (error.status, error.reason, error.retry_after_s) == (503, Reason.CONCURRENCY, 1)
    ask(made, identity="agents/other")
    made.complete(two)
    made.complete(two)
    ask(made)
    refused(made)
    made.complete(one)
    assert made.concurrency[0].in_progress(one, "") == 1


def test_a_request_that_a_rate_refuses_holds_no_place():
    made = limit({"type": "Concurrency", "limit": 1}, {"type": "Requests", "limit": 1, "unit": "Hour"})
    made.complete(ask(made))
    x = exchange("GET", "https://a.example/")
    with pytest.raises(LimitExceeded):
        ask(made, x)
    made.complete(x)
    assert made.concurrency[0].in_progress(x, "") == 0


def test_every_attempt_at_a_backend_is_a_request():
    made = limit({"type": "Requests", "limit": 2, "unit": "Hour", "per": ("Backend",)}, phase=Phase.BACKEND_REQUEST)
    x = exchange("GET", "https://a.example/", backend="a/b")
    made.backend_request(x), made.backend_request(x)
    with pytest.raises(LimitExceeded):
        made.backend_request(x)


def test_an_attempt_at_another_backend_holds_a_place_there_and_none_at_the_one_before():
    made = limit({"type": "Concurrency", "limit": 1, "per": ("Backend",)}, phase=Phase.BACKEND_REQUEST)
    x, other = (exchange("GET", "https://a.example/", backend="a/one") for _ in range(2))
    made.backend_request(x)
    x.backend = "a/two"
    made.backend_request(x)
    made.backend_request(other)
    other.backend = "a/two"
    with pytest.raises(LimitExceeded):
        made.backend_request(other)
    other.backend = "a/one"
    made.backend_request(other)  # what was refused has left it, and may go back
    made.complete(x), made.complete(other)
    assert [made.concurrency[0].in_progress(each, "") for each in (x, other)] == [0, 0]


def test_an_attempt_behind_a_refused_one_holds_a_place():
    rate, place = {"type": "Requests", "limit": 1, "unit": "Hour"}, {"type": "Concurrency", "limit": 1}
    per_backend = [{**rate, "per": ("Backend",)}, {**place, "per": ("Backend",)}]
    made = limit(*per_backend, phase=Phase.BACKEND_REQUEST)
    x = exchange("GET", "https://a.example/", backend="a/one")
    made.backend_request(x)
    with pytest.raises(LimitExceeded):
        made.backend_request(x)
    x.backend = "a/two"
    made.backend_request(x)
    assert made.concurrency[0].in_progress(x, "") == 1
    made.complete(x)
    assert made.concurrency[0].in_progress(x, "") == 0


def test_a_backend_is_not_known_before_it_is_chosen():
    with pytest.raises(ValueError, match="backend-request"):
        limit({"type": "Requests", "limit": 1, "unit": "Hour", "per": ("Backend",)})


def test_only_what_is_settled_costs_a_phase_at_the_end():
    assert not isinstance(limit({"type": "Requests", "limit": 1, "unit": "Day"}), SettledQuota)


def test_metrics_count_by_limit_and_never_by_key():
    metrics = FilterMetrics()
    meter = FilterMeter(metrics, "qos", "egressproxy.io/QoSController:v1")
    entries = (LimitEntry("Bytes", 500.0, "Day", per=("Identity",), name="b"), LimitEntry("Concurrency", 2.0, name="c"))
    context = FilterContext(QoSControllerConfig(limits=entries), {}, "qos", "s", "s", meter=meter)
    made = quota(context)
    held = [ask(made, identity=who) for who in ("a/a", "b/b")]
    refused(made)
    for x in held:
        x.bytes_in, x.bytes_out = 400, 100
        made.complete(x)
    refused(made, identity="b/b")
    read = metrics.read()
    assert read["egress_limit_exchanges"].values == {
        ("qos", "b", "allowed"): 2,
        ("qos", "c", "denied"): 1,
        ("qos", "b", "denied"): 1,
    }
    assert read["egress_limit_amount"].values == {("qos", "b", "reserved"): 2, ("qos", "b", "settled"): 1000}


def test_what_is_left_is_explained_for_each_key_and_nothing_is_taken():
    made = limit(
        {"type": "Requests", "limit": 10, "unit": "Hour", "per": ("Identity",), "name": "h"},
        {"type": "Concurrency", "limit": 3, "per": ("Identity",), "name": "c"},
    )
    ask(made), ask(made)
    for _ in range(2):
        hour, concurrency = made.explain(exchange("GET", "https://a.example/"))
        assert (hour.name, hour.limit, round(hour.left), round(hour.reset_s)) == ("h", 10, 8, 720)
        assert hour.allows == "10 requests in an hour for each Identity"
        assert (concurrency.left, concurrency.allows) == (1, "3 requests at once for each Identity")
    assert made.explain(exchange("GET", "https://a.example/", identity="a/b"))[0].left == pytest.approx(10)


def built(**config):
    made = validated(QoSControllerConfig, json.dumps(config))
    return QOS_CONTROLLER.build(FilterContext(made, {}, "limit", "gateway a/gw", "EgressPolicy a/p", meter=METER))


def passed(limit, tries):
    count = 0
    for _ in range(tries):
        try:
            limit.request_headers(exchange("GET", "https://a.example/"))
            count += 1
        except LimitExceeded:
            pass
    return count


@pytest.mark.parametrize(
    ("field", "window"),
    [("requestsPerSecond", "a second"), ("requestsPerMinute", "a minute"), ("requestsPerHour", "an hour")],
)
def test_a_qos_controller_of_one_rate_is_a_rate_limit(field, window):
    limit = built(**{field: 3})
    assert isinstance(limit, RequestRateLimit)
    assert passed(limit, 9) == 3
    with pytest.raises(LimitExceeded) as caught:
        limit.backend_request(exchange("GET", "https://a.example/"))
    assert (caught.value.status, caught.value.reason) == (429, Reason.REQUEST_RATE)
    assert caught.value.message == f"more than 3 requests in {window}"


@pytest.mark.parametrize(
    "config",
    [
        {"requestsPerMinute": 5, "requestsPerHour": 3},
        {"requestsPerDay": 3},
        {"requestsPerMinute": 3, "per": ["Namespace"]},
        {"requestsPerMinute": 3, "rateLimitHeaders": "Always"},
        {"limits": [{"type": "Requests", "limit": 3, "window": 60}, {"type": "Concurrency", "limit": 90}]},
    ],
)
def test_everything_else_holds_together(config):
    limit = built(**config)
    assert isinstance(limit, Quota)
    assert passed(limit, 9) == 3


def test_the_short_forms_are_entries():
    config = validated(QoSControllerConfig, json.dumps({"requestsPerMonth": 9, "per": ["Header"], "header": "X-Team"}))
    (entry,) = config.entries
    assert entry == LimitEntry("Requests", 9.0, "Month", per=("Header",), header="X-Team", name="requests-month-header")


def test_limits_that_are_alike_have_numbers():
    alike = {"type": "Requests", "unit": "Minute"}
    config = validated(QoSControllerConfig, json.dumps({"limits": [{**alike, "limit": n} for n in (5, 6)]}))
    assert [entry.name for entry in config.entries] == ["requests-minute", "requests-minute-2"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "at least one limit"),
        ({"requestsPerMinute": 0}, "greater than or equal to 1"),
        ({"requestsPerMinutes": 5}, "did you mean requestsPerMinute?"),
        ({"per": ["Identity"], "limits": [{"type": "Requests", "limit": 1, "unit": "Day"}]}, "short forms"),
        ({"limits": [{"type": "Requests", "limit": 1}]}, "write `unit`"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "window": 3}]}, "not both"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "burst": 3}]}, "does not refill"),
        ({"limits": [{"type": "Requests", "limit": 0, "unit": "Day"}]}, "greater than 0"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "per": ["Header"]}]}, "names the field"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "per": ["Route", "Route"]}]}, "more than once"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "count": "Input"}]}, "`count` is for"),
        ({"limits": [{"type": "Concurrency", "limit": 1, "unit": "Day"}]}, "remove them"),
        ({"limits": [{"type": "Concurrency", "limit": 1.5}]}, "whole number"),
        ({"limits": [{"type": "Requests", "limit": 1, "unit": "Day", "name": "d"}] * 2}, "two limits are called d"),
    ],
)
def test_a_qos_controller_that_cannot_be_meant_is_refused(config, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        validated(QoSControllerConfig, json.dumps(config))
