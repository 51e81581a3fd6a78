import json
import re

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.limits.qos_controller import QOS_CONTROLLER, QoSControllerConfig
from egressproxy.filters.limits.request_rate import RequestRateLimit, RequestRateLimitConfig
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead


def context(config):
    return FilterContext(config, {}, "limit", "gateway a/gw", "EgressPolicy a/p")


def exchange():
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"POST", b"/", Fields())
    return x


def passed(limit, tries):
    count = 0
    for _ in range(tries):
        try:
            limit.request_headers(exchange())
            count += 1
        except LimitExceeded:
            pass
    return count


@pytest.mark.parametrize(
    ("field", "window"), [("requestsPerSecond", 1), ("requestsPerMinute", 60), ("requestsPerHour", 3600)]
)
def test_a_qos_controller_is_a_rate_limit(field, window):
    config = validated(QoSControllerConfig, json.dumps({field: 3}))
    assert config.rates == [RequestRateLimitConfig(limit=3, window=window)]
    limit = QOS_CONTROLLER.build(context(config))
    assert isinstance(limit, RequestRateLimit)
    assert passed(limit, 9) == 3
    with pytest.raises(LimitExceeded) as caught:
        limit.backend_request(exchange())
    assert (caught.value.status, caught.value.reason) == (429, Reason.REQUEST_RATE)
    assert caught.value.message == f"more than 3 requests in {window} s"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "exactly one of"),
        ({"requestsPerMinute": 1, "requestsPerHour": 9}, "write two extensions"),
        ({"requestsPerMinute": 0}, "greater than or equal to 1"),
        ({"requestsPerMinutes": 5}, "did you mean requestsPerMinute?"),
    ],
)
def test_a_qos_controller_that_cannot_be_meant_is_refused(config, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        validated(QoSControllerConfig, json.dumps(config))
