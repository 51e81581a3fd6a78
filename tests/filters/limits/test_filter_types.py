import json

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.limits.filter_types import (
    BodyLimit,
    BodyLimitConfig,
    ConcurrencyLimit,
    ConcurrencyLimitConfig,
    RequestRateLimit,
    RequestRateLimitConfig,
)
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, RequestHead


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def context(config):
    return FilterContext(config, {}, "limit", "gateway a/gw", "EgressPolicy a/p")


def exchange(body=0):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"POST", b"/", Fields())
    x.request.body = body
    return x


def rate(**config):
    clock = Clock()
    return RequestRateLimit(context(RequestRateLimitConfig(**config)), clock), clock


def passed(limit, tries):
    count = 0
    for _ in range(tries):
        try:
            limit.request_headers(exchange())
            count += 1
        except LimitExceeded:
            pass
    return count


def test_a_bucket_holds_its_burst_and_fills_with_time():
    limit, clock = rate(limit=10, window=5, burst=4)
    assert passed(limit, 9) == 4
    clock.now += 0.5
    assert passed(limit, 9) == 1
    clock.now += 1000
    assert passed(limit, 9) == 4


def test_without_a_burst_as_many_as_the_limit_pass_at_once():
    assert passed(rate(limit=3, window=60)[0], 9) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"limit": 6, "window": 10, "burst": 3}, "more than 6 requests in 10 s, or more than 3 at once"),
        ({"limit": 6, "window": 10, "burst": 9}, "more than 6 requests in 10 s, after 9 at once"),
        ({"limit": 6, "window": 10}, "more than 6 requests in 10 s"),
        ({"limit": 1, "window": 0.5}, "more than 1 request in 0.5 s"),
    ],
)
def test_a_refusal_says_what_was_exceeded(config, message):
    limit, _ = rate(**config)
    passed(limit, 10)
    with pytest.raises(LimitExceeded) as caught:
        limit.request_headers(exchange())
    assert caught.value.message == message


def test_a_refusal_says_when_to_come_back():
    limit, clock = rate(limit=1, window=30)
    limit.request_headers(exchange())
    clock.now += 10
    with pytest.raises(LimitExceeded) as caught:
        limit.request_headers(exchange())
    error = caught.value
    assert (error.status, error.reason, error.retry_after_s) == (429, Reason.REQUEST_RATE, 20)
    assert error.rule == "EgressPolicy a/p"
    assert error.fields == ((b"RateLimit-Policy", b'"limit";q=1;w=30'), (b"RateLimit", b'"limit";r=0;t=20'))
    clock.now += error.retry_after_s
    limit.request_headers(exchange())


def test_attempts_at_a_backend_count_as_requests_do():
    limit, _ = rate(limit=1, window=60)
    limit.backend_request(exchange())
    with pytest.raises(LimitExceeded):
        limit.backend_request(exchange())


def test_refused_requests_do_not_use_the_bucket_up():
    limit, clock = rate(limit=1, window=1)
    assert passed(limit, 100) == 1
    clock.now += 1.0
    assert passed(limit, 1) == 1


def test_what_is_left_is_explained_and_nothing_is_taken():
    limit, clock = rate(limit=10, window=5, burst=4)
    assert passed(limit, 3) == 3
    for _ in range(2):
        (state,) = limit.explain(exchange())
        assert (state.limit, round(state.left, 3), state.reset_s) == (4, 1, 1.5)
        assert state.allows == "10 requests in 5 s, or more than 4 at once"
    clock.now += 10
    assert limit.explain(exchange())[0].left == 4


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


def test_a_declared_body_beyond_the_limit_is_refused_and_the_connection_closed():
    limit = BodyLimit(context(BodyLimitConfig(max_bytes=10)))
    limit.request_headers(exchange(10))
    with pytest.raises(LimitExceeded) as caught:
        limit.request_headers(exchange(11))
    assert (caught.value.status, caught.value.reason, caught.value.close) == (413, Reason.BODY_TOO_LARGE, True)


def test_the_smallest_of_several_body_limits_holds_for_chunked_bodies():
    x = exchange(CHUNKED)
    for size, now in ((20, 20), (10, 10), (30, 10)):
        BodyLimit(context(BodyLimitConfig(max_bytes=size))).request_headers(x)
        assert x.max_body_bytes == now


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (RequestRateLimitConfig, {"limit": 0}),
        (RequestRateLimitConfig, {"limit": 1, "window": 0}),
        (RequestRateLimitConfig, {"limit": 1, "window": float("inf")}),
        (ConcurrencyLimitConfig, {"limit": 0}),
        (ConcurrencyLimitConfig, {}),
        (BodyLimitConfig, {"maxBytes": -1}),
        (BodyLimitConfig, {}),
    ],
)
def test_configs_that_limit_nothing_or_everything_are_refused(model, config):
    with pytest.raises(ValueError):
        validated(model, json.dumps(config))
