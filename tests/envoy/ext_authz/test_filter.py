"""A server is asked whether requests may go on: the HTTP way, on fakes and on real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.envoy.ext_authz.filter import denial, is_ours
from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from tests.gateway.conftest import Start
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import OK, OK_PASSED, STRICT, ejected, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.manifests import Manifest

GET = b"GET /x?y=1 HTTP/1.1\r\nHost: app.example\r\n\r\n"
ASKED = b"GET /x?y=1 HTTP/1.1\r\nHost: app.example\r\nVia: 1.1 gw\r\n\r\n"
ALLOWED = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
FORWARDED = b"GET /x?y=1 HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\n\r\n"


def auth(**more: Any) -> Manifest:
    """The filter; `forwardBody` stands beside `http`, whatever else is given in it."""
    written: Manifest = {"protocol": "HTTP", "backendRef": {"group": m.OURS, "kind": "Backend", "name": "auth"}}
    if "forward" in more:
        written["forwardBody"] = {"maxSize": more.pop("forward")}
    return {"type": "ExternalAuth", "externalAuth": {**written, "http": more}}


def guarded(*filters: Manifest, rule: Manifest | None = None, server: Manifest | None = None, **sections: Any) -> Any:
    """A route to `a` behind these filters, and the authorization server `auth` (auth.example:9000)."""
    made = {**m.prefix_rule("/", "a"), "filters": list(filters or (auth(),)), **(rule or {})}
    objects = (server or m.backend("auth", "auth.example", 9000),)
    return reverse(made, objects=objects, **sections)


def asked(talk: Conversation) -> None:
    talk.dialled("auth.example", 9000)


# --- 200 -----------------------------------------------------------------------------------------------------------
def test_a_request_goes_on_when_the_server_says_200(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED
    assert (talk.record()["reason"], talk.record()["backend"]) == ("-", "agents/a")
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "allowed"): 1}


def test_a_parent_is_asked_for_the_server_and_for_nothing_that_a_client_names(converse: Start):
    server = m.backend("auth", "auth.example", 9000, parent={"name": "parent"})
    rule = {**m.prefix_rule("/", "a"), "filters": [auth()]}
    talk = converse(reverse(rule, objects=(server, m.backend("parent", "parent.example", 3128))))
    talk.client >> GET.replace(b"app.example", b"169.254.169.254")
    talk.dialled("parent.example", 3128)
    talk.origin << b"GET http://auth.example:9000/x?y=1 HTTP/1.1\r\nHost: auth.example:9000\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("is_let_in", [True, False])
def test_a_parent_is_shown_credentials_for_the_server_and_a_407_of_it_lets_nobody_pass(
    converse: Start, is_let_in: bool
):
    login = m.secret("login", {"username": "robot", "password": "word"})
    parent = {"name": "parent", "credentialsRef": {"name": "login"}, "allowPlaintext": True}
    server = m.backend("auth", "auth.example", 9000, parent=parent)
    rule = {**m.prefix_rule("/", "a"), "filters": [auth()]}
    talk = converse(reverse(rule, objects=(server, m.backend("parent", "parent.example", 3128), login)))
    talk.client >> GET
    talk.dialled("parent.example", 3128)
    asked = talk.origin.take(rb"GET http://auth.example:9000/x.*?\r\n\r\n")[0]
    assert asked.count(b"Proxy-Authorization: Basic cm9ib3Q6d29yZA==\r\n") == 1
    if is_let_in:
        talk.origin >> ALLOWED
        talk.dialled("a.example", 80)
        assert b"Proxy-Authorization" not in talk.origin.take(rb"GET /x.*?\r\n\r\n")[0]
        talk.origin >> OK
        talk.client << OK_PASSED
    else:
        talk.origin >> b"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n"
        status, _, fields, error = talk.client.answer()
        assert (status, error["reason"]) == (502, "ext_auth_error")
        assert "Proxy-Authenticate" not in fields
        assert "does not accept the credentials" in talk.record()["detail"]


def test_the_connection_to_the_server_is_used_again_and_replaced_when_it_died(converse: Start):
    talk = converse(guarded())
    origins = []
    for _ in range(2):
        talk.client >> GET
        if not origins:
            asked(talk)
            origins.append(talk.origin)
        talk.origin = origins[0]
        talk.origin << ASKED
        talk.origin >> ALLOWED
        if len(origins) == 1:
            talk.dialled("a.example", 80)
            origins.append(talk.origin)
        talk.origin = origins[1]
        talk.origin << FORWARDED
        talk.origin >> OK
        talk.client << OK_PASSED
    talk.client >> GET
    origins[0] << ASKED
    origins[0].leaves()
    asked(talk)
    talk.origin << ASKED
    talk.origin >> ALLOWED
    origins[1] << FORWARDED
    origins[1] >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize(("method", "is_reused"), [(b"POST", True), (b"DELETE", False)])
def test_a_question_with_a_body_that_means_nothing_is_the_last_on_its_connection(
    converse: Start, method: bytes, is_reused: bool
):
    talk = converse(guarded(auth(forward=10)))
    talk.client >> method + b" / HTTP/1.1\r\nHost: app.example\r\nContent-Length: 2\r\n\r\nhi"
    asked(talk)
    server = talk.origin.take(method + rb" / .*?\r\n\r\nhi") and talk.origin
    server >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin.take(method + rb" / .*?\r\n\r\nhi")
    talk.origin >> OK
    talk.client << OK_PASSED
    assert server.is_gone is not is_reused


def test_the_server_sees_authorization_and_the_allowed_fields_alone(converse: Start):
    talk = converse(guarded(auth(allowedHeaders=["X-Team", "Cookie"], path="/check/")))
    talk.client >> (
        b"POST /x HTTP/1.1\r\nHost: app.example\r\nAccept: */*\r\ncookie: a=1\r\nX-TEAM: red\r\nx-team: blue\r\n"
        b"Authorization: Basic eDp5\r\nContent-Length: 2\r\n\r\nhi"
    )
    asked(talk)
    talk.origin << (
        b"POST /check/x HTTP/1.1\r\nHost: app.example\r\nauthorization: Basic eDp5\r\nx-team: red\r\nx-team: blue\r\n"
        b"cookie: a=1\r\nVia: 1.1 gw\r\nContent-Length: 0\r\n\r\n"
    )
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /x HTTP/1.1\r\nHost: a.example\r\nAccept: \*/\*\r\n.*\r\n\r\nhi")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_what_the_server_says_replaces_what_the_client_has_forged(converse: Start):
    talk = converse(guarded(auth(allowedResponseHeaders=["X-User-Id", "X-Role"])))
    talk.client >> (
        b"GET / HTTP/1.1\r\nHost: app.example\r\nx-user-id: 1\r\nX_User_Id: 1\r\nx-role: admin\r\nAccept: */*\r\n\r\n"
    )
    asked(talk)
    talk.origin.take(rb".*\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nX-User-Id: 42\r\nX-User-Id: 43\r\nX-Other: no\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << (
        b"GET / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\nx-user-id: 42\r\nx-user-id: 43\r\nVia: 1.1 gw\r\n\r\n"
    )
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_field_that_the_server_alone_may_set_does_not_come_as_a_trailer_either(converse: Start):
    """Some origins read trailers as fields."""
    talk = converse(guarded(auth(allowedResponseHeaders=["X-User-Id"])))
    talk.client >> (
        b"POST / HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nhi\r\n0\r\nX-User-Id: 1\r\n\r\n"
    )
    asked(talk)
    talk.origin.take(rb".*\r\n\r\n")
    talk.origin >> b"HTTP/1.1 200 OK\r\nX-User-Id: 42\r\nContent-Length: 0\r\n\r\n"
    talk.dialled("a.example", 80)
    talk.origin << (
        b"POST / HTTP/1.1\r\nHost: a.example\r\nx-user-id: 42\r\nVia: 1.1 gw\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nhi\r\n0\r\n\r\n"
    )
    talk.origin >> OK
    talk.client << OK_PASSED


def test_an_empty_list_copies_everything_but_what_belongs_to_the_answer_itself(converse: Start):
    talk = converse(guarded(auth(allowedResponseHeaders=None)))
    talk.client >> b"GET / HTTP/1.1\r\nHost: app.example\r\nx-user-id: 1\r\n\r\n"
    asked(talk)
    talk.origin.take(rb".*\r\n\r\n")
    talk.origin >> (
        b"HTTP/1.1 200 OK\r\nX-User-Id: 42\r\nHost: evil.example\r\nContent-Type: text/plain\r\nServer: auth\r\n"
        b"Date: Sat, 21 Nov 2026 00:00:00 GMT\r\nSet-Cookie: a=1\r\nContent-Length: 2\r\n\r\nok"
    )
    talk.dialled("a.example", 80)
    talk.origin << b"GET / HTTP/1.1\r\nHost: a.example\r\nx-user-id: 42\r\nVia: 1.1 gw\r\n\r\n"
    talk.origin >> OK
    talk.client << OK_PASSED


def test_the_server_judges_what_was_asked_for_and_not_what_is_made_of_it(converse: Start):
    rewrite = {
        "type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/in"}},
    }
    talk = converse(guarded(rewrite, auth()))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED.replace(b"/x", b"/in/x")
    talk.origin >> OK
    talk.client << OK_PASSED


# --- anything else -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [b"403 Forbidden", b"401 Unauthorized", b"302 Found", b"201 Created"])
def test_any_other_status_is_the_answer_with_its_fields_and_its_body(converse: Start, status: bytes):
    talk = converse(guarded())
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> b"HTTP/1.1 %b\r\nX-Auth-Error: no\r\nLocation: /login\r\nContent-Length: 6\r\n\r\ndenied" % status
    talk.client << (b"HTTP/1.1 %b\r\nx-auth-error: no\r\nlocation: /login\r\nContent-Length: 6\r\n\r\ndenied" % status)
    talk.no_dial()
    record = talk.record()
    assert (record["status"], record["reason"], record["flags"]) == (int(status[:3]), "ext_auth_denied", "UAEX")
    assert (record["rule"], record["backend"], talk.series("denied")) == ("HTTPRoute agents/route", "-", 1)
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "denied"): 1}
    talk.client.is_open()


def test_a_denial_passes_the_filters_of_the_answer(converse: Start):
    change = {
        "type": "ResponseHeaderModifier",
        "responseHeaderModifier": {"set": [{"name": "X-Seen", "value": "yes"}]},
    }
    talk = converse(guarded(auth(), change))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    talk.client << b"HTTP/1.1 403 Forbidden\r\nx-seen: yes\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 1_100_000,
    ],
)
def test_an_answer_that_is_none_denies(converse: Start, answer: bytes):
    talk = converse(guarded())
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> answer
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"], error["rule"]) == (502, "ext_auth_error", "HTTPRoute agents/route")
    talk.no_dial()
    assert (talk.record()["reason"], talk.record()["flags"]) == ("ext_auth_error", "UAEX")


def test_a_server_that_cannot_be_reached_denies(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    talk.refused("auth.example", 9000, UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, detail="10.1.2.3"))
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (503, "ext_auth_error")
    assert "10.1.2.3" not in str(error)
    assert "upstream_refused" in talk.record()["detail"]
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "error"): 1}


def test_an_answer_that_breaks_off_denies_and_counts_against_its_endpoint(converse: Start):
    talk = converse(guarded(traffic=STRICT))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nhalf"
    assert ejected(talk) == []
    talk.origin.leaves()
    assert talk.client.answer()[0] == 502
    assert ejected(talk) == ["agents/auth"]


BY_CLIENT = {"type": "ConsistentHash", "consistentHash": {"type": "SourceIP"}}


@pytest.mark.parametrize("traffic", [{}, {"loadBalancer": BY_CLIENT}])
@pytest.mark.parametrize("protocol", ["HTTP", "GRPC"])
def test_an_endpoint_that_is_not_there_is_left_for_another(converse: Start, protocol: str, traffic: dict[str, Any]):
    block = {"http": {}} if protocol == "HTTP" else {"grpc": {}}
    ref = {"name": "auth", "port": 9000}
    filter_ = {"type": "ExternalAuth", "externalAuth": {"protocol": protocol, "backendRef": ref, **block}}
    service = m.manifest("v1", "Service", "auth", "agents", spec={"ports": [{"port": 9000, "name": "p"}]})
    slices = m.manifest(
        "discovery.k8s.io/v1", "EndpointSlice", "auth", "agents", addressType="IPv4",
        ports=[{"name": "p", "port": 9000}], endpoints=[{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
    )  # fmt: skip
    slices["metadata"]["labels"] = {"kubernetes.io/service-name": "auth"}
    talk = converse([*guarded(filter_, traffic=traffic), service, slices])
    talk.client >> GET
    dial = talk.pending_dial()
    assert dial is not None
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "refused", status=503, retry=RetrySafety.SAFE)
    first = str(dial.endpoints[0][0])
    talk.refused(first, 9000, fault)
    other = {"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"}[first]
    talk.dialled(other, 9000)
    if protocol == "HTTP":
        talk.origin << ASKED
        talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*?\r\n\r\n")
    else:
        assert talk.origin.got.startswith(b"PRI * HTTP/2.0")
        talk.origin.leaves()
        assert talk.client.answer()[0] == 502


def test_a_server_that_does_not_answer_in_time_denies(converse: Start):
    talk = converse(guarded(traffic={"timeouts": {"backendRequest": "50ms"}}))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (504, "ext_auth_error")
    talk.until(lambda: talk.origin.is_gone)
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "timeout"): 1}


def test_the_time_of_the_request_is_the_time_of_the_question(converse: Start):
    talk = converse(guarded(rule={"timeouts": {"request": "1s"}}))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.after(1.5)
    assert talk.client.answer()[0] == 504
    talk.until(lambda: talk.origin.is_gone)
    assert talk.record()["reason"] == "request_timeout"
    assert talk.metrics.external_auth.asked == {("agents/route", "agents/auth", "cancelled"): 1}


def test_a_client_that_leaves_takes_its_question_along(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.client.resets()
    assert talk.until(lambda: talk.origin.has_eof)
    assert talk.record()["reason"] == "client_gone"


def test_a_client_that_leaves_while_the_server_is_dialled_leaves_no_dial(converse: Start):
    talk = converse(guarded())
    talk.client >> GET
    assert talk.pending_dial() is not None
    talk.client.leaves()
    talk.until(lambda: not talk.open)
    assert talk.record()["reason"] == "client_gone"
    talk.dialer.dials.clear()


def test_a_server_that_is_not_there_denies_and_asks_nobody(converse: Start):
    talk = converse(guarded(server=m.backend("other", "auth.example", 9000)))
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (500, "backend_invalid")
    assert "Backend agents/auth does not exist" in talk.record()["detail"]
    talk.no_dial()


def test_a_path_that_leads_out_of_the_prefix_is_refused(converse: Start):
    talk = converse(guarded(auth(path="/check")))
    talk.client >> GET.replace(b"/x", b"/x/..%2f..")
    assert talk.client.answer()[0] == 400
    talk.no_dial()


def test_limits_hold_before_the_server_is_asked(converse: Start):
    talk = converse(guarded(limits={"requests": [{"per": "Gateway", "limit": 1, "window": "1m"}]}))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 403 Forbidden\r\n.*\r\n\r\n")
    talk.client >> GET
    assert talk.client.answer()[0] == 429
    talk.origin.hears_nothing()


# --- the server as a backend ---------------------------------------------------------------------------------------
def test_the_server_gets_its_own_credential_and_the_backend_does_not(converse: Start):
    config = {"secretRef": {"name": "k", "key": "t"}, "header": "X-Key", "allowPlaintext": True}
    injector = {"name": "i", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request"}
    server = m.backend("auth", "auth.example", 9000, extensions=[{**injector, "config": config}])
    talk = converse([*guarded(server=server), m.secret("k", {"t": "hidden"})])
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED.replace(b"Via", b"X-Key: hidden\r\nVia")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


def test_the_credential_of_the_server_is_masked_in_its_denial(converse: Start):
    """Its extensions hold for what a client is told: head and body alike."""
    config = {"secretRef": {"name": "k", "key": "t"}, "header": "X-Key", "allowPlaintext": True, "scrubResponses": True}
    injector = {"name": "i", "type": "egressproxy.io/CredentialInjector:v1", "phase": "backend-request"}
    server = m.backend("auth", "auth.example", 9000, extensions=[{**injector, "config": config}])
    talk = converse([*guarded(server=server), m.secret("k", {"t": "hidden-123"})])
    talk.client >> GET
    asked(talk)
    assert b"X-Key: hidden-123" in talk.origin.take(rb"GET .*?\r\n\r\n")[0]
    talk.origin >> b"HTTP/1.1 403 Forbidden\r\nX-Saw: hidden-123\r\nContent-Length: 15\r\n\r\nkey: hidden-123"
    answer = talk.client.take(rb"HTTP/1.1 403 .*?\r\n\r\nkey: .{10}")[0]
    assert b"hidden-123" not in answer
    assert answer.endswith(b"key: **********")


# --- bodies --------------------------------------------------------------------------------------------------------
POST = b"POST /x HTTP/1.1\r\nHost: app.example\r\nContent-Length: 10\r\n\r\n0123456789"
POST_ASKED = b"POST /x HTTP/1.1\r\nHost: app.example\r\nVia: 1.1 gw\r\nContent-Length: %d\r\n\r\n%b"
POST_FORWARDED = b"POST /x HTTP/1.1\r\nHost: a.example\r\nVia: 1.1 gw\r\nContent-Length: 10\r\n\r\n0123456789"


def test_a_body_is_shown_to_the_server_and_goes_on(converse: Start):
    talk = converse(guarded(auth(forward=100)))
    for _ in range(2):
        talk.client >> POST
        asked(talk)
        talk.origin << POST_ASKED % (10, b"0123456789")
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        talk.dialled("a.example", 80)
        talk.origin << POST_FORWARDED
        talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        talk.client << OK_PASSED


def test_a_chunked_body_that_waits_to_be_asked_for_is_shown_whole(converse: Start):
    talk = converse(guarded(auth(forward=100)))
    talk.client >> (
        b"POST /x HTTP/1.1\r\nHost: app.example\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    )
    talk.client << b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.no_dial()
    talk.client >> b"5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"
    asked(talk)
    talk.origin << POST_ASKED % (10, b"0123456789")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << POST_FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


@pytest.mark.parametrize("framing", [b"Content-Length: 200", b"Transfer-Encoding: chunked"])
def test_a_longer_body_is_refused_and_nobody_is_asked(converse: Start, framing: bytes):
    talk = converse(guarded(auth(forward=100)))
    body = b"x" * 200 if b"Length" in framing else b"c8\r\n" + b"x" * 200 + b"\r\n0\r\n\r\n"
    talk.client >> b"POST /x HTTP/1.1\r\nHost: app.example\r\n%b\r\n\r\n%b" % (framing, body)
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (413, "body_too_large")
    talk.no_dial()
    assert talk.metrics.external_auth.asked == {}


@pytest.mark.parametrize("ends", [True, False])
def test_a_longer_body_of_http2_is_refused_even_if_it_came_before_anybody_asked_for_it(converse: Start, ends: bool):
    """Without a Content-Length; HEADERS and DATA in one segment."""
    talk = converse(guarded(auth(forward=100)))
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/x", b"app.example", body=b"x" * 200, ends=ends)
    assert client.answer(stream).status == 413
    talk.no_dial()
    assert talk.metrics.external_auth.asked == {}
    client.ask(b"POST", b"/x", b"app.example", body=b"x" * 100)
    asked(talk)
    talk.origin.take(rb"POST /x .*Content-Length: 100\r\n\r\nx{100}")


@pytest.mark.parametrize("ends", [True, False])
def test_a_body_that_came_while_the_server_was_asked_has_the_same_limit(converse: Start, ends: bool):
    talk = converse(guarded(limits={"maxBodyBytes": 5}))
    client = speak_http2(talk)
    stream = client.ask(b"POST", b"/x", b"app.example", body=b"abc", ends=False)
    client.says(stream, b"def", ends=ends)
    asked(talk)
    talk.origin.take(rb"POST /x .*\r\n\r\n")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    assert client.answer(stream).status == 413
    assert b"abc" not in bytes(talk.origin.received)
    assert talk.record()["reason"] == "body_too_large"


def test_a_size_of_zero_shows_nothing_and_refuses_nothing(converse: Start):
    talk = converse(guarded(auth(forward=0)))
    talk.client >> POST
    asked(talk)
    talk.origin << POST_ASKED % (0, b"")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << POST_FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_stricter_limit_of_bodies_holds_for_what_is_shown(converse: Start):
    talk = converse(guarded(auth(forward=100), limits={"maxBodyBytes": 5}))
    talk.client >> POST.replace(b"Content-Length: 10", b"Transfer-Encoding: chunked").replace(
        b"0123456789", b"a\r\n0123456789\r\n0\r\n\r\n"
    )
    assert talk.client.answer()[0] == 413
    talk.no_dial()


def test_a_body_that_was_shown_passes_the_body_filters_too(converse: Start):
    from egressproxy.filters.base import BodyMode, Filter
    from egressproxy.model.exchange import Exchange

    class Upper(Filter):
        body_mode = BodyMode.BUFFER

        def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
            return data.upper()

    talk = converse(
        guarded(auth(forward=100), extensions=[scripted_filter("up", "request-body")]), filters={"up": Upper()}
    )
    talk.client >> POST.replace(b"0123456789", b"abcdefghij")
    asked(talk)
    talk.origin << POST_ASKED % (10, b"abcdefghij")
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << POST_FORWARDED.replace(b"0123456789", b"ABCDEFGHIJ")
    talk.origin >> OK
    talk.client << OK_PASSED


def test_a_client_that_leaves_within_its_body_asks_nobody(converse: Start):
    talk = converse(guarded(auth(forward=100)))
    talk.client >> POST[:-3]
    talk.client.leaves()
    assert talk.record()["reason"] == "client_gone"
    talk.no_dial()


# --- a deny means the place ------------------------------------------------------------------------------------------
DENY_SERVER = {"deny": [{"hostnames": ["auth.example"]}]}


def test_a_server_that_is_denied_is_not_asked_and_lets_nothing_pass(converse: Start):
    talk = converse(guarded(destinations=DENY_SERVER))
    talk.client >> GET
    status, _, _, error = talk.client.answer()
    assert (status, error["reason"]) == (403, "destination_denied")
    assert error["message"] == "auth.example is denied by policy agents/default"
    talk.no_dial()


def test_in_report_mode_a_server_that_would_be_denied_is_asked(converse: Start):
    talk = converse(guarded(destinations=DENY_SERVER, mode="Report"))
    talk.client >> GET
    asked(talk)
    talk.origin << ASKED
    talk.origin >> ALLOWED
    talk.dialled("a.example", 80)
    talk.origin << FORWARDED
    talk.origin >> OK
    talk.client << OK_PASSED
    assert talk.record()["would_deny"] == ["destination_denied"]


def test_the_fields_of_this_hop_and_of_the_framing_are_ours():
    for name in (b"Host", b"content-length", b"Transfer-Encoding", b"connection", b"proxy-authorization", b"Via"):
        assert is_ours(name)
    assert not is_ours(b"authorization")


def test_a_denial_has_no_framing_but_ours():
    forged = [(b"X-Egress-Request-Id", b"1"), (b"x_egress_new", b"1")]
    said = [(b"Content-Length", b"9"), (b"Date", b"now"), (b"www-authenticate", b"Basic"), *forged]
    made = denial(401, said, b"no").answer
    assert made is not None
    assert (made.status, made.fields, made.body) == (401, ((b"www-authenticate", b"Basic"),), b"no")
    without = denial(304, [], b"no").answer
    assert without is not None
    assert without.body == b""


@pytest.mark.parametrize("status", [0, 101, 199, 407, 600])
def test_a_status_that_no_client_could_be_told_is_refused(status: int):
    with pytest.raises(ValueError):
        denial(status, [], b"")
