import json
import re

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import FilterContext
from egressproxy.filters.limits.qos_config import LimitEntry, QoSControllerConfig
from egressproxy.filters.limits.qos_controller import QOS_CONTROLLER
from egressproxy.filters.limits.quota import Quota
from egressproxy.filters.limits.request_rate import RequestRateLimit
from egressproxy.filters.testing import exchange
from egressproxy.filters.validation import validated
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

METER = FilterMeter(FilterMetrics(), "qos", "egressproxy.io/QoSController:v1")


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
