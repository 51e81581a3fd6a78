import json

import pytest

from egressproxy.filters import Exchange
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import compile_chain, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead


def chain(phase="request-headers", **config):
    spec = ExtensionIR("h", "egressproxy.io/HeaderPolicy:v1", phase, config=json.dumps(config), source="HTTPRoute a/r")
    return compile_chain([spec], FilterInstances(Catalog()).place)


def exchange(*lines):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"GET", b"/", Fields.of(lines))
    x.response = ResponseHead(200, b"OK", Fields.of(lines))
    return x


def pair(name, value):
    return {"name": name, "value": value}


def test_set_replaces_add_appends_and_remove_removes():
    edits = {"set": [pair("My-Set", "new")], "add": [pair("my-add", "b,c")], "remove": ["MY-GONE"]}
    x = exchange((b"my-set", b"1"), (b"My-Gone", b"x"), (b"MY-SET", b"2"), (b"My-Add", b"a"), (b"other", b"o"))
    run(chain(request=edits).request_headers, x)
    assert list(x.request.fields) == [(b"my-add", b"a"), (b"other", b"o"), (b"my-set", b"new"), (b"my-add", b"b,c")]
    assert len(x.response.fields) == 5


def test_each_part_runs_in_the_phase_of_its_direction():
    part = {"add": [pair("x-a", "1")]}
    both = chain(request=part, response=part)
    assert both.request_headers
    assert both.response_headers
    assert both.backend_response is None
    backend = chain("backend-request", request=part, response=part)
    assert backend.backend_request
    assert backend.backend_response
    assert backend.request_headers is backend.response_headers is None
    assert chain(request=part).response_headers is None
    assert chain(response=part).request_headers is None
    late = chain("response-headers", response=part)
    x = exchange()
    run(late.response_headers, x)
    assert (len(x.request.fields), len(x.response.fields)) == (0, 1)


def test_backend_edits_change_what_goes_to_and_comes_from_the_backend():
    made = chain("backend-request", request={"remove": ["x-a"]}, response={"set": [pair("x-a", "new")]})
    x = exchange((b"x-a", b"1"))
    run(made.backend_request, x)
    run(made.backend_response, x)
    assert (list(x.request.fields), list(x.response.fields)) == ([], [(b"x-a", b"new")])


def test_a_policy_without_edits_runs_nowhere():
    for phase in ("request-headers", "response-headers"):
        made = chain(phase)
        assert made.request_headers is made.response_headers is None


def test_request_edits_cannot_be_placed_in_a_response_phase():
    with pytest.raises(FilterBuildError, match=r"HTTPRoute a/r: filter h .*cannot run in phase response-headers"):
        chain("response-headers", request={"remove": ["x"]})


@pytest.mark.parametrize(
    "name",
    ["Host", "content-length", "Transfer-Encoding", "connection", "upgrade", "te", "trailer", "via", "keep-alive",
     "proxy-authorization", "Proxy-Connection", "Expect"],
)  # fmt: skip
def test_fields_that_the_gateway_writes_are_refused(name):
    for edits in ({"set": [pair(name, "x")]}, {"add": [pair(name, "x")]}, {"remove": [name]}):
        with pytest.raises(FilterBuildError, match="cannot be edited"):
            chain(request=edits)


@pytest.mark.parametrize(
    "edits",
    [
        {"set": [pair("a b", "x")]},
        {"set": [pair("a", "x\r\nEvil: y")]},
        {"add": [pair("a", " x")]},
        {"remove": ["a:b"]},
        {"set": [pair("a", "1")], "remove": ["A"]},
        {"set": [pair("a", "1"), pair("A", "2")]},
        {"Set": []},
    ],
)
def test_what_no_field_can_be_is_refused(edits):
    with pytest.raises(FilterBuildError):
        chain(request=edits)


#: What origins behind CGI and WSGI read as X-Tenant (RFC 3875 section 4.1.18: HTTP_X_TENANT).
TWINS = (b"X_Tenant", b"x_tenant", b"X-TENANT", b"X_TENANT")


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("edits", [{"set": [pair("X-Tenant", "ours")]}, {"remove": ["X-Tenant"]}])
def test_set_and_remove_take_out_every_spelling_of_the_name(edits, twin):
    x = exchange((twin, b"theirs"), (b"x-tenant", b"theirs"), (b"x-tenants", b"another"))
    run(chain(request=edits).request_headers, x)
    assert [value for _, value in x.request.fields if value != b"another"] == [b"ours"] * ("set" in edits)
    run(chain(response=edits).response_headers, x)
    assert [value for _, value in x.response.fields if value != b"another"] == [b"ours"] * ("set" in edits)


def test_a_name_with_underscores_takes_out_the_one_with_hyphens():
    x = exchange((b"X-Tenant", b"theirs"), (b"x_tenant", b"theirs"))
    run(chain(request={"set": [pair("X_Tenant", "ours")]}).request_headers, x)
    assert list(x.request.fields) == [(b"x_tenant", b"ours")]


@pytest.mark.parametrize("name", ["Content_Length", "transfer_encoding", "Proxy_Authorization", "Keep_Alive"])
def test_a_field_of_the_gateway_is_one_in_every_spelling(name):
    with pytest.raises(FilterBuildError, match="written by the gateway itself"):
        chain(request={"set": [pair(name, "5")]})
