import json

import pytest

from egressproxy.filters import Exchange
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead

ORIGIN = "https://app.example"
PREFLIGHT_VARY = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers"


def chain(phase="request-headers", **config):
    config = {"allowOrigins": [ORIGIN], **config}
    spec = ExtensionIR("CORS", "egressproxy.io/Cors:v1", phase, config=json.dumps(config), source="HTTPRoute a/r")
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange(method="GET", origin=ORIGIN, response=(), **lines):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    fields = Fields.of((name.replace("_", "-").encode(), value.encode()) for name, value in lines.items())
    if origin:
        fields.add(b"origin", origin.encode())
    x.request = RequestHead(method.encode(), b"/", fields)
    x.response = ResponseHead(200, b"OK", Fields.of((n.encode(), v.encode()) for n, v in response))
    return x


def preflight(origin=ORIGIN, method="PUT", headers="", **config):
    """The status and the fields of the answer to a preflight request."""
    lines = {"access-control-request-headers": headers} if headers else {}
    x = exchange("OPTIONS", origin, **{"access-control-request-method": method}, **lines)
    answer = run(chain(**config).request_headers, x)
    assert isinstance(answer, LocalResponse)
    assert answer.body == b""
    return answer.status, {name.decode().lower(): value.decode() for name, value in answer.fields}


def answered(origin=ORIGIN, response=(), **config):
    """The fields that an answer of the backend has in the end."""
    x = exchange("GET", origin, response)
    made = chain(**config)
    assert run(made.request_headers, x) is None
    assert run(made.response_headers, x) is None
    return [(name.decode(), value.decode()) for name, value in x.response.fields]


def test_a_preflight_request_is_answered_with_everything_that_is_configured():
    status, fields = preflight(
        headers="x-a",
        allowMethods=["GET", "OPTIONS"],
        allowHeaders=["x-a", "x-b"],
        exposeHeaders=["x-c", "x-d"],
        allowCredentials=True,
        maxAge=3600,
    )
    assert status == 200
    assert fields == {
        "access-control-allow-origin": ORIGIN,
        "access-control-allow-methods": "GET, OPTIONS",
        "access-control-allow-headers": "x-a, x-b",
        "access-control-expose-headers": "x-c, x-d",
        "access-control-allow-credentials": "true",
        "access-control-max-age": "3600",
        "vary": PREFLIGHT_VARY,
    }


def test_what_is_not_configured_is_not_said_and_max_age_is_5():
    assert preflight() == (
        200,
        {"access-control-allow-origin": ORIGIN, "access-control-max-age": "5", "vary": PREFLIGHT_VARY},
    )


@pytest.mark.parametrize("credentials", [True, False])
def test_where_everything_is_allowed_what_was_asked_is_echoed(credentials):
    status, fields = preflight(
        "http://any.example:81", "PUT", "x-a, X-B,x-c", allowOrigins=["*"], allowMethods=["*"], allowHeaders=["*"],
        allowCredentials=credentials,
    )  # fmt: skip
    assert status == 200
    assert fields["access-control-allow-origin"] == "http://any.example:81"
    assert fields["access-control-allow-methods"] == "PUT"
    assert fields["access-control-allow-headers"] == "x-a, X-B,x-c"
    assert fields.get("access-control-allow-credentials") == ("true" if credentials else None)


def test_what_is_no_list_of_names_is_not_echoed():
    _, fields = preflight(
        method="P U T", headers="x-a, (b)", allowMethods=["*"], allowHeaders=["*"], allowCredentials=True
    )
    assert "access-control-allow-methods" not in fields
    assert "access-control-allow-headers" not in fields
    assert "access-control-allow-headers" not in preflight(allowHeaders=["*"])[1]


def test_a_preflight_request_from_elsewhere_is_answered_without_any_permission():
    assert preflight("https://other.example", allowCredentials=True) == (200, {"vary": PREFLIGHT_VARY})
    assert preflight(allowOrigins=[]) == (200, {"vary": PREFLIGHT_VARY})


@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("OPTIONS", {}),
        ("OPTIONS", {"access-control-request-headers": "x-a"}),
        ("GET", {"access-control-request-method": "PUT"}),
    ],
)
def test_what_is_no_preflight_request_goes_to_the_backend(method, lines):
    made = chain()
    x = exchange(method, **lines)
    assert run(made.request_headers, x) is None
    assert run(made.response_headers, x) is None
    assert x.response.fields.get(b"access-control-allow-origin") == ORIGIN.encode()
    assert run(made.request_headers, exchange("OPTIONS", "", **{"access-control-request-method": "PUT"})) is None


@pytest.mark.parametrize(
    ("allowed", "origin", "is_allowed"),
    [
        ("https://www.foo.com", "https://www.foo.com", True),
        ("https://www.foo.com", "HTTPS://WWW.foo.com:443", True),
        ("https://WWW.foo.com:443", "https://www.foo.com", True),
        ("https://www.foo.com", "http://www.foo.com", False),
        ("https://www.foo.com", "https://www.foo.com:8443", False),
        ("https://www.foo.com", "https://www.foo.com.evil.example", False),
        ("http://www.foo.com:81", "http://www.foo.com:81", True),
        ("http://www.foo.com:80", "http://www.foo.com", True),
        ("https://*.bar.com", "https://www.bar.com", True),
        ("https://*.bar.com", "https://xpto.www.bar.com", True),
        ("https://*.bar.com", "https://bar.com", False),
        ("https://*.bar.com", "https://foobar.com", False),
        ("https://*.bar.com", "https://evil.example/.bar.com", False),
        ("https://*.bar.com", "https://evil.example@x.bar.com", False),
        ("https://*.bar.com", "https://a.bar.com.evil.example", False),
        ("https://*.bar.com", "https://axbar.com", False),
        ("https://*.bar.com", "http://a.bar.com", False),
        ("https://*.bar.com", "https://a.bar.com:8443", False),
        ("https://*.bar.com:8443", "https://a.bar.com:8443", True),
        ("https://*", "https://anybody.example", True),
        ("https://*", "http://anybody.example", False),
        ("http://[::1]:8080", "http://[::1]:8080", True),
        ("*", "http://[::1]:8080", True),
        ("*", "null", True),
        ("*", "what ever", False),
        ("*", "https://" + "a" * 300, False),
        ("https://www.foo.com", "null", False),
    ],
)
def test_an_origin_is_compared_whole(allowed, origin, is_allowed):
    status, fields = preflight(origin, allowOrigins=["https://first.example", allowed] if allowed != "*" else ["*"])
    assert status == 200
    assert fields.get("access-control-allow-origin") == (origin if is_allowed else None)


def test_two_origins_are_no_origin():
    x = exchange("OPTIONS", **{"access-control-request-method": "PUT"})
    x.request.fields.add(b"Origin", b"https://other.example")
    answer = run(chain(allowOrigins=["*"]).request_headers, x)
    assert answer == LocalResponse(200, ((b"Vary", PREFLIGHT_VARY.encode()),))


def test_an_answer_says_who_may_read_it_in_place_of_what_the_backend_said():
    theirs = [
        ("access-control-allow-origin", "*"), ("Access-Control-Allow-Credentials", "true"), ("x-a", "1"),
        ("access-control-expose-headers", "x"), ("access-control-allow-methods", "y"),
        ("access-control-allow-headers", "z"), ("access-control-max-age", "86400"),
    ]  # fmt: skip
    assert answered(response=theirs, exposeHeaders=["x-a"], allowCredentials=True) == [
        ("x-a", "1"),
        ("access-control-allow-origin", ORIGIN),
        ("access-control-allow-credentials", "true"),
        ("access-control-expose-headers", "x-a"),
        ("vary", "Origin"),
    ]
    assert answered(response=theirs) == [("x-a", "1"), ("access-control-allow-origin", ORIGIN), ("vary", "Origin")]
    for origin in ("", "https://other.example"):
        assert answered(origin, theirs, allowCredentials=True) == [("x-a", "1"), ("vary", "Origin")]


@pytest.mark.parametrize("vary", ["*", "Accept, origin", "ORIGIN"])
def test_vary_is_not_said_twice(vary):
    assert [name for name, _ in answered(response=[("Vary", vary)])].count("vary") == 1
    assert ("vary", "Origin") in answered(response=[("Vary", "Accept")])


def test_with_credentials_the_fields_to_read_are_listed_by_name():
    response = [("x-a", "1"), ("X-B", "2"), ("x-a", "3"), ("content-type", "a"), ("set-cookie", "c=d")]
    given = dict(answered(response=response, exposeHeaders=["*"], allowCredentials=True))
    assert given["access-control-expose-headers"] == "x-a, x-b"
    assert dict(answered(response=response, exposeHeaders=["*"]))["access-control-expose-headers"] == "*"
    none = dict(answered(exposeHeaders=["*"], allowCredentials=True))
    assert "access-control-expose-headers" not in none


def test_our_own_answer_to_a_preflight_request_stays_as_it_is():
    made = chain()
    x = exchange("OPTIONS", response=[("access-control-max-age", "5")], **{"access-control-request-method": "PUT"})
    run(made.response_headers, x)
    assert list(x.response.fields) == [(b"access-control-max-age", b"5")]


def test_on_a_backend_it_runs_in_the_phases_of_the_backend():
    made = chain("backend-request")
    assert made.request_headers is made.response_headers is None
    x = exchange()
    assert run(made.backend_request, x) is None
    assert run(made.backend_response, x) is None
    assert x.response.fields.get(b"access-control-allow-origin") == ORIGIN.encode()
    asked = exchange("OPTIONS", **{"access-control-request-method": "PUT"})
    assert isinstance(run(made.backend_request, asked), LocalResponse)


@pytest.mark.parametrize(
    "config",
    [
        {"allowOrigins": ["app.example"]},
        {"allowOrigins": ["https://a.example/path"]},
        {"allowOrigins": ["https://a b"]},
        {"allowOrigins": ["https://a.example:x"]},
        {"allowMethods": ["GET, PUT"]},
        {"allowHeaders": ["x-a\r\nevil: 1"]},
        {"maxAge": 0},
        {"origins": []},
    ],
)
def test_what_cannot_be_meant_is_refused(config):
    with pytest.raises(FilterBuildError, match="HTTPRoute a/r: filter CORS"):
        chain(**config)


@pytest.mark.parametrize(
    ("allowed", "origin", "is_allowed"),
    [
        ("https://*-*.b.example", "https://a-b-c.b.example", True),
        ("https://*-*.b.example", "https://a.b.example", False),
        ("https://*.*.b.example", "https://x.y.b.example.b.example", True),
        ("https://*.*.b.example", "https://x.b.example", False),
        ("https://*.b.*", "https://b.b.b.b", True),
        ("https://**.b.example", "https://xy.b.example", True),
        ("https://**.b.example", "https://x.b.example", False),
        ("https://*a*a", "https://aaaa", True),
        ("https://*a*a", "https://aaa", False),
    ],
)
def test_several_stars_each_stand_for_something(allowed, origin, is_allowed):
    assert ("access-control-allow-origin" in preflight(origin, allowOrigins=[allowed])[1]) is is_allowed


def test_an_origin_that_almost_matches_many_stars_costs_its_length():
    """With an expression that tries every way to divide it this takes years."""
    stars = "https://" + "*-" * 12 + "*.b.example"
    assert "access-control-allow-origin" not in preflight("https://" + "-" * 280 + "b", allowOrigins=[stars])[1]
