"""XAccessPolicy of kube-agentic-networking: its conformance cases, and every way to what a policy targets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.conftest import Start
from tests.gateway.kit import OK, VIA, connect, forward, reverse
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
    """`allowed`: the origin gets it. `denied`: an answer of 403. `error`: an error of JSON-RPC, as MCP clients get it."""
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
    ("http", rule(headers=[{"name": "X-A", "value": "1"}, {"name": "x-b", "value": "2"}]), get("/", "X-A: 1"), "denied"),
    ("http", rule(headers=[{"name": "X-A", "value": "1"}]), get("/", "x-a: 1"), "allowed"),
    ("any client", rule(source=None, methods=["GET"]), get(), "allowed"),
]  # fmt: skip


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
@pytest.mark.parametrize(("case", "written", "request_", "expected"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_what_a_rule_allows(converse: Start, case: str, written: Manifest, request_: bytes, expected: str, target: Manifest):
    talk = converse(served(access(written, target=target)))
    assert outcome(talk, request_) == expected


@pytest.mark.parametrize("target", [GATEWAY, BACKEND], ids=["gateway", "backend"])
def test_who_no_rule_is_for_is_denied(converse: Start, target: Manifest):
    talk = converse(served(access(rule(), rule("other", mcp=SUBSET), target=target)))
    for address in (OTHER, "192.0.2.1"):
        assert outcome(talk, get(), talk.connect(address=address)) == "denied"
        assert outcome(talk, post(call("get-sum")), talk.connect(address=address)) == "denied"
    assert outcome(talk, get()) == "allowed"
