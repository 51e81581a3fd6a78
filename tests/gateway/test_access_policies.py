"""XAccessPolicy of kube-agentic-networking: its conformance cases, and every way to what a policy targets."""

from __future__ import annotations

import gzip
import json
import sys
from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.exchange.test_connect import client_hello
from tests.gateway.exchange.test_interception import inside, opening, start
from tests.gateway.kit import OK, connect, forward, reverse
from tests.support import manifests as m
from tests.support.conversation import Conversation, Peer
from tests.support.http2_client import Http2Client
from tests.support.manifests import Manifest

TESTER, OTHER = "10.0.0.9", "10.0.0.10"
KNOWN = {
    "address": {
        "clients": [
            {"cidrs": [f"{TESTER}/32"], "namespace": "agents", "serviceAccount": "conformance-tester-sa"},
            {"cidrs": [f"{OTHER}/32"], "namespace": "agents", "serviceAccount": "other"},
        ]
    }
}
BASE = "MATCH_BASE_PROTOCOL_METHODS"
GATEWAY = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw"}
BACKEND = {"group": m.OURS, "kind": "Backend", "name": "a"}
SOURCE = {"type": "ServiceAccount", "serviceAccount": {"name": "conformance-tester-sa"}}
GET_SUM = {"name": "tools/call", "params": ["get-sum"]}


def rule(name: str = "r", source: Manifest | None = SOURCE, **authorization: Any) -> Manifest:
    made: Manifest = {"name": name}
    if source is not None:
        made["source"] = source
    if authorization:
        made["authorization"] = {"type": "CEL" if "cel" in authorization else "Inline", **authorization}
    return made


def access(*rules: Manifest, target: Manifest = GATEWAY, name: str = "access", **more: Any) -> Manifest:
    spec = {"targetRefs": [target], "action": "Allow", "rules": list(rules), **more}
    return m.manifest("agentic.networking.x-k8s.io/v1alpha1", "XAccessPolicy", name, "agents", spec=spec)


def served(*policies: Manifest, protocol: str = "HTTP11") -> list[Manifest]:
    """A plain listener that knows its clients by address, and one route to the backend `a`."""
    made = reverse(objects=policies, identity=KNOWN)
    made[2] = m.backend("a", "a.example", 80, protocol=protocol)
    return made


def rpc(method: str, params: Manifest | None = None) -> bytes:
    message = {"jsonrpc": "2.0", "id": 7, "method": method, **({} if params is None else {"params": params})}
    return json.dumps(message).encode()


def call(tool: str) -> bytes:
    return rpc("tools/call", {"name": tool, "arguments": {"a": 2}})


def post(body: bytes, *fields: str, path: str = "/mcp", method: str = "POST") -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("Content-Type: application/json", *fields))
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str = "/mcp", *fields: str, method: str = "GET") -> bytes:
    return "".join((f"{method} {path} HTTP/1.1\r\nHost: x\r\n", *(f"{each}\r\n" for each in fields), "\r\n")).encode()


def outcome(talk: Conversation, request: bytes, client: Peer | None = None) -> str:
    """`allowed`: the origin gets it. `denied`: an answer of 403. `error`: an error of JSON-RPC."""
    client = client or talk.connect()
    client >> request
    talk.settle()
    if talk.pending_dial() is not None:
        talk.dialled("a.example", 80)
    if not client.got:
        talk.origin.take(rb"(GET|POST|DELETE|PUT) .*?\r\n\r\n")
        if b"\r\n\r\n{" in request or b"\r\n\r\n[" in request:
            talk.origin.take(rb"[{\[].*[}\]]")
        talk.origin >> OK
        client.take(rb"HTTP/1.1 200 .*hi")
        return "allowed"
    status, _, _, error = client.answer()
    record = talk.record()
    assert (record["reason"], record["rule"]) == ("access_denied", "XAccessPolicy agents/access")
    if status == 403:
        return "denied"
    assert (status, error["code"], error["message"]) == (200, 403, "Access to this tool is forbidden.")
    return "error"


# --- the conformance cases -------------------------------------------------------------------------------------------
SKIPS = {"mcpBaseProtocolMethodsOption": "SKIP_BASE_PROTOCOL_METHODS"}
MATCHES = {"mcpBaseProtocolMethodsOption": BASE}
SPIFFE = {"type": "SPIFFE", "spiffe": "spiffe://cluster.local/ns/agents/sa/conformance-tester-sa"}
SUBSET = {**MATCHES, "methods": [GET_SUM, {"name": "prompts"}, {"name": "resources/list"}]}
INITIALIZE = rpc("initialize", {"protocolVersion": "2025-11-25"})
SESSION = "Mcp-Session-Id: s"
CASES = [
    # xaccesspolicy-base-protocol-match
    ("match", rule(mcp=MATCHES), post(INITIALIZE), "allowed"),
    ("match", rule(mcp=MATCHES), post(rpc("tools/list")), "allowed"),
    ("match", rule(mcp=MATCHES), post(call("some-tool")), "error"),
    ("match", rule(mcp=MATCHES), get("/mcp", SESSION, method="DELETE"), "allowed"),
    ("match", rule(mcp=MATCHES), get("/mcp", method="DELETE"), "denied"),
    ("match", rule(mcp=MATCHES), get(), "allowed"),
    ("match", rule(mcp=MATCHES), post(rpc("notifications/initialized")), "allowed"),
    ("match", rule(mcp=MATCHES), post(rpc("ping")), "allowed"),
    # xaccesspolicy-base-protocol-skip
    ("skip", rule(mcp={**SKIPS, "methods": [{"name": "tools/call", "params": ["other"]}]}), post(INITIALIZE), "error"),
    # xaccesspolicy-mcp-matching
    ("category", rule(mcp=SUBSET), post(rpc("prompts/list")), "allowed"),
    ("category", rule(mcp=SUBSET), post(rpc("prompts/get", {"name": "some-prompt"})), "allowed"),
    ("method", rule(mcp=SUBSET), post(rpc("resources/list")), "allowed"),
    ("method", rule(mcp=SUBSET), post(rpc("resources/read", {"uri": "some-uri"})), "error"),
    ("params", rule(mcp=SUBSET), post(call("get-sum")), "allowed"),
    ("params", rule(mcp=SUBSET), post(call("echo")), "error"),
    # xaccesspolicy-sa-matching
    ("account", rule(mcp={**MATCHES, "methods": [GET_SUM]}), post(call("get-sum")), "allowed"),
    ("account", rule(mcp={**MATCHES, "methods": [GET_SUM]}), post(call("echo")), "error"),
    # tests/e2e: cel-macros, cel-multi-rule
    ("cel", rule(cel={"expression": "request.mcp.tool_name == 'get-sum'"}), post(call("get-sum")), "allowed"),
    ("cel", rule(cel={"expression": "request.mcp.tool_name == 'get-sum'"}), post(call("echo")), "error"),
    ("cel", rule(cel={"expression": "request.mcp.tool_name == 'get-sum'"}), post(INITIALIZE), "error"),
    ("cel", rule(cel={"expression": "request.path.startsWith('/mcp')"}), post(call("a"), path="/mcp/..;/b"), "error"),
    ("cel", rule(cel={"expression": "request.path != '/mcp'"}), post(call("a"), path="/%6dcp"), "error"),
    ("methods", rule(methods=["POST"]), post(call("a"), "X-HTTP-Method-Override: delete"), "denied"),
    ("methods", rule(methods=["POST"]), post(call("a"), "X_Http_Method: PUT"), "denied"),
    ("methods", rule(methods=["POST", "PUT"]), post(call("a"), "X-Method-Override: put"), "allowed"),
    ("methods", rule(), post(call("a"), "X-HTTP-Method-Override: DELETE"), "allowed"),
    ("headers", rule(headers=[{"name": "X-Tenant", "value": "a"}]), post(call("a"), "x-tenant: a"), "allowed"),
    ("headers", rule(headers=[{"name": "X-Tenant", "value": "a"}]), get("/", "X-Tenant: a", "X_Tenant: b"), "denied"),
    # what the types say beside them
    ("omitted", rule(), post(call("echo")), "allowed"),
    ("omitted", rule(), get(), "allowed"),
    ("any mcp", rule(mcp=SKIPS), get("/x", method="PUT"), "allowed"),
    ("no methods", rule(mcp={"methods": []}), post(INITIALIZE), "error"),
    ("resource", rule(mcp={"methods": [{"name": "resources/read", "params": ["a"]}]}),
     post(rpc("resources/read", {"uri": "a"})), "allowed"),
    ("resource", rule(mcp={"methods": [{"name": "resources/read", "params": ["a"]}]}),
     post(rpc("resources/read", {"uri": "b", "name": "a"})), "error"),
    ("http", rule(methods=["GET"]), get(), "allowed"),
    ("http", rule(methods=["GET"]), get(method="DELETE"), "denied"),
    ("http", rule(paths=[{"type": "Exact", "value": "/a"}, {"value": "/b"}]), get("/b/c?d=1"), "allowed"),
    ("http", rule(paths=[{"type": "Exact", "value": "/a"}, {"value": "/b"}]), get("/a/c"), "denied"),
    ("http", rule(paths=[{"type": "RegularExpression", "value": "/v[0-9]+"}]), get("/v17"), "allowed"),
    ("http", rule(hosts=["*.example"]), get().replace(b"Host: x", b"Host: a.example"), "allowed"),
    ("http", rule(hosts=["*.example"]), get(), "denied"),
    ("http", rule(ports=[8080]), get(), "allowed"),
    ("http", rule(ports=[80]), get().replace(b"Host: x", b"Host: x:80"), "denied"),
    ("http", rule(headers=[{"name": "X-A", "value": "1"}, {"name": "x-b", "value": "2"}]),
     get("/", "X-A: 1"), "denied"),
    ("http", rule(headers=[{"name": "X-A", "value": "1"}]), get("/", "x-a: 1"), "allowed"),
    ("any client", rule(source=None, methods=["GET"]), get(), "allowed"),
]  # fmt: skip


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
@pytest.mark.parametrize(
    ("case", "written", "request_", "expected"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_what_a_rule_allows(
    converse: Start, case: str, written: Manifest, request_: bytes, expected: str, target: Manifest
):
    talk = converse(served(access(written, target=target)))
    assert outcome(talk, request_) == expected


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_who_no_rule_is_for_is_denied(converse: Start, target: Manifest):
    talk = converse(served(access(rule(), rule("other", mcp=SUBSET), target=target)))
    for address in (OTHER, "192.0.2.1"):
        assert outcome(talk, get(), talk.connect(address=address)) == "denied"
        assert outcome(talk, post(call("get-sum")), talk.connect(address=address)) == "denied"
    assert outcome(talk, get()) == "allowed"


# --- what is sent so that it is read in two ways ---------------------------------------------------------------------
TOOLS = rule(mcp={"methods": [GET_SUM]})


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"get-sum","name":"echo"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"get-sum","Name":"echo"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","Method":"x","params":{"name":"get-sum"}}',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}',
        b'[{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}]',
        b"[]",
        b"not json",
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"get-sum"}}'[:-1],
        b'"tools/call"',
    ],
)
def test_a_body_that_cannot_be_told_is_denied(converse: Start, body: bytes, target: Manifest):
    talk = converse(served(access(TOOLS, target=target)))
    assert outcome(talk, post(body)) == "denied"


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_every_message_of_a_batch_has_to_be_allowed(converse: Start, target: Manifest):
    talk = converse(served(access(TOOLS, target=target)))
    assert outcome(talk, post(b"[%b,%b]" % (call("get-sum"), call("get-sum")))) == "allowed"
    talk.client >> post(b"[%b,%b]" % (call("get-sum"), call("echo")))
    talk.client.take(rb'HTTP/1.1 200 .*\[\{"jsonrpc".*"code": 403.*\}, \{"jsonrpc".*"code": 403.*\}\]')
    talk.settle()
    assert talk.record()["reason"] == "access_denied"
    many = b",".join([call("get-sum")] * 51)
    assert outcome(talk, post(b"[%b]" % many)) == "denied"


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_a_body_in_an_unknown_coding_or_chunks_is_judged_all_the_same(converse: Start, target: Manifest):
    talk = converse(served(access(TOOLS, target=target)))
    talk.client >> post(call("get-sum"), "Content-Encoding: compress")
    talk.settle()
    if talk.pending_dial() is not None:
        talk.dialled("a.example", 80)
    talk.client.take(rb"HTTP/1.1 4(15|03) .*\}\n?")
    head = b"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = call("echo")
    talk.client = talk.connect()
    talk.client >> head + b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (body[:16], len(body) - 16, body[16:])
    talk.settle()
    if target is BACKEND and talk.pending_dial() is not None:
        talk.dialled("a.example", 80)
    status, _, _, error = talk.client.answer()
    assert (status, error["code"]) == (200, 403)


# --- together with others --------------------------------------------------------------------------------------------
def test_all_policies_have_to_allow_a_request_ours_too(converse: Start):
    ours = m.policy(name="limits", extensions=[{
        "name": "no-echo", "type": "egressproxy.io/ToolPolicy:v1", "phase": "request-headers",
        "config": {"tools": {"deny": [{"names": ["echo"]}]}, "unreadable": "Allow"},
    }])  # fmt: skip
    both = {"methods": [{"name": "tools/call", "params": ["get-sum", "echo"]}]}
    second = access(rule(mcp={"methods": [{"name": "tools/call", "params": ["get-sum", "add"]}]}), name="second")
    talk = converse([*served(access(rule(mcp=both)), second), ours])
    assert outcome(talk, post(call("get-sum"))) == "allowed"
    for tool, blamed in (("add", "XAccessPolicy agents/access"), ("echo", "XAccessPolicy agents/second")):
        talk.client = talk.connect()
        talk.client >> post(call(tool))
        talk.client.take(rb"HTTP/1.1 200 .*\}\}")
        talk.settle()
        assert talk.record()["rule"] == blamed
    talk.reload([*served(access(rule(mcp=both))), ours])
    talk.client = talk.connect()
    talk.client >> post(call("echo"))
    talk.client.take(rb"HTTP/1.1 200 .*no-echo.*\}\}")
    talk.settle()
    assert talk.record()["rule"] == "EgressPolicy agents/limits"


@pytest.mark.parametrize(
    "target",
    [
        {**GATEWAY, "sectionName": "http"},
        {"group": m.GATEWAY_API, "kind": "HTTPRoute", "name": "route"},
        BACKEND,
        {**BACKEND, "sectionName": "80"},
    ],
)
def test_listeners_routes_and_ports_can_be_targets(converse: Start, target: Manifest):
    talk = converse(served(access(rule(methods=["GET"]), target=target)))
    assert outcome(talk, get(method="DELETE")) == "denied"
    assert outcome(talk, get()) == "allowed"


def test_a_path_is_the_clients_also_where_it_is_rewritten_and_cannot_be_spelled_otherwise(converse: Start):
    written = rule(paths=[{"value": "/open"}])
    for target in (GATEWAY, BACKEND):
        made = served(access(written, target=target))
        made[3] = m.http_route("route", m.prefix_rule("/", "a", rewrite="/inner"))
        talk = converse(made)
        assert outcome(talk, get("/open/x")) == "allowed"
        assert outcome(talk, get("/closed")) == "denied"
        talk.client >> get("/open/../closed")
        talk.client.take(rb"HTTP/1.1 (400|403) ")
        talk.settle()
        assert talk.record()["reason"] in ("bad_target", "access_denied")


# --- tunnels, upgrades, HTTP/2 ---------------------------------------------------------------------------------------
def tunnelled(written: Manifest, **more: Any) -> list[Manifest]:
    return forward(access(written, **more), identity=KNOWN)


@pytest.mark.parametrize(
    ("written", "is_allowed"),
    [
        (rule(), True),
        (rule(hosts=["a.example"], ports=[443]), True),
        (rule(methods=["CONNECT"]), True),
        (rule(ports=[80]), False),
        (rule(hosts=["b.example"]), False),
        (rule(methods=["GET"]), False),
        (rule(paths=[{"value": "/"}]), False),
        (rule(headers=[{"name": "host", "value": "a.example:443"}]), False),
        (rule(mcp=MATCHES), False),
        (rule(cel={"expression": "true"}), False),
    ],
)
def test_a_tunnel_is_allowed_by_rules_that_ask_for_nothing_inside(converse: Start, written: Manifest, is_allowed: bool):
    talk = converse(tunnelled(written))
    talk.client >> connect("a.example:443")
    if is_allowed:
        talk.dialled("a.example", 443)
        talk.client.take(rb"HTTP/1.1 200 ")
        return
    assert talk.client.answer()[0] == 403
    talk.no_dial()
    assert talk.record()["reason"] == "access_denied"
    other = talk.connect(address=OTHER)
    other >> connect("a.example:443")
    assert other.answer()[0] == 403


def test_a_tunnel_to_a_backend_is_judged_before_it_is_dialled(converse: Start):
    made = [
        m.gateway({"name": "tls", "port": 8443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}),
        m.policy(identity=KNOWN),
        m.backend("a", "a.example", 443, protocol="TCP"),
        m.tls_route("t", "a", hostnames=["a.example"]),
        access(TOOLS, target=BACKEND),
    ]
    talk = converse(made)
    talk.client >> client_hello("a.example")
    talk.settle()
    talk.no_dial()
    assert talk.record()["reason"] == "access_denied"


def test_an_upgrade_matches_no_rule_that_asks_for_messages(converse: Start):
    talk = converse(served(access(rule(mcp=MATCHES))))
    talk.client >> get("/mcp", "Connection: Upgrade", "Upgrade: websocket")
    assert talk.client.answer()[0] == 403


def test_streams_of_http2_are_judged_one_by_one(converse: Start):
    talk = converse(served(access(TOOLS)))
    talk.counts_octets = False
    client = Http2Client()
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", b"/mcp"),
              (b"content-type", b"application/json")]  # fmt: skip
    first = client.request(fields, call("echo"))
    second = client.request([(b":method", b"GET"), *fields[1:4]])
    talk.client >> client.outgoing()
    talk.settle()
    client.take(talk.client.take(b".*")[0])
    assert (client.of(first).status, client.of(second).status) == (200, 403)
    assert b'"code": 403' in client.of(first).data


# --- external authorization ------------------------------------------------------------------------------------------
ALLOWS = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
DENIES = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"
SERVER = {"protocol": "HTTP", "http": {}, "backendRef": {"group": m.OURS, "kind": "Backend", "name": "auth"}}


def asking(*rules: Manifest, name: str = "asking", **more: Any) -> Manifest:
    return access(*rules, name=name, action="ExternalAuth", externalAuth=SERVER, **more)


def guarded(*policies: Manifest) -> list[Manifest]:
    return [*served(*policies), m.backend("auth", "auth.example", 9000)]


def is_asked(talk: Conversation, request: bytes, answer: bytes, client: Peer | None = None) -> bool:
    """Whether the server is asked about this request, and answers so."""
    (client or talk.client) >> request
    talk.settle()
    dial = talk.pending_dial()
    if dial is None or talk.names.name_of(dial.endpoints[0][0]) != "auth.example":
        return False
    talk.dialled("auth.example", 9000)
    talk.origin.take(rb"[A-Z]+ .*?\r\n\r\n")
    talk.origin >> answer
    talk.settle()
    return True


def test_a_server_is_asked_before_the_rules_of_other_policies(converse: Start):
    """xaccesspolicy-evaluation-logic: both have to allow a call."""
    allowing = access(rule(mcp={**MATCHES, "methods": [GET_SUM]}))
    for tool, answer, expected in (
        ("get-sum", ALLOWS, "a.example"),
        ("get-env", ALLOWS, "access_denied"),
        ("echo", DENIES, "ext_auth_denied"),
    ):
        talk = converse(guarded(asking(rule("route-to-extauth")), allowing))
        assert is_asked(talk, post(call(tool)), answer)
        if expected == "a.example":
            talk.dialled("a.example", 80)
            talk.origin.take(rb"POST /mcp .*get-sum.*\}\}")
            talk.origin >> OK
            talk.client.take(rb"HTTP/1.1 200 .*hi")
            continue
        talk.client.take(rb'HTTP/1.1 200 .*"code": 403, "message": "Access to this tool is forbidden.".*\}\}\}')
        talk.settle()
        talk.no_dial()
        assert talk.record()["reason"] == expected
        assert talk.record()["rule"] == f"XAccessPolicy agents/{'asking' if answer is DENIES else 'access'}"


@pytest.mark.parametrize(
    ("written", "request_", "address", "expected"),
    [
        (rule(), get(), TESTER, True),
        (rule(), get(), OTHER, False),
        (rule(methods=["POST"]), get(), TESTER, False),
        (rule(mcp={"methods": [GET_SUM]}), post(call("get-sum")), TESTER, True),
        (rule(mcp={"methods": [GET_SUM]}), post(call("echo")), TESTER, False),
        (rule(mcp={"methods": [GET_SUM]}), post(b"[%b,%b]" % (call("echo"), call("get-sum"))), TESTER, True),
        (rule(mcp={"methods": [GET_SUM]}), post(b"not json"), TESTER, True),
        (rule(mcp={"methods": [GET_SUM]}), post(b'{"a":"%b"}' % (b"a" * 70_000)), TESTER, True),
        (rule(cel={"expression": "request.headers['x'] == 'a'"}), post(call("echo")), TESTER, True),
        (rule(mcp=MATCHES), get("/", "Connection: Upgrade", "Upgrade: websocket"), TESTER, True),
        (rule(methods=["DELETE"]), post(call("a"), "X-HTTP-Method-Override: DELETE"), TESTER, True),
        (rule(cel={"expression": "false"}), post(b"[%b,%b]" % (call("a"), call("b"))), TESTER, False),
        (rule(cel={"expression": "false"}), post(b"[%b,%b,%b]" % (call("a"), call("b"), call("c"))), TESTER, True),
        (rule(mcp={"methods": [GET_SUM]}), post(b"[" + b",".join([call("a")] * 51) + b"]"), TESTER, True),
        (rule(methods=["DELETE"]), post(call("a"), "X-HTTP-Method-Override: POST"), TESTER, False),
        (rule(headers=[{"name": "X-Tenant", "value": "a"}]), get("/", "X_Tenant: a"), TESTER, True),
    ],
)
def test_what_its_rules_match_or_may_match_is_put_to_the_server(
    converse: Start, written: Manifest, request_: bytes, address: str, expected: bool
):
    talk = converse(guarded(asking(written)))
    client = talk.connect(address=address)
    assert is_asked(talk, request_, DENIES, client) is expected
    if expected:
        client.take(rb"HTTP/1.1 (403 .*no|200 .*\}\}\})")
    else:
        talk.dialled("a.example", 80)
        talk.origin.take(rb"(GET|POST) .*\r\n\r\n.*")
        talk.origin >> OK
        client.take(rb"HTTP/1.1 200 .*hi")


def test_without_rules_all_is_put_to_the_server_and_no_tunnel_can_be(converse: Start):
    everything = asking()
    del everything["spec"]["rules"]
    auth = m.backend("auth", "auth.example", 9000)
    talk = converse(forward(everything, auth, identity=KNOWN))
    assert is_asked(talk, b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", DENIES)
    talk.client.take(rb"HTTP/1.1 403 .*no")
    talk.client = talk.connect()
    talk.client >> connect("a.example:443")
    assert talk.client.answer()[0] == 403
    talk.no_dial()
    talk.reload(forward(asking(rule()), auth, identity=KNOWN))
    other = talk.connect(address=OTHER)
    other >> connect("a.example:443")
    talk.dialled("a.example", 443)
    other.take(rb"HTTP/1.1 200 ")


def test_a_server_that_is_not_there_refuses_what_is_put_to_it(converse: Start):
    talk = converse(served(asking(rule())))
    talk.client >> get()
    assert talk.client.answer()[0] >= 500
    assert outcome(talk, get(), talk.connect(address=OTHER)) == "allowed"


# --- what cannot be enforced, and every way to a backend -------------------------------------------------------------
BROKEN = rule(cel={"expression": "request.nope == 'a'"})


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_a_policy_that_cannot_be_enforced_closes_its_target(converse: Start, target: Manifest):
    talk = converse(served(access(rule("open"), BROKEN | {"name": "broken"}, target=target)))
    assert outcome(talk, get()) == "denied"
    assert outcome(talk, post(call("get-sum"))) == "denied"


def test_conditions_need_a_package_and_without_it_the_target_is_closed(
    converse: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "cel", None)
    talk = converse(served(access(rule(cel={"expression": "true"}))))
    assert outcome(talk, post(call("get-sum"))) == "denied"
    talk.reload(served(access(rule())))
    assert outcome(talk, get()) == "allowed"


def test_a_tunnel_on_a_closed_gateway_is_refused(converse: Start):
    talk = converse(tunnelled(BROKEN))
    talk.client >> connect("a.example:443")
    assert talk.client.answer()[0] == 403


def test_each_endpoint_of_a_failover_has_its_own_policies(converse: Start):
    made = [
        m.gateway(m.http_listener(8080)),
        m.policy(identity=KNOWN),
        m.backend("a", "a.example", 80),
        m.backend("b", "b.example", 80),
        m.failover("any", "a", "b", codes=[503]),
        m.http_route("route", m.prefix_rule("/", "any")),
        access(TOOLS, target={**BACKEND, "name": "b"}),
    ]
    for tool, is_allowed in (("echo", False), ("get-sum", True)):
        talk = converse(made)
        talk.client >> post(call(tool))
        talk.dialled("a.example", 80)
        talk.origin.take(rb"POST .*\}\}")
        talk.origin >> b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        talk.dialled("b.example", 80)
        if is_allowed:
            talk.origin.take(rb"POST .*get-sum.*\}\}")
            talk.origin >> OK
            talk.client.take(rb"HTTP/1.1 200 .*hi")
        else:
            talk.client.take(rb'HTTP/1.1 200 .*"code": 403.*\}\}')


def test_a_mirror_is_judged_by_the_policies_of_its_backend(converse: Start):
    made = served(access(rule(methods=["DELETE"]), target={**BACKEND, "name": "copy"}))
    ref = {"group": m.OURS, "kind": "Backend", "name": "copy"}
    filters = [{"type": "RequestMirror", "requestMirror": {"backendRef": ref}}]
    made[3] = m.http_route("route", m.prefix_rule("/", "a", filters=filters))
    talk = converse([*made, m.backend("copy", "copy.example", 80)])
    talk.client >> get()
    talk.dialled("a.example", 80)
    talk.origin.take(rb"GET .*\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*hi")
    talk.no_dial()


def test_requests_in_an_opened_tunnel_are_judged(converse: Start):
    talk = start(converse, opening(access(TOOLS), identity=KNOWN))
    tls = inside(talk)
    tls >> post(call("echo")).replace(b"Host: x", b"Host: a.example")
    assert b'"code": 403' in tls.reads()
    tls >> post(call("get-sum")).replace(b"Host: x", b"Host: a.example")
    talk.dialled("a.example", 443)
    talk.origin.take(rb"POST /mcp .*get-sum.*\}\}")
    talk.origin >> OK
    assert tls.reads().endswith(b"hi")


def test_decisions_are_counted_by_policy_and_rule(converse: Start):
    talk = converse(served(access(rule("readers", methods=["GET"]), rule("tools", mcp={"methods": [GET_SUM]}))))
    assert [outcome(talk, each) for each in (get(), post(call("get-sum")), post(call("echo")), get(method="PUT"))] == [
        "allowed", "allowed", "error", "denied",
    ]  # fmt: skip
    found = talk.metrics.filter_metrics.read()["egress_access_decisions"]
    assert found.labels == ("filter", "rule", "decision")
    assert found.values == {
        ("agents/access", "readers", "allowed"): 1,
        ("agents/access", "tools", "allowed"): 1,
        ("agents/access", "-", "denied"): 2,
    }


def test_listener_sets_and_routes_of_other_namespaces_are_closed_too(converse: Start):
    """What a Gateway's owner restricts holds for whoever attaches to it."""
    every = {"namespaces": {"from": "All"}}
    listeners = m.manifest(
        f"{m.GATEWAY_API}/v1",
        "ListenerSet",
        "set",
        "team",
        spec={"parentRef": {"name": "gw", "namespace": "agents"}, "listeners": [m.http_listener(8081, "set")]},
    )
    parent = {"group": m.GATEWAY_API, "kind": "ListenerSet", "name": "set"}
    route = m.http_route("own", m.prefix_rule("/", "b"), namespace="team")
    route["spec"]["parentRefs"] = [parent]
    made = [
        m.gateway(m.http_listener(8080), allowedListeners=every),
        m.policy(identity=KNOWN),
        listeners,
        route,
        m.backend("b", "b.example", 80, namespace="team"),
        access(rule(methods=["GET"])),
    ]
    talk = converse(made)
    port = next(number for number, bound in enumerate(talk.ports) if bound.state.port.number == 8081)
    client = talk.connect(port)
    client >> get(method="DELETE")
    assert client.answer()[0] == 403
    client >> get()
    talk.dialled("b.example", 80)
    talk.origin.take(rb"GET .*\r\n\r\n")
    talk.origin >> OK
    client.take(rb"HTTP/1.1 200 .*hi")


def test_policies_with_subjects_keep_the_rules_of_everybody(converse: Start):
    subjects = m.policy(name="mine", subjects=[{"namespace": "agents"}], limits={"maxBodyBytes": 1000})
    talk = converse([*served(access(rule(methods=["GET"]))), subjects])
    assert outcome(talk, get(method="DELETE")) == "denied"
    assert outcome(talk, get()) == "allowed"


def test_a_body_in_a_known_coding_is_read_and_goes_on_as_it_came(converse: Start):
    talk = converse(served(access(TOOLS)))
    talk.client >> post(gzip.compress(call("echo")), "Content-Encoding: gzip")
    assert talk.client.answer()[3]["code"] == 403
    coded = gzip.compress(call("get-sum"))
    talk.client >> post(coded, "Content-Encoding: gzip")
    talk.dialled("a.example", 80)
    assert talk.origin.take(rb"POST .*?\r\n\r\n(.{%d})" % len(coded))[1] == coded
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*hi")


def test_a_policy_of_a_parent_holds_for_what_goes_through_it(converse: Start):
    made = served(access(rule(methods=["GET"]), target={**BACKEND, "name": "parent"}))
    made[2] = m.backend("a", "a.example", 80, parent={"name": "parent"})
    talk = converse([*made, m.backend("parent", "parent.example", 3128)])
    assert outcome(talk, get(method="DELETE")) == "denied"
    talk.client >> get()
    talk.dialled("parent.example", 3128)
    talk.origin.take(rb"GET http://a.example.*\r\n\r\n")
    talk.origin >> OK
    talk.client.take(rb"HTTP/1.1 200 .*hi")
