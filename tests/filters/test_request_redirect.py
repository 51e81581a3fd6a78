import json

import pytest

from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.request_redirect import RequestRedirectConfig, RequestRedirectFilter
from egressproxy.filters.validation import validated
from egressproxy.model.authority import parse_authority
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead


def answer(host=b"a.test:8080", target=b"/old/x?q=1", came_by=b"http", **config):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"GET", target, Fields())
    x.authority = parse_authority(host, 80) if host else None
    x.scheme = came_by
    x.path_prefix = b"/old"
    return RequestRedirectFilter(
        FilterContext(validated(RequestRedirectConfig, json.dumps(config)), {}, "r", "-", "-")
    ).request_headers(x)


def location(**config):
    return dict(answer(**config).fields)[b"location"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hostname": "b.test", "listenerPort": 80}, b"http://b.test/old/x?q=1"),
        ({"hostname": "b.test", "listenerPort": 8080}, b"http://b.test:8080/old/x?q=1"),
        ({"scheme": "https", "listenerPort": 8080}, b"https://a.test/old/x?q=1"),
        ({"scheme": "https", "port": 8443, "listenerPort": 80}, b"https://a.test:8443/old/x?q=1"),
        ({"port": 80, "listenerPort": 8080}, b"http://a.test/old/x?q=1"),
        ({"port": 443, "listenerPort": 80}, b"http://a.test:443/old/x?q=1"),
        ({"listenerScheme": "https", "listenerPort": 443}, b"https://a.test/old/x?q=1"),
        ({}, b"http://a.test:8080/old/x?q=1"),
        ({"path": {"type": "ReplacePrefixMatch", "value": "/new"}, "port": 80}, b"http://a.test/new/x?q=1"),
        ({"path": {"type": "ReplaceFullPath", "value": "/"}, "port": 80}, b"http://a.test/?q=1"),
        ({"host": b"[2001:db8::1]:80", "listenerPort": 80}, b"http://[2001:db8::1]/old/x?q=1"),
        ({"host": b"", "listenerPort": 80}, b"/old/x?q=1"),
        ({"host": b"", "target": b"//evil.test/x"}, b"/evil.test/x"),
        ({"host": b"", "hostname": "b.test"}, b"http://b.test/old/x?q=1"),
    ],
)
def test_the_location_follows_the_rules_of_scheme_host_and_port(config, expected):
    assert location(**config) == expected


def test_a_redirect_of_a_backend_reference_answers_the_same():
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"GET", b"/x", Fields())
    config = RequestRedirectConfig(hostname="b.test")
    redirect = RequestRedirectFilter(FilterContext(config, {}, "r", "-", "-"))
    assert redirect.backend_request(x) == redirect.request_headers(x)


def test_the_status_is_302_unless_another_is_given():
    assert answer().status == 302
    assert answer(statusCode=308).status == 308
    with pytest.raises(ValueError):
        answer(statusCode=200)
