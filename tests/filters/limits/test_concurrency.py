import json

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.limits.concurrency import ConcurrencyLimit, ConcurrencyLimitConfig
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead


def context(config):
    return FilterContext(config, {}, "limit", "gateway a/gw", "EgressPolicy a/p")


def exchange():
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"POST", b"/", Fields())
    return x


def test_exchanges_in_progress_are_counted_once_and_released_once():
    limit = ConcurrencyLimit(context(ConcurrencyLimitConfig(limit=2)))
    one, two, three = exchange(), exchange(), exchange()
    limit.request_headers(one)
    limit.backend_request(two)
    limit.backend_request(two)  # another attempt
    assert limit.in_progress == 2
    with pytest.raises(LimitExceeded) as caught:
        limit.request_headers(three)
    assert (caught.value.status, caught.value.reason, caught.value.retry_after_s) == (503, Reason.CONCURRENCY, 1)
    limit.complete(three)
    assert limit.in_progress == 2
    limit.complete(two)
    limit.complete(two)
    assert limit.in_progress == 1
    limit.request_headers(three)


def test_two_limits_in_one_exchange_do_not_take_each_other_for_themselves():
    first, second = (ConcurrencyLimit(context(ConcurrencyLimitConfig(limit=1))) for _ in range(2))
    x = exchange()
    first.request_headers(x)
    second.request_headers(x)
    assert first.in_progress == second.in_progress == 1
    first.complete(x)
    second.complete(x)
    assert first.in_progress == second.in_progress == 0


def test_configs_that_limit_nothing_or_everything_are_refused():
    for config in ({"limit": 0}, {}):
        with pytest.raises(ValueError):
            validated(ConcurrencyLimitConfig, json.dumps(config))
