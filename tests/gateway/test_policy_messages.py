"""The text that a policy has for clients whom it refuses, in every form of a refusal."""

from __future__ import annotations

import asyncio
import json
import re
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

import pytest

from egressproxy.config.reading.problems import ConfigError
from egressproxy.gateway.builders.snapshot_builder import offline
from egressproxy.operators.explain.explain import explain
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest
from tests.ai.mcp.test_filters import post, to_mcp
from tests.ai.mcp.test_filters import refused as refused_rpc
from tests.gateway.conftest import Start
from tests.gateway.exchange.test_grpc_answers import call, routed
from tests.gateway.h2 import speak_http2
from tests.gateway.kit import GET, connect, forward
from tests.support import manifests as m
from tests.support.conversation import Conversation, compiled_spec

#: What each form has to escape, and nothing that begins a field or ends a status line.
TEXT = 'Ask "#netops" <netops@corp.example>, 50% at once; größer \\ kleiner'
ASCII = TEXT.encode("ascii", "replace").decode()
DENY = {"deny": [{"hostnames": ["a.example"], "message": TEXT}]}


def refusal(talk: Conversation) -> tuple[str, str, Any]:
    """Status phrase, Proxy-Status and the error of the body."""
    head = talk.client.take(rb"HTTP/1.1 403 (.*?)\r\n.*?\r\n\r\n")
    length = int(re.search(rb"Content-Length: (\d+)", head[0])[1])  # type: ignore[index]
    status = re.search(rb"Proxy-Status: (.*?)\r\n", head[0])
    assert status is not None
    return head[1].decode(), status[1].decode(), json.loads(talk.client.take(rb"(?s).{%d}" % length)[0])


@pytest.mark.parametrize("request_", [GET, connect("a.example:443")], ids=["GET", "CONNECT"])
def test_phrase_field_and_body_have_the_text_of_the_entry(converse: Start, request_: bytes):
    talk = converse(forward(destinations={"allow": [{"hostnames": ["*.example"]}], **DENY}, message="of the policy"))
    talk.client >> request_
    phrase, field, body = refusal(talk)
    assert phrase == f"Denied: a.example is denied by policy agents/default: {ASCII}"
    assert json.loads(field.partition("details=")[2]) == phrase.removeprefix("Denied: ")
    assert body["error"]["message"] == f"a.example is denied by policy agents/default: {TEXT}"
    (event,) = talk.metrics.notices.take()
    assert event.message.startswith(f"a.example is denied by policy agents/default: {TEXT}: remove or narrow its entry")


@pytest.mark.parametrize(
    ("sections", "host"),
    [
        ({"destinations": {"allow": [{"hostnames": ["b.example"]}]}}, "a.example"),
        ({"destinations": {"deny": [{"hostnames": ["a.example"]}]}}, "a.example"),
        ({"destinations": {"deny": [{"hostnames": ["b.example"]}]}}, "a.example"),  # nothing is allowed at all
        ({"destinations": {"deny": [{"cidrs": ["93.184.216.0/24"]}]}}, "93.184.216.34"),
    ],
)
def test_an_entry_without_a_text_and_a_host_without_an_entry_have_that_of_the_policy(
    converse: Start, sections: dict[str, Any], host: str
):
    talk = converse(forward(message=TEXT, **sections))
    talk.client >> GET.replace(b"a.example", host.encode())
    assert refusal(talk)[2]["error"]["message"].endswith(f": {TEXT}")


@pytest.mark.parametrize(
    ("addresses", "address", "says"),
    [
        ({"deny": [{"cidrs": ["93.184.216.0/24"], "message": TEXT}]}, "93.184.216.34", TEXT),
        ({"deny": [{"cidrs": ["93.184.216.0/24"]}]}, "93.184.216.34", "of the policy"),
        ({"only": [{"cidrs": ["203.0.113.0/24"]}]}, "93.184.216.34", "of the policy"),
        ({"allow": [{"cidrs": ["10.1.0.0/16"]}]}, "10.0.0.1", "of the policy"),
    ],
)
def test_a_refused_address_has_the_text(converse: Start, addresses: dict[str, Any], address: str, says: str):
    talk = converse(forward(addresses=addresses, message="of the policy"))
    talk.names.zone["a.example"] = (ip_address(address),)
    talk.client >> GET
    _, _, body = refusal(talk)
    assert body["error"]["reason"] == "resolved_denied"
    assert body["error"]["message"].endswith(f": {says}")


def test_the_policy_that_refuses_tells_its_own_text(converse: Start):
    other = m.policy(["b.example"], name="other", message="of the listener")
    other["spec"]["targetRefs"][0]["sectionName"] = "forward"
    talk = converse(forward(other, message="of the gateway"))
    talk.client >> GET
    assert refusal(talk)[2]["error"]["message"] == "a.example is not allowed by policy agents/other: of the listener"


def test_sdks_of_ai_providers_show_it(converse: Start):
    talk = converse(forward(destinations=DENY))
    talk.client >> (
        b"POST http://a.example/v1/chat/completions HTTP/1.1\r\nHost: a.example\r\n"
        b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert TEXT in refusal(talk)[2]["error"]["message"]


def test_mcp_tells_it_in_json_rpc(converse: Start):
    made = to_mcp()
    made[1] = m.policy(destinations=DENY)
    talk = converse(made)
    talk.client >> post()
    status, said = refused_rpc(talk)
    assert (status, said["id"]) == (403, "c1")
    assert said["error"]["message"].endswith(TEXT)


def test_grpc_message_has_it(converse: Start):
    talk = converse(routed(destinations=DENY))
    client = speak_http2(talk)
    answer = client.answer(call(client))
    told = answer[b"grpc-message"]
    assert told.isascii()
    assert TEXT in unquote(told.decode())


def test_explain_has_it():
    async def explained() -> dict[str, Any]:
        asked = HypotheticalRequest.of([("method", "GET"), ("url", "http://a.example/")])
        return await explain(offline(compiled_spec(forward(destinations=DENY))), asked)

    assert TEXT in json.dumps(asyncio.run(explained()), ensure_ascii=False).replace('\\"', '"').replace("\\\\", "\\")


@pytest.mark.parametrize("text", ["", "two\nlines", "a\r\nSet-Cookie: b=c", " edge", "hid\u200bden", "x" * 257, 7])
def test_a_text_that_is_not_one_plain_line_is_refused(text: object):
    with pytest.raises(ConfigError, match="message"):
        compiled_spec(forward(message=text))
