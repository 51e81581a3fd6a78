"""Requests for MCP backends: revision, path, JSON-RPC in errors, metrics and log, over clients of HTTP/1.1."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from egressproxy.ai.mcp.filters import LOOK
from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.filters import Exchange, Filter, Rejected
from tests.gateway.conftest import Start
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter

CALL = b'{"jsonrpc":"2.0","id":"c1","method":"tools/call","params":{"name":"search","arguments":{}}}'
JSON = "Content-Type: application/json"


def mcp(name: str = "a", hostname: str = "a.example", **options: Any) -> m.Manifest:
    made = m.backend(name, hostname, 80, protocol="MCP")
    if options:
        made["spec"]["destination"]["ports"][0]["protocolOptions"] = {"mcp": options}
    return made


def to_mcp(*rules: m.Manifest, backends: tuple[m.Manifest, ...] | None = None, **options: Any) -> list[m.Manifest]:
    """A plain listener with one rule to an MCP backend with these options, or with these rules and backends."""
    return [
        m.gateway(m.http_listener(8080)),
        m.policy(),
        *(backends or (mcp(**options),)),
        m.http_route("route", *(rules or (m.prefix_rule("/", "a"),))),
    ]


def post(body: bytes = CALL, *fields: str, path: str = "/mcp") -> bytes:
    lines = "".join(f"{line}\r\n" for line in (JSON, *fields))
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def refused(talk: Conversation) -> tuple[int, Any]:
    """Status and body of an error of the gateway."""
    head = talk.client.take(rb"HTTP/1.1 (\d{3}) .*?Content-Length: (\d+)\r\n(?:[^\r]+\r\n)*\r\n")
    body = talk.client.take(rb".{%d}" % int(head[2]))[0]
    return int(head[1]), json.loads(body)


def arrives(talk: Conversation, body: bytes = CALL, path: str = "/mcp", *, is_new: bool = True) -> str:
    """The origin gets this request, and answers. Returns its head."""
    if is_new:
        talk.dialled("a.example", 80)
    head = talk.origin.take(rb"[A-Z]+ %s HTTP/1.1\r\n.*?\r\n\r\n" % re.escape(path.encode()))[0].decode()
    talk.origin << body
    talk.origin >> b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 202 Accepted\r\n.*?\r\n\r\n")
    return head


# --- the revision ----------------------------------------------------------------------------------------------------
def test_another_revision_is_refused_as_json_rpc(converse: Start):
    talk = converse(to_mcp(version="2025-06-18"))
    talk.client >> post(CALL, "MCP-Protocol-Version: 2025-03-26")
    status, said = refused(talk)
    assert (status, said["jsonrpc"], said["id"], said["error"]["code"]) == (400, "2.0", "c1", -32022)
    data = said["error"]["data"]
    assert (data["supported"], data["reason"], data["status"]) == (["2025-06-18"], "mcp_version", 400)
    talk.no_dial()
    assert data["rule"] == talk.record()["rule"] == "HTTPRoute agents/route"
    assert talk.record()["reason"] == "mcp_version"
    talk.client >> post(CALL, "mcp-protocol-version: 2025-06-18")  # the connection lives on
    arrives(talk)


@pytest.mark.parametrize("field", ["", "MCP-Protocol-Version: 2025-06-18"])
def test_the_servers_revision_and_none_go_on(converse: Start, field: str):
    talk = converse(to_mcp(version="2025-06-18"))
    talk.client >> post(CALL, *([field] if field else []))
    head = arrives(talk)
    assert field in head


@pytest.mark.parametrize("shown", ["x", "2025-06-18, 2025-03-26", "2025-06-18\r\nMCP-Protocol-Version: 2025-03-26"])
def test_every_value_has_to_be_the_servers(converse: Start, shown: str):
    talk = converse(to_mcp(version="2025-06-18"))
    talk.client >> post(CALL, f"MCP-Protocol-Version: {shown}")
    assert refused(talk)[0] == 400


def test_a_get_of_another_revision_is_refused_without_json_rpc(converse: Start):
    talk = converse(to_mcp(version="2025-06-18"))
    talk.client >> b"GET /mcp HTTP/1.1\r\nHost: x\r\nMCP-Protocol-Version: 2024-11-05\r\n\r\n"
    status, said = refused(talk)
    assert (status, said["error"]["reason"]) == (400, "mcp_version")


@pytest.mark.parametrize("options", [{}, {"version": "2031-01-01"}, {"path": "/mcp"}])
def test_without_a_known_revision_the_server_decides(converse: Start, options: dict[str, str]):
    talk = converse(to_mcp(**options))
    talk.client >> post(CALL, "MCP-Protocol-Version: 1999-01-01")
    assert "1999-01-01" in arrives(talk)


def test_of_two_backends_each_may_have_its_revision(converse: Start):
    refs = [{"group": m.OURS, "kind": "Backend", "name": name} for name in ("a", "b")]
    backends = (mcp(version="2025-06-18"), mcp("b", "b.example", version="2025-11-25"))
    talk = converse(to_mcp({"backendRefs": refs}, backends=backends))
    talk.client >> post(CALL, "MCP-Protocol-Version: 2025-03-26")
    status, said = refused(talk)
    assert (status, said["error"]["data"]["supported"]) == (400, ["2025-06-18", "2025-11-25"])


# --- the path --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("match", "asked", "sent"),
    [
        ({"type": "PathPrefix", "value": "/tools/web"}, "/tools/web", "/api/mcp"),
        ({"type": "PathPrefix", "value": "/tools/web"}, "/tools/web/?a=1", "/api/mcp?a=1"),
        ({"type": "PathPrefix", "value": "/tools/web"}, "/tools/web/more", "/tools/web/more"),
        ({"type": "Exact", "value": "/tools"}, "/tools", "/api/mcp"),
        ({"type": "PathPrefix", "value": "/"}, "/", "/api/mcp"),
        ({"type": "PathPrefix", "value": "/"}, "/api/mcp", "/api/mcp"),
        ({"type": "PathPrefix", "value": "/"}, "/.well-known/oauth", "/.well-known/oauth"),
        ({"type": "RegularExpression", "value": "/t.*"}, "/tools", "/tools"),
    ],
)  # fmt: skip
def test_the_path_of_the_rule_stands_for_the_endpoint(converse: Start, match: Any, asked: str, sent: str):
    rule = {**m.prefix_rule("/", "a"), "matches": [{"path": match}]}
    talk = converse(to_mcp(rule, path="/api/mcp"))
    talk.client >> post(path=asked)
    arrives(talk, path=sent)
    assert talk.record()["path"] == asked.partition("?")[0]


def test_a_url_rewrite_of_the_rule_goes_first(converse: Start):
    talk = converse(to_mcp(m.prefix_rule("/tools", "a", rewrite="/own"), path="/mcp"))
    talk.client >> post(path="/tools")
    arrives(talk, path="/own")


# --- bodies ----------------------------------------------------------------------------------------------------------
def test_a_body_in_pieces_arrives_whole(converse: Start):
    talk = converse(to_mcp())
    sent = post()
    for at in range(0, len(sent), 11):
        talk.client >> sent[at : at + 11]
    arrives(talk)
    assert (talk.record()["mcp_method"], talk.record()["mcp_tool"]) == ("tools/call", "search")


def test_a_chunked_body_arrives_whole(converse: Start):
    talk = converse(to_mcp())
    talk.client >> f"POST /mcp HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for at in range(0, len(CALL), 20):
        piece = CALL[at : at + 20]
        talk.client >> b"%x\r\n%b\r\n" % (len(piece), piece)
    talk.no_dial()
    talk.client >> b"0\r\n\r\n"
    arrives(talk, b"%x\r\n%b\r\n0\r\n\r\n" % (len(CALL), CALL))


def test_of_a_long_body_the_beginning_is_looked_at_and_the_rest_streams(converse: Start):
    talk = converse(to_mcp())
    long = CALL.replace(b'"arguments":{}', b'"arguments":{"text":"%b"}' % (b"x" * (10 * LOOK)))
    sent = post(long)
    talk.client >> sent[: -8 * LOOK]
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST /mcp .*?\r\n\r\n")
    talk.origin << long[: -8 * LOOK]  # before the client has sent it all
    talk.client >> sent[-8 * LOOK :]
    talk.origin << long[-8 * LOOK :]
    talk.origin >> b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 202 .*?\r\n\r\n")
    assert talk.record()["mcp_tool"] == "search"


def test_a_client_that_waits_for_100_gets_it(converse: Start):
    talk = converse(to_mcp())
    head, body = post(CALL, "Expect: 100-continue").split(b"\r\n\r\n", 1)
    talk.client >> head + b"\r\n\r\n"
    talk.client << b"HTTP/1.1 100 Continue\r\n\r\n"
    talk.client >> body
    assert "Expect" not in arrives(talk)


def test_a_client_that_leaves_within_its_body_ends_the_look(converse: Start):
    talk = converse(to_mcp())
    talk.client >> post()[:-5]
    talk.no_dial()
    talk.client.resets()
    assert talk.record()["reason"] == "client_gone"


def test_a_limit_on_bodies_holds_for_what_was_looked_at(converse: Start):
    made = to_mcp()
    made[1] = m.policy(limits={"maxBodyBytes": 50})
    talk = converse(made)
    talk.client >> f"POST /mcp HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    talk.client >> b"%x\r\n%b\r\n0\r\n\r\n" % (len(CALL), CALL)
    talk.dialled("a.example", 80)
    status, said = refused(talk)
    assert (status, said["id"], said["error"]["data"]["reason"]) == (413, "c1", "body_too_large")
    assert CALL not in talk.origin.got


@pytest.mark.parametrize("fields", ["Content-Type: text/plain", f"{JSON}\r\nContent-Encoding: gzip", "X: y"])
def test_what_is_no_json_is_not_looked_at(converse: Start, fields: str):
    talk = converse(to_mcp())
    talk.client >> f"POST /mcp HTTP/1.1\r\nHost: x\r\n{fields}\r\nContent-Length: {len(CALL)}\r\n\r\n".encode() + CALL
    arrives(talk)
    assert "mcp_method" not in talk.record()


# --- errors ----------------------------------------------------------------------------------------------------------
def refuses(talk: Conversation) -> None:
    fault = UpstreamFault(Reason.CONNECT_REFUSED, "the upstream refused", status=503, retry=RetrySafety.SAFE)
    talk.refused("a.example", 80, fault)


def test_a_fault_of_the_backend_is_an_error_object_with_the_same_status(converse: Start):
    talk = converse(to_mcp())
    talk.client >> post()
    refuses(talk)
    status, said = refused(talk)
    assert (status, said["id"], said["error"]["code"]) == (503, "c1", -32603)
    assert said["error"]["message"] == "the upstream refused"
    assert said["error"]["data"]["reason"] == "upstream_refused"
    assert talk.record()["mcp_method"] == "tools/call"


def test_a_limit_is_an_error_object(converse: Start):
    made = to_mcp()
    made[1] = m.policy(limits={"requests": [{"per": "Route", "limit": 1, "window": "1h"}]})
    talk = converse(made)
    talk.client >> post()
    arrives(talk)
    talk.client >> post(CALL.replace(b'"c1"', b"42"))
    status, said = refused(talk)
    assert (status, said["id"], said["error"]["code"], said["error"]["data"]["reason"]) == (
        429, 42, -32000, "request_rate"
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"{}", b"no json", b"[1]"])
def test_what_is_no_json_rpc_gets_the_usual_error(converse: Start, body: bytes):
    talk = converse(to_mcp())
    talk.client >> post(body)
    refuses(talk)
    status, said = refused(talk)
    assert (status, said["error"]["reason"]) == (503, "upstream_refused")


def test_a_batch_gets_one_error_without_an_id(converse: Start):
    talk = converse(to_mcp())
    talk.client >> post(b"[" + CALL + b"," + CALL + b"]")
    refuses(talk)
    status, said = refused(talk)
    assert (status, said["id"]) == (503, None)
    assert (talk.record()["mcp_method"], talk.record()["mcp_messages"]) == ("batch", 2)


def test_a_backend_that_is_no_mcp_server_has_nothing_of_it(converse: Start):
    talk = converse(to_mcp(backends=(m.backend("a", "a.example", 80),)))
    talk.client >> post(CALL, "MCP-Protocol-Version: x", "Mcp-Session-Id: y")
    head = arrives(talk)
    assert "Mcp-Session-Id: y" in head
    assert "mcp_method" not in talk.record()


# --- metrics ---------------------------------------------------------------------------------------------------------
def test_messages_are_counted_by_method_and_tool(converse: Start):
    talk = converse(to_mcp())
    for number, body in enumerate((CALL, CALL, b'{"jsonrpc":"2.0","method":"a b"}', b"[" + CALL + b"," + CALL + b"]")):
        talk.client >> post(body)
        arrives(talk, body, is_new=number == 0)
    talk.client >> post(CALL.replace(b"search", b"other"))
    talk.origin.take(rb"POST /mcp .*?\r\n\r\n.*?}}}")
    talk.origin >> b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    talk.client.take(rb"HTTP/1.1 404 .*?\r\n\r\n")
    counted = talk.metrics.mcp_calls.counted
    place = ("agents/route", "agents/a")
    assert counted == {
        (*place, "tools/call", "search", "ok"): 4,
        (*place, "_other", "-", "ok"): 1,
        (*place, "tools/call", "other", "error"): 1,
    }


def test_a_call_that_this_gateway_refuses_is_counted_as_denied(converse: Start):
    tools = {"tools": {"deny": [{"names": ["search"]}]}}
    extension = {"name": "t", "type": "egressproxy.io/ToolPolicy:v1", "config": tools}
    talk = converse([*to_mcp(), m.policy(name="tools", extensions=[extension])])
    talk.client >> post(CALL)
    assert talk.client.answer()[0] == 200  # with an error of JSON-RPC
    talk.settle()
    assert dict(talk.metrics.mcp_calls.counted) == {("agents/route", "-", "tools/call", "search", "denied"): 1}


# --- inside of a stream ----------------------------------------------------------------------------------------------
class Refuses(Filter):
    def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes:
        if b"secret" in data:
            raise Rejected("the answer is not for you")
        return data


def streamed(converse: Start, body: bytes) -> Conversation:
    """The answer to this request is a stream, and the client has its first event."""
    objects = [each for each in to_mcp() if each["kind"] != "EgressPolicy"]
    objects.append(m.policy(extensions=[scripted_filter("body", "response-body")]))
    talk = converse(objects, filters={"body": Refuses()})
    talk.client >> post(body)
    talk.dialled("a.example", 80)
    talk.origin.take(rb"POST .*?\r\n\r\n")
    talk.origin << body
    talk.origin >> b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    talk.origin >> b"e\r\nid: 1\ndata: \n\n\r\n"
    talk.client.take(rb"HTTP/1.1 200 OK\r\n.*?\r\n\r\ne\r\nid: 1\ndata: \n\n\r\n")
    return talk


def test_a_denial_inside_of_a_stream_is_an_event_with_the_error_of_the_request(converse: Start):
    talk = streamed(converse, CALL)
    talk.origin >> b"e\r\ndata: secret\n\n\r\n"
    said = json.loads(talk.client.take(rb"[0-9a-f]+\r\nevent: message\ndata: ([^\n]+)\n\n\r\n0\r\n\r\n")[1])
    assert (said["id"], said["error"]["code"], said["error"]["message"]) == ("c1", -32000, "the answer is not for you")
    assert said["error"]["data"]["reason"] == talk.record()["reason"] == "filter_rejected"
    talk.client.is_closed()


def test_a_denial_inside_of_the_answers_to_a_batch_breaks_off(converse: Start):
    talk = streamed(converse, b"[" + CALL + b"]")
    talk.origin >> b"e\r\ndata: secret\n\n\r\n"
    talk.client.is_closed()


def test_a_stream_that_breaks_has_no_error_so_that_the_client_resumes_it(converse: Start):
    talk = streamed(converse, CALL)
    talk.origin.resets()
    talk.client.is_closed()
