"""What clients read at egress.internal, on every way there."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from egressproxy.identity.api_keys import new_record
from egressproxy.model.admin_requests import HoldPage
from egressproxy.operators.approval.approval_hold import holds
from egressproxy.operators.self_service import answers
from egressproxy.operators.self_service.answers import ASKED_S, MAX_ASKED
from tests.e2e.world import tls_secret
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_interception import CA_KEY, CA_PEM
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import ESTABLISHED, connect, exchange, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer

KNOWN = {
    "address": {
        "clients": [
            {"cidrs": ["10.0.0.9/32"], "namespace": "agents", "serviceAccount": "worker"},
            {"cidrs": ["10.0.0.8/32"], "namespace": "others", "serviceAccount": "worker"},
        ]
    }
}


def ask(peer: Peer, path: str = "/access", method: str = "GET", fields: str = "", body: bytes = b"") -> Any:
    """Status, head and body of a request in absolute form."""
    head = f"{method} http://egress.internal{path} HTTP/1.1\r\nHost: egress.internal\r\n{fields}"
    peer >> head.encode() + (b"Content-Length: %d\r\n\r\n" % len(body) if body else b"\r\n") + body
    return answer(peer)


def answer(peer: Peer) -> Any:
    found = peer.take(rb"HTTP/1\.1 (\d+) [^\r]*\r\n(.*?)\r\n\r\n")
    size = next((int(each[16:]) for each in found[2].split(b"\r\n") if each.startswith(b"Content-Length: ")), 0)
    body = bytes(peer.take(rb".{%d}" % size)[0]) if size else b""
    return int(found[1]), found[2].decode(), body


def access(peer: Peer) -> Any:
    status, _, body = ask(peer)
    assert status == 200
    return json.loads(body)


def test_a_client_reads_what_it_may_reach_and_what_is_left(converse: Start):
    limits = {"requests": [{"per": "Identity", "limit": 5, "unit": "Hour"}]}
    talk = converse(forward(identity=KNOWN, limits=limits))
    exchange(talk)
    told = access(talk.client)
    assert told["identity"]["name"] == "system:serviceaccount:agents:worker"
    assert told["allow"] == [[{"hostnames": ["a.example"]}]]
    assert (told["deny"], told["hostnames"], told["isComplete"]) == ([], [], True)
    assert [(each["limit"], each["left"]) for each in told["limits"]] == [(5, 4)]
    assert access(talk.client)["limits"][0]["left"] == 4  # asking costs nothing
    assert all(type(each[name]) is int for each in told["limits"] for name in ("limit", "left", "resetSeconds"))
    page = ask(talk.client, "/", fields="Accept: text/html\r\n")[2]
    assert b"4 of 5" in page
    other = talk.connect(address="10.0.0.8")
    assert access(other)["limits"][0]["left"] == 5
    talk.no_dial()
    assert talk.record()["route"] == "egress.internal"


def test_the_page_says_a_denial_and_what_helps_in_sentences(converse: Start):
    page = ask(converse(forward()).client, "/?url=http://b.example/", fields="Accept: text/html\r\n")[2].decode()
    said = page.partition('id="verdict"')[2].partition("</p>")[0]
    assert "b.example is not allowed by policy agents/default. What helps: add {hostnames" in said
    assert said.endswith("to destinations.allow.")


def test_who_is_not_known_and_what_a_mode_allows_is_said_in_words(converse: Start):
    deny = {"allow": [{"hostnames": ["a.example"]}], "deny": [{"hostnames": ["b.example"]}]}
    for mode, allow, denied, words in (
        (
            "Enforce",
            [[{"hostnames": ["a.example"]}]],
            [{"hostnames": ["b.example"]}],
            "what is listed here, and nothing",
        ),
        ("Open", [], [{"hostnames": ["b.example"]}], "every public host but those that are denied."),
        ("Report", [], [], "would deny passes, and is noted (mode Report)"),
    ):
        talk = converse([m.gateway(m.forward_listener(3128)), m.policy(destinations=deny, mode=mode)])
        told = access(talk.client)
        assert (told["allow"], told["deny"]) == (allow, denied), mode
        assert told["summary"].startswith("The gateway does not know who you are. You may reach ")
        assert words in told["summary"]
        assert told["identity"] == {
            "name": None, "source": None, "namespace": None, "serviceAccount": None, "groups": [],
        }  # fmt: skip
        assert words.encode() in ask(talk.client, "/", fields="Accept: text/html\r\n")[2]


def test_nobody_reads_what_is_for_another_tenant(converse: Start):
    secret = m.policy(["secret.example"], name="others", subjects=[{"namespace": "others"}])
    talk = converse(forward(secret, identity=KNOWN))
    for path in ("/access", "/"):
        _, _, body = ask(talk.client, path, fields="Accept: text/html\r\n")
        assert b"a.example" in body
        assert b"secret" not in body
    other = talk.connect(address="10.0.0.8")
    assert b"secret.example" in ask(other)[2]


@pytest.mark.parametrize(
    ("url", "allowed", "reason"),
    [
        ("http://a.example/x?y", True, None), ("https://a.example/", True, None),
        ("http://b.example/", False, "destination_not_allowed"),
        ("https://b.example:8443/", False, "destination_not_allowed"),
        ("https://egress.internal/", False, "destination_not_allowed"),
    ],
)  # fmt: skip
def test_a_url_is_checked_as_traffic_is(converse: Start, url: str, allowed: bool, reason: str | None):
    talk = converse(forward())
    status, _, body = ask(talk.client, f"/check?url={url.replace('?', '%3f')}")
    told = json.loads(body)
    assert (status, told["allowed"], told.get("reason")) == (200, allowed, reason)
    talk.no_dial()


REDIRECT = {"type": "RequestRedirect", "requestRedirect": {"hostname": "new.example"}}
UNKNOWN = {"name": "x", "type": "acme.example.com/Check:v1", "phase": "request-headers"}


@pytest.mark.parametrize(
    ("objects", "sections", "reason"),
    [
        ([], {"extensions": [UNKNOWN]}, "unknown_extension"),
        ([m.http_route("r", m.prefix_rule("/", "nowhere"), hostnames=["a.example"])], {}, "backend_invalid"),
        ([m.http_route("r", {"filters": [REDIRECT]}, hostnames=["a.example"])], {}, None),
    ],
)
def test_what_is_closed_is_not_allowed(converse: Start, objects: list[Any], sections: Any, reason: str | None):
    talk = converse(forward(*objects, **sections))
    told = json.loads(ask(talk.client, "/check?url=http://a.example/")[2])
    assert (told["allowed"], told.get("reason")) == (reason is None, reason)


@pytest.mark.parametrize(
    "query",
    ["", "?url=", "?url=ftp://a/", "?url=http://u:p@a/", "?url=a&url=b", "?url=http://a%00/", "?url=https://[/"],
)
def test_what_is_no_url_is_refused(converse: Start, query: str):
    assert ask(converse(forward()).client, f"/check{query}")[0] == 400


def test_the_page_has_no_script_and_escapes_what_it_shows(converse: Start):
    talk = converse(forward(identity=KNOWN))
    path = "/?url=http://a.example/%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    status, head, body = ask(talk.client, path, fields="Accept: text/html\r\n")
    assert status == 200
    assert "Content-Security-Policy: default-src 'none'; style-src 'sha256-" in head
    assert "Cache-Control: no-store" in head
    assert b"<script" not in body
    assert b"&lt;script&gt;" in body
    assert b"system:serviceaccount:agents:worker" in body


def test_it_is_never_dialled_even_where_everything_is_allowed(converse: Start):
    talk = converse(forward(mode="Open"))
    assert ask(talk.client)[0] == 200
    talk.client >> connect("egress.internal:443")
    assert talk.client.answer()[0] == 403
    talk.no_dial()


def test_a_tunnel_to_port_80_leads_there(converse: Start):
    talk = converse(forward(identity=KNOWN))
    talk.client >> connect("egress.internal:80")
    talk.client << ESTABLISHED
    talk.client >> b"GET /access HTTP/1.1\r\nHost: egress.internal\r\n\r\n"
    assert json.loads(answer(talk.client)[2])["identity"]["namespace"] == "agents"


def test_http2_leads_there(converse: Start):
    talk = converse(forward())
    client = speak_http2(talk)
    stream = client.ask(path=b"/access", authority=b"egress.internal")
    assert client.answer(stream).status == 200


def test_a_route_cannot_take_its_name(converse: Start):
    mine = m.http_route("mine", m.prefix_rule("/", "a"), hostnames=["egress.internal"])
    talk = converse(forward(m.backend("a", "a.example", 80), mine))
    assert ask(talk.client)[0] == 200
    talk.no_dial()


def test_a_reverse_listener_answers_known_clients_and_nobody_else(converse: Start):
    request = b"GET /access HTTP/1.1\r\nHost: egress.internal\r\n\r\n"
    talk = converse(reverse(identity=KNOWN))
    talk.client >> request
    status, _, body = answer(talk.client)
    assert (status, json.loads(body)["hostnames"]) == (200, ["*"])
    stranger = talk.connect(address="10.0.0.7")
    stranger >> request
    assert answer(stranger)[0] == 404


def test_a_listener_of_many_routes_is_told_in_part(converse: Start):
    names = [f"h{number}.example" for number in range(2100)]
    routes = [
        m.http_route(f"r{at}", m.prefix_rule("/", "a"), hostnames=names[at : at + 16]) for at in range(0, 2100, 16)
    ]
    talk = converse(forward(m.backend("a", "a.example", 80), *routes))
    told = access(talk.client)
    assert (len(told["hostnames"]), told["isComplete"]) == (1000, False)


def message(talk: Conversation, method: str, fields: str = "", **params: Any) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    status, _, said = ask(talk.client, "/mcp", "POST", f"Content-Type: application/json\r\n{fields}", body)
    return json.loads(said) if status == 200 else status


def test_the_mcp_server_has_two_tools(converse: Start):
    talk = converse(forward(identity=KNOWN))
    begun = message(talk, "initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo={})
    assert begun["result"]["protocolVersion"] == "2025-03-26"
    tools = [each["name"] for each in message(talk, "tools/list")["result"]["tools"]]
    assert tools == ["egress_access", "egress_check"]
    told = message(talk, "tools/call", name="egress_access", arguments={})["result"]
    assert told["structuredContent"]["identity"]["namespace"] == "agents"
    told = message(talk, "tools/call", name="egress_check", arguments={"url": "http://b.example/"})["result"]
    assert told["structuredContent"]["reason"] == "destination_not_allowed"
    assert message(talk, "tools/call", name="egress_check", arguments={"url": "b"})["result"]["isError"]
    assert message(talk, "tools/call", name="other")["error"]["code"] == -32602
    assert message(talk, "resources/list")["error"]["code"] == -32601
    assert message(talk, "ping", "Origin: http://evil.example\r\n") == 403
    assert ask(talk.connect(), "/mcp")[0] == 405


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 200, -32700), (b"[" * 5000, 200, -32700), (b"[]", 200, -32600), (b'{"jsonrpc":"2.0"}', 202, None),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', 202, None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', 200, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}', 200, -32602),
        (b" " * 65537, 413, None),
    ],
)  # fmt: skip
def test_messages_that_are_none_are_refused(converse: Start, body: bytes, status: int, code: int | None):
    talk = converse(forward())
    got, _, said = ask(talk.client, "/mcp", "POST", "", body)
    assert got == status
    if code is not None:
        assert json.loads(said)["error"]["code"] == code


HOLD = {"name": "hold", "type": "egressproxy.io/ApprovalHold:v1", "config": {"hostnames": ["a.example"]}}


def waiting_for(talk: Conversation) -> Any:
    """As a worker tells it that is alone."""

    async def waiting(identity: str) -> list[dict[str, Any]]:
        page = HoldPage(identity=identity)
        found: list[dict[str, Any]] = holds(talk.snapshot.filters.of_type(HOLD["type"]), None, page)["holds"]
        return found

    return waiting


def test_a_client_reads_which_of_its_own_requests_wait_for_approval(converse: Start):
    talk = converse(forward(identity=KNOWN, extensions=[HOLD]))
    talk.connection_manager.self_service.waiting = waiting_for(talk)
    talk.client >> b"GET http://a.example/mine?key=abc HTTP/1.1\r\nHost: a.example\r\n\r\n"
    other, stranger = talk.connect(address="10.0.0.8"), talk.connect(address="10.0.0.7")
    stranger >> b"GET http://a.example/strange HTTP/1.1\r\nHost: a.example\r\n\r\n"
    told = access(talk.connect())["waiting"]
    assert [(each["method"], each["authority"], each["path"]) for each in told] == [("GET", "a.example:80", "/mine")]
    assert set(told[0]) == {"id", "method", "authority", "path", "tool", "waitsSeconds", "leftSeconds"}
    _, _, body = ask(talk.connect(), "/", fields="Accept: text/html\r\n")
    assert b"Waiting for approval" in body
    assert told[0]["id"].encode() in body
    assert access(other)["waiting"] == []
    assert access(talk.connect(address="10.0.0.7"))["waiting"] == []  # who is not known may be anybody
    asked = talk.client
    talk.client = talk.connect()
    said = message(talk, "tools/call", name="egress_access", arguments={})["result"]
    assert [each["path"] for each in said["structuredContent"]["waiting"]] == ["/mine"]
    assert not asked.got


def test_what_others_have_not_told_is_not_called_whole(converse: Start):
    async def nobody_knows(_identity: str) -> None:
        return None

    talk = converse(forward(identity=KNOWN))
    assert access(talk.client)["isComplete"]
    talk.connection_manager.self_service.waiting = nobody_knows
    told = access(talk.client)
    assert (told["waiting"], told["isComplete"]) == ([], False)


@pytest.mark.parametrize(
    ("url", "waits"),
    [("http://a.example/", True), ("https://a.example/", True), ("http://c.example/", False)],
)
def test_a_check_says_that_a_person_has_to_approve(converse: Start, url: str, waits: bool):
    talk = converse(forward(allow=("a.example", "c.example"), extensions=[HOLD]))
    told = json.loads(ask(talk.client, f"/check?url={url}")[2])
    assert (told["allowed"], "waits" in told) == (True, waits)
    _, _, body = ask(talk.client, f"/?url={url}", fields="Accept: text/html\r\n")
    assert (b"waits for approval" in body) is waits


@pytest.mark.parametrize(("method", "waits"), [("", False), ("&method=GET", False), ("&method=POST", True)])
def test_a_check_is_of_a_method_where_it_says_one(converse: Start, method: str, waits: bool):
    config = {"hostnames": ["a.example"], "methods": ["POST"]}
    talk = converse(forward(extensions=[HOLD | {"config": config}]))
    assert ("waits" in json.loads(ask(talk.client, f"/check?url=http://a.example/{method}")[2])) is waits
    asked = {"url": "http://a.example/"} | ({"method": method[8:]} if method else {})
    told = message(talk, "tools/call", name="egress_check", arguments=asked)["result"]
    assert ("waits" in told["structuredContent"]) is waits


@pytest.mark.parametrize(
    "method", ["&method=", "&method=A%20B", "&method=CONNECT", "&method=GET&method=POST", "&method=%C3%A9"]
)
def test_what_is_no_method_is_refused(converse: Start, method: str):
    assert ask(converse(forward()).client, f"/check?url=http://a.example/{method}")[0] == 400


@pytest.mark.parametrize(("path", "allowed"), [("/v1/models", True), ("/v1/files", False)])
def test_a_url_in_a_tunnel_that_is_opened_is_checked_as_the_request_inside(converse: Start, path: str, allowed: bool):
    objects = forward(
        m.backend("api", "api.example", 443),
        m.http_route("r", m.prefix_rule("/v1/models", "api"), hostnames=["api.example"]),
        tls_secret("ca", CA_PEM, CA_KEY.reveal()),
        intercept={"hostnames": ["api.example"], "caCertificateRef": {"name": "ca"}},
    )
    talk = converse(objects)
    assert json.loads(ask(talk.client, f"/check?url=https://api.example{path}")[2])["allowed"] is allowed
    talk.no_dial()


def test_who_asks_without_end_has_to_wait(converse: Start, monkeypatch: pytest.MonkeyPatch):
    """No limit of a policy holds here, and on a listener of many routes an answer takes as long as ten requests."""
    talk = converse(forward(identity=KNOWN))
    for _ in range(MAX_ASKED):
        assert ask(talk.client, "/check?url=http://a.example/")[0] == 200
    for path in ("/access", "/check?url=http://a.example/", "/mcp", "/"):
        status, head, _ = ask(talk.client, path)
        assert status == 429
        assert 0 < int(head.partition("Retry-After: ")[2].partition("\r\n")[0]) <= ASKED_S
    assert talk.record()["reason"] == "request_rate"
    exchange(talk)
    assert ask(talk.connect(address="10.0.0.8"))[0] == 200
    monkeypatch.setattr(answers, "monotonic", lambda: time.monotonic() + ASKED_S)
    assert ask(talk.client)[0] == 200


def test_an_api_key_for_routes_reads_of_these_alone(converse: Start):
    key = "egk_" + "a" * 43
    secret = m.secret("keys", {"ci": json.dumps(new_record(key, routes=["mine"]))})
    routes = [
        m.http_route(name, m.prefix_rule("/", "a"), hostnames=[f"{name}.example"]) for name in ("mine", "another")
    ]
    identity = {"apiKeys": {"secretRefs": [{"name": "keys"}]}}
    talk = converse(forward(secret, m.backend("a", "a.example", 80), *routes, identity=identity))
    shown = f"Proxy-Authorization: Bearer {key}\r\n"
    told = json.loads(ask(talk.client, fields=shown)[2])
    assert (told["allow"], told["hostnames"]) == ([], ["mine.example"])
    assert "You may reach what is listed here, and nothing else." in told["summary"]
    for host, allowed in (("mine", True), ("another", False), ("a", False)):
        checked = json.loads(ask(talk.client, f"/check?url=http://{host}.example/", fields=shown)[2])
        assert checked["allowed"] is allowed
