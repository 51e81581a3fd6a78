"""What needs an extension of a type that nobody knows is closed, by whatever way one comes to it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.kit import ESTABLISHED, OK, OK_PASSED, connect, forward, reverse
from tests.operators.explain.test_explain import ask
from tests.support import manifests as m
from tests.support.manifests import Manifest

SCAN = {"name": "scan", "type": "vendor.example/Scan:v1", "config": {"level": 3}}
OPEN = {**SCAN, "failOpen": True}
GET = b"GET / HTTP/1.1\r\nHost: front.example\r\n\r\n"
SENT = b"GET / HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"
LABEL = "extension scan (vendor.example/Scan:v1)"
TO = {"group": "egressproxy.io", "kind": "Backend"}


def to_backend(*extensions: Manifest, **sections: Any) -> list[Manifest]:
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(**sections),
        m.backend("a", "a.example", 80, extensions=list(extensions)),
        m.http_route("route", m.prefix_rule("/", "a")),
    ]


@pytest.mark.parametrize(
    "objects", [to_backend(SCAN), to_backend(extensions=[SCAN])], ids=["on the Backend", "in a policy of the Gateway"]
)
def test_a_request_is_answered_with_an_error_that_names_it(converse: Start, objects: list[Manifest]):
    talk = converse(objects)
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["rule"]) == (500, "unknown_extension", "HTTPRoute agents/route")
    assert error["message"] == f"route agents/route needs the {LABEL}, which this gateway does not have"
    record = talk.record()
    assert (record["reason"], record["status"]) == ("unknown_extension", 500)
    assert LABEL in record["detail"]
    talk.no_dial()


@pytest.mark.parametrize("objects", [to_backend(OPEN), to_backend(extensions=[OPEN])])
def test_with_fail_open_requests_go_on_without_it(converse: Start, objects: list[Manifest]):
    talk = converse(objects)
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << SENT
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("where", ["TLSRoute's Backend", "policy"])
def test_a_tunnel_is_refused(converse: Start, where: str):
    own = {"extensions": [SCAN]}
    if where == "policy":
        talk = converse(forward(**own))
    else:
        backend = m.backend("a", "a.example", 443, protocol="TCP", **own)
        talk = converse(forward(backend, m.tls_route("t", "a", hostnames=["a.example"])))
    talk.client >> connect("a.example:443")
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "unknown_extension")
    assert LABEL in error["message"]
    talk.no_dial()


def test_a_tunnel_opens_without_it_where_it_may_fail_open(converse: Start):
    talk = converse(forward(extensions=[OPEN]))
    talk.client >> connect("a.example:22")
    talk.dialled("a.example", 22)
    talk.client << ESTABLISHED


def test_a_stream_is_closed(converse: Start):
    objects = [
        m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
        m.policy(),
        m.backend("a", "a.example", 443, protocol="TCP", extensions=[SCAN]),
        m.tls_route("t", "a", hostnames=["a.example"]),
    ]
    talk = converse(objects)
    talk.client >> client_hello("a.example")
    talk.client.is_closed()
    assert talk.record()["reason"] == "unknown_extension"
    talk.no_dial()


def test_nothing_is_mirrored_and_the_rule_is_served(converse: Start):
    filters = [{"type": "RequestMirror", "requestMirror": {"backendRef": {**TO, "name": "b"}}}]
    copy = m.backend("b", "b.example", 80, extensions=[SCAN])
    talk = converse(reverse(m.prefix_rule("/", "a", filters=filters), objects=(copy,)))
    talk.client >> GET
    talk.dialled("a.example", 80)
    talk.origin << SENT
    talk.origin >> OK
    talk.client << OK_PASSED
    talk.no_dial()


def test_no_authorization_server_is_asked_and_nothing_passes(converse: Start):
    auth = {"protocol": "HTTP", "http": {}, "backendRef": {**TO, "name": "b"}}
    rule = m.prefix_rule("/", "a", filters=[{"type": "ExternalAuth", "externalAuth": auth}])
    talk = converse(reverse(rule, objects=(m.backend("b", "b.example", 80, extensions=[SCAN]),)))
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "unknown_extension")
    assert LABEL in error["message"]
    talk.no_dial()


def test_nobody_goes_through_a_parent_that_has_it(converse: Start):
    parent = m.backend("parent", "parent.example", 3128, extensions=[SCAN])
    child = m.backend("a", "a.example", 80, parent={"name": "parent"})
    talk = converse(
        [m.gateway(m.http_listener(8080)), m.policy(), parent, child, m.http_route("r", m.prefix_rule("/", "a"))]
    )
    talk.client >> GET
    assert talk.client.answer()[0] == 500
    talk.no_dial()


def test_an_attempt_on_another_backend_of_the_rule_is_none_on_it(converse: Start, monkeypatch: pytest.MonkeyPatch):
    """A rule with retries chooses anew: the closed one answers for its share, and is never dialled."""
    rule = m.prefix_rule("/", "a", retry={"attempts": 3, "codes": [503]})
    monkeypatch.setattr("egressproxy.gateway.route.random.random", lambda: 0.9)
    rule["backendRefs"] = [{**TO, "name": "a"}, {**TO, "name": "b"}]
    talk = converse(reverse(rule, objects=(m.backend("b", "b.example", 80, extensions=[SCAN]),)))
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "unknown_extension")
    talk.no_dial()


def test_explain_says_what_a_request_would_meet():
    found = ask(to_backend(SCAN), "GET", "http://front.example:8080/")
    assert (found["verdict"], found["error"]["reason"]) == ("failed", "unknown_extension")
    assert LABEL in found["error"]["message"]
    found = ask(to_backend(OPEN), "GET", "http://front.example:8080/", dns="0")
    (skipped,) = found["backends"][0]["filters"]
    assert (skipped["name"], skipped["type"]) == ("scan", "vendor.example/Scan:v1")
    assert skipped["skipped"] == "the type is not known, and failOpen is set"
