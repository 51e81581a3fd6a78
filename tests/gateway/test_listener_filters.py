"""Filters of listeners run before a route is chosen, for every request, in their order (GEP-5224)."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.filters import Exchange, Filter
from tests.ai.mcp.test_filters import mcp, post
from tests.envoy.ext_authz.test_filter import auth
from tests.gateway.conftest import Start
from tests.gateway.kit import OK
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

Manifest = m.Manifest
ALLOWED = b"HTTP/1.1 200 OK\r\nx-team: red\r\nContent-Length: 0\r\n\r\n"
AUTH = m.backend("auth", "auth.example", 9000)


def pipeline(name: str, *processors: Manifest) -> Manifest:
    body = {"processors": [{**each, "name": f"p{number}"} for number, each in enumerate(processors)]}
    return m.manifest(f"{m.OURS}/v1alpha1", "PayloadProcessingPipeline", name, "agents", spec=body)


def ref(name: str) -> Manifest:
    target = {"group": m.OURS, "kind": "PayloadProcessingPipeline", "name": name}
    return {"name": name, "type": "ExtensionRef", "extensionRef": target}


def sets(value: str, name: str = "X-Team") -> Manifest:
    config = {"request": {"set": [{"name": name, "value": value}]}}
    return {"type": "egressproxy.io/HeaderPolicy:v1", "phase": "request-headers", "config": config}


def teams(*filters: Manifest, objects: tuple[Manifest, ...] = (), **listener: Any) -> list[Manifest]:
    """Routes by X-Team: red goes to a, blue to b; nothing else is served."""
    rules = [
        {**m.prefix_rule("/", backend), "matches": [{"headers": [{"name": "X-Team", "value": team}]}]}
        for team, backend in (("red", "a"), ("blue", "b"))
    ]
    gateway = m.gateway(m.http_listener(8080, httpFilters=list(filters), **listener))
    backends = [m.backend(each, f"{each}.example", 80) for each in "ab"]
    return [gateway, m.http_route("route", *rules), *backends, *objects]


def asks(talk: Conversation, path: bytes = b"/x", fields: bytes = b"") -> None:
    talk.client >> b"GET %s HTTP/1.1\r\nHost: app.example\r\n%s\r\n" % (path, fields)


def served_by(talk: Conversation, host: str) -> str:
    """The head that this backend gets, which answers."""
    talk.dialled(host, 80)
    head = talk.origin.take(rb"(?:GET|POST) .*?\r\n\r\n")[0]
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    return head.decode()


def test_what_an_authorization_server_adds_decides_about_the_route(converse_on: Start):
    talk = converse_on(teams(auth(), objects=(AUTH,)))
    asks(talk, fields=b"X-Team: blue\r\n")
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"GET /x .*?\r\n\r\n")
    talk.origin >> ALLOWED
    assert "x-team: red" in served_by(talk, "a.example").lower()


def test_a_denial_is_the_answer_whatever_route_there_is(converse_on: Start):
    talk = converse_on(teams(auth(), objects=(AUTH,)))
    asks(talk, b"/nowhere")
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"GET /nowhere .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\nno\n"
    talk.client.take(rb"HTTP/1.1 403 .*?\r\n\r\nno\n")
    assert (talk.record()["route"], talk.record()["reason"]) == ("-", "ext_auth_denied")


def test_what_no_route_matches_is_asked_about_and_then_not_found(converse: Start):
    talk = converse(teams(auth(), objects=(AUTH,)))
    asks(talk)
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"GET /x .*?\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert talk.client.answer()[0] == 404


@pytest.mark.parametrize(("order", "host"), [(("red", "blue"), "b.example"), (("blue", "red"), "a.example")])
def test_the_filters_run_in_the_order_of_the_list(converse: Start, order: tuple[str, str], host: str):
    objects = tuple(pipeline(team, sets(team)) for team in order)
    talk = converse(teams(*map(ref, order), objects=objects))
    asks(talk)
    assert f"x-team: {order[1]}" in served_by(talk, host).lower()


def test_each_filter_runs_once_and_sees_the_response(converse: Start):
    class Counts(Filter):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def request_headers(self, x: Exchange) -> None:
            self.seen.append("request")
            x.request.fields.set(b"x-team", b"red")

        def response_headers(self, x: Exchange) -> None:
            self.seen.append("response")

    counts = Counts()
    scripted = scripted_filter("counts")
    talk = converse(teams(ref("p"), objects=(pipeline("p", scripted),)), filters={"counts": counts})
    asks(talk)
    served_by(talk, "a.example")
    assert counts.seen == ["request", "response"]


def test_the_body_that_the_server_was_shown_goes_to_the_backend(converse_on: Start):
    talk = converse_on(teams(auth(forward=10), objects=(AUTH,)))
    talk.client >> b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 5\r\n\r\nhello"
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb".*?\r\n\r\nhello")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /x .*?\r\n\r\nhello")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")


def test_filters_of_rules_still_see_the_body_that_the_server_was_shown(converse_on: Start):
    gateway = m.gateway(m.http_listener(8080, httpFilters=[auth(forward=1000)]))
    talk = converse_on([gateway, m.policy(), AUTH, mcp(), m.http_route("route", m.prefix_rule("/", "a"))])
    talk.client >> post()
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n\{.*\}")
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin.take(rb"(?s)POST .*?\r\n\r\n\{.*\}")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*?\r\n\r\nhi")
    assert any("mcp" in field for field in talk.record())


def test_each_listener_of_a_port_has_its_own(converse: Start):
    """Host chooses the listener, and no request gets to the routes of one around its filters."""
    one, two = (
        m.http_listener(8080, name, hostname=f"{name}.example", httpFilters=[ref(team)])
        for name, team in (("one", "red"), ("two", "blue"))
    )
    objects = teams(objects=(pipeline("red", sets("red")), pipeline("blue", sets("blue"))))
    talk = converse([m.gateway(one, two), *objects[1:]])
    for host, backend in (("one", "a.example"), ("two", "b.example")):
        talk.client >> b"GET / HTTP/1.1\r\nHost: %s.example\r\nX-Team: none\r\n\r\n" % host.encode()
        served_by(talk, backend)


def test_a_filter_that_answers_ends_the_request(converse: Start):
    config = {"statusCode": 418, "body": "no"}
    says = {"type": "egressproxy.io/DirectResponse:v1", "phase": "request-headers", "config": config}
    talk = converse(teams(ref("p"), objects=(pipeline("p", says),)))
    asks(talk, fields=b"X-Team: red\r\n")
    talk.client.take(rb"HTTP/1.1 418 .*?\r\n\r\nno")
    assert talk.dialer.dials == []
