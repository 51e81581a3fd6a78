"""What a person sees of a request that waits: enough to judge it, and none of its secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from egressproxy.ai.content.entities import KEYS, Redactor
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.operators.approval.held_request import LOOKED_AT, SHOWN, called_tools, shown_content, shown_request

REDACT = Redactor(KEYS)
KEY = "sk-ant-" + "a1B2" * 10
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"


def request(target: bytes = b"/", kind: str = "", host: str = "a.example", identity: str = "alice") -> Exchange:
    x = Exchange("10.0.0.9:5000", "agents/gw", "http", 0.0, CallerIdentity(name=identity, source="basic"))
    fields = Fields.of([(b"content-type", kind.encode())] if kind else [])
    x.request = RequestHead(b"POST", target, fields)
    x.method, x.path = b"POST", target.partition(b"?")[0]
    x.authority = Authority(host, 443)
    return x


def shown(body: bytes = b"", target: bytes = b"/", kind: str = "") -> dict[str, Any]:
    return shown_content(request(target, kind), body, REDACT)


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("to=alice&amount=5", "to=alice&amount=5"),
        ("to=a%20b&x", "to=a b&x"),
        ("api_key=abc&access_token=abc&Signature=abc", "api_key=[SECRET]&access_token=[SECRET]&Signature=[SECRET]"),
        ("X-Amz-Signature=abc&X-Amz-Security-Token=abc", "X-Amz-Signature=[SECRET]&X-Amz-Security-Token=[SECRET]"),
        ("apiKey=abc&authToken=abc&key=abc&code=abc", "apiKey=[SECRET]&authToken=[SECRET]&key=[SECRET]&code=[SECRET]"),
        ("%61pi_key=abc", "api_key=[SECRET]"),
        (f"note={KEY}", "note=[API_KEY]"),
        (f"note={KEY.replace('-', '%2D')}", "note=[API_KEY]"),
        ("monkey=1&max_tokens=5&country_code=de", "monkey=1&max_tokens=5&country_code=de"),
        ("a=%0d%1b%5b2J%E2%80%AEx", "a=  [2J x"),
    ],
)
def test_a_query_is_shown_decoded_without_secrets(query: str, seen: str):
    assert shown(target=f"/pay?{query}".encode())["query"] == seen


@pytest.mark.parametrize("kind", ["application/json", "", "text/plain", "application/x-protobuf"])
def test_a_body_of_json_is_shown_without_secrets_whatever_it_calls_itself(kind: str):
    body = json.dumps({
        "to": "alice", "amount": 5, "card": {"pin": 1, "passcode": 1234, "apiKey": "x"}, "is_token": True,
        "note": f"use {KEY}", KEY: 1, "issue": {"key": "ABC-1"}, "long": "x" * 500, "last": "seen",
    }).encode()  # fmt: skip
    found = shown(body, kind=kind)
    assert json.loads(found["body"]) == {
        "to": "alice", "amount": 5, "card": {"pin": 1, "passcode": "[SECRET]", "apiKey": "[SECRET]"}, "is_token": True,
        "note": "use [API_KEY]", "[API_KEY]": 1, "issue": {"key": "ABC-1"}, "long": "x" * 256 + "… (500 characters)",
        "last": "seen",
    }  # fmt: skip
    assert not found["isCut"]


def test_escapes_hide_no_secret():
    body = b'{"\\u0070assword": "hunter2", "note": "' + KEY.replace("-", "\\u002d").encode() + b'"}'
    assert json.loads(shown(body)["body"]) == {"password": "[SECRET]", "note": "[API_KEY]"}


def test_a_form_is_shown_without_secrets():
    found = shown(b"to=alice&password=hunter2&n=%0A", kind="application/x-www-form-urlencoded")
    assert found["body"] == "to=alice&password=[SECRET]&n= "


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (f"hello {JWT} you".encode(), "hello [JWT] you"),
        (b"password: hunter2", 'password: "[SECRET]"'),
        ("grüße\u202e\x07".encode(), "grüße  "),
        (b"\x00\x01binary", ""),
        (b"\xff\xfe\xfd" * 20, ""),
        (b"", ""),
        (b'{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ],
)
def test_other_text_is_shown_as_it_is_and_what_is_no_text_is_not(body: bytes, seen: str):
    assert shown(body)["body"] == seen


@pytest.mark.parametrize("at", [SHOWN - 60, SHOWN - 20, SHOWN - 3])
@pytest.mark.parametrize(
    "secret", [KEY, JWT, "-----BEGIN PRIVATE KEY-----\n" + "A" * 8000 + "\n-----END PRIVATE KEY-----"]
)
def test_no_half_of_a_secret_is_left_where_the_text_is_cut(at: int, secret: str):
    text = "x" * (at - 1) + " " + secret
    for found in (shown(text.encode())["body"], shown(target=f"/?a={text}".encode())["query"]):
        assert len(found) <= SHOWN
        for length in range(12, 40):
            assert secret[:length] not in found


def test_what_is_cut_says_so():
    assert shown(b"x" * 5000)["isCut"]
    assert shown(target=b"/" + b"x" * 5000)["isCut"]
    assert not shown(b"x" * SHOWN)["isCut"]
    assert len(shown(("ü" * 30_000).encode())["body"]) == SHOWN


class Counting(Redactor):
    """Says how many characters it was given, and how often."""

    __slots__ = ("characters", "texts")

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.characters = self.texts = 0

    def __call__(self, text: str) -> str:
        self.characters += len(text)
        self.texts += 1
        return super().__call__(text)


@pytest.mark.parametrize(
    ("kind", "body", "target"),
    [
        ("", b"", b"/?" + b"a=%41&" * 10_000),
        ("", b"", b"/?a=" + b"sk-" * 20_000),
        ("", b"", b"/" + b"sk-" * 20_000),
        ("application/x-www-form-urlencoded", b"a=b&" * 60_000, b"/"),
        ("application/json", json.dumps(["sk-" * 20_000]).encode(), b"/"),
        ("application/json", json.dumps([{f"k{n}": "v"} for n in range(4000)]).encode(), b"/"),
        ("application/json", json.dumps({f"k{n}": [{}] for n in range(4000)}).encode(), b"/"),
        ("application/json", b"[" + b"[]," * 20_000 + b"0]", b"/"),
        ("text/plain", b"x" * 10_000_000, b"/"),
    ],
    ids=["parameters", "parameter", "path", "form", "text", "objects", "members", "lists", "long"],
)
def test_what_a_client_sends_takes_no_more_work_than_what_is_shown(kind: str, body: bytes, target: bytes):
    redactor, x = Counting(), request(target, kind)
    found = shown_content(x, body, redactor)
    shown_request(x, b"", redactor)
    assert found["isCut"]
    assert redactor.texts <= 2 * SHOWN
    assert redactor.characters <= 2 * LOOKED_AT


def test_members_whose_names_are_secrets_are_all_shown():
    body = json.dumps({KEY: "harmless", KEY + "x": {"pay": "mallory"}, "[API_KEY] (2)": 1}).encode()
    seen = '{"[API_KEY]": "harmless", "[API_KEY] (2)": {"pay": "mallory"}, "[API_KEY] (2) (3)": "[SECRET]"}'
    assert shown(body)["body"] == seen


def call(name: Any, arguments: Any = None) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def test_every_call_of_a_batch_is_shown_with_its_arguments():
    body = json.dumps([call("pay", {"to": "a", "password": "p"}), call("look"), call("pay", {"to": "b"})]).encode()
    assert shown(body)["calls"] == [
        {"tool": "pay", "arguments": '{"to": "a", "password": "[SECRET]"}'},
        {"tool": "look", "arguments": "null"},
        {"tool": "pay", "arguments": '{"to": "b"}'},
    ]
    many = shown(json.dumps([call("pay", {"n": n}) for n in range(40)]).encode())
    assert (len(many["calls"]), many["isCut"]) == (16, True)


@pytest.mark.parametrize("body", [b"no json", b'{"method": "tools/call", "method": "ping"}', b"", b"{" * 5000])
def test_what_cannot_be_read_calls_a_tool_that_nobody_knows(body: bytes):
    assert called_tools(body) == [("?", None)]
    assert called_tools(json.dumps(call(7)).encode())[0][0] == "?"


def test_the_digest_is_of_all_that_is_fixed():
    def digest(body: bytes = b"1", **more: Any) -> str:
        found: str = shown_request(request(**more), body, REDACT)["requestSha256"]
        return found

    assert digest() == digest()
    others = {
        digest(b"2"),
        digest(target=b"/x"),
        digest(target=b"/?q"),
        digest(host="b.example"),
        digest(identity="bob"),
    }
    assert len(others | {digest()}) == 6


def test_a_path_is_shown_without_secrets_whatever_else_is_shown():
    found = shown_request(request(f"/bot/{KEY}/send%0A\x1b?to=a".encode()), b"", REDACT)
    assert found["path"] == "/bot/[API_KEY]/send%0A "
