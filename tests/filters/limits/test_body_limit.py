import json

import pytest

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.limits.body_limit import BodyLimit, BodyLimitConfig
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, RequestHead


def context(config):
    return FilterContext(config, {}, "limit", "gateway a/gw", "EgressPolicy a/p")


def exchange(body=0):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"POST", b"/", Fields())
    x.request.body = body
    return x


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


def test_configs_that_limit_nothing_or_everything_are_refused():
    for config in ({"maxBytes": -1}, {}):
        with pytest.raises(ValueError):
            validated(BodyLimitConfig, json.dumps(config))
