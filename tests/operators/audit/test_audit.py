"""What a record tells, and what it never does."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from egressproxy.errors import Reason
from egressproxy.filters.base import Phase
from egressproxy.filters.testing import FilterBuildError, FilterHarness, FilterResult, exchange, response
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.operators.audit import chain_writer
from egressproxy.operators.audit.chain_writer import writer_of
from egressproxy.operators.audit.verification import records_in, verified
from tests.support.waiting import wait_until

TYPE = "egressproxy.io/Audit:v1"
CHAT = {
    "model": "gpt-5", "messages": [{"role": "user", "content": "mail ada@example.org, password: hunter2"}],
    "tools": [{"type": "function", "function": {"name": "search"}}],
}  # fmt: skip
COMPLETION = {
    "model": "gpt-5-2026", "usage": {"prompt_tokens": 7, "completion_tokens": 5},
    "choices": [
        {"message": {"tool_calls": [{"id": "1", "function": {"name": "search", "arguments": '{"q": 1}'}}]}},
    ],
}  # fmt: skip
JSON = {"Content-Type": "application/json"}


def harness(folder: Path, **more: Any) -> FilterHarness:
    secrets = more.pop("secrets", {})
    config = {"folder": str(folder), "sync": "Never", **more}
    return FilterHarness(config, type=TYPE, phase="request-headers", secrets=secrets)


def records(folder: Path) -> list[dict[str, Any]]:
    """What was written, and it is whole."""
    chain_writer._writers.pop(folder.resolve()).close()
    assert [finding for report in verified(folder, None) for finding in report.findings] == []
    return [record for record in records_in(folder) if record["kind"] == "exchange"]


def run(
    made: FilterHarness, asked: Any = CHAT, answered: Any = COMPLETION, url: str = "/v1/chat/completions?key=s3cret"
) -> FilterResult:
    x = exchange("POST", f"https://api.example.com{url}", {**JSON, "Authorization": "Bearer s3cret", "X-Team": "blue"})
    return made.run(
        x, request_body=json.dumps(asked).encode(),
        response=response(200, JSON), response_body=json.dumps(answered).encode(),
    )  # fmt: skip


def test_a_record_tells_who_what_where_and_what_was_decided(tmp_path: Path):
    result = run(harness(tmp_path))
    assert json.loads(result.request_body) == CHAT
    (record,) = records(tmp_path)
    assert (record["method"], record["authority"], record["path"]) == (
        "POST",
        "api.example.com:443",
        "/v1/chat/completions",
    )
    assert (record["decision"], record["reason"]) == ("allowed", "-")
    assert record["model"] == ["gpt-5"]
    assert record["response_model"] == ["gpt-5-2026"]
    assert record["tools_offered"] == ["search"]
    assert record["tools_called"] == ["search"]
    assert (record["tokens"]["input_tokens"], record["tokens"]["output_tokens"]) == (7, 5)
    asked = json.dumps(CHAT).encode()
    assert record["request_body"] == {"bytes": len(asked), "sha256": hashlib.sha256(asked).hexdigest()}


def test_no_query_and_no_credential_is_in_a_record(tmp_path: Path):
    run(harness(tmp_path, bodies="Redacted", requestFields=["X-Team"]))
    (record,) = records(tmp_path)
    assert "s3cret" not in json.dumps(record)
    assert record["fields"] == {"X-Team": ["blue"]}


def test_bodies_are_redacted_and_cut(tmp_path: Path):
    run(harness(tmp_path, bodies="Redacted", maxBodyBytes=90))
    (record,) = records(tmp_path)
    content = record["request_body"]["content"]
    assert "[EMAIL]" in content
    assert "ada@" not in content
    assert record["request_body"]["is_cut"] is True


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "hunter2"}', "password=hunter2&x=1", '{"client_secret":"hunter2"}', "api_key: hunter2",
        '{"access-token" : "hun\\"ter2"}', "AUTHORIZATION: hunter2",
    ],
)  # fmt: skip
def test_what_is_named_a_secret_is_redacted(tmp_path: Path, text: str):
    made = harness(tmp_path, bodies="Redacted")
    made.run(exchange("POST", "https://a.example/"), request_body=text.encode())
    (record,) = records(tmp_path)
    assert "ter2" not in record["request_body"]["content"]
    assert "[SECRET]" in record["request_body"]["content"]


def test_nothing_of_bodies_if_that_is_asked_for(tmp_path: Path):
    run(harness(tmp_path, bodies="None"))
    (record,) = records(tmp_path)
    assert set(record["request_body"]) == {"bytes"}
    assert record["model"] == ["gpt-5"]


def test_a_stream_tells_tokens_and_tools(tmp_path: Path):
    events = [
        {
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "delta": {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "search", "arguments": ""}}]},
                }
            ],
        },
        {"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
    ]
    body = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
    pieces = tuple(body[n : n + 17] for n in range(0, len(body), 17))
    x = exchange("POST", "https://api.example.com/v1/chat/completions", JSON)
    result = harness(tmp_path).run(
        x, request_body=b'{"model": "m", "stream": true}',
        response=response(200, {"Content-Type": "text/event-stream"}), response_body=pieces,
    )  # fmt: skip
    assert b"".join(result.response_pieces) == body
    (record,) = records(tmp_path)
    assert (record["tokens"]["input_tokens"], record["tokens"]["output_tokens"]) == (3, 4)
    assert record["tools_called"] == ["search"]


def test_a_tunnel_has_a_record(tmp_path: Path):
    harness(tmp_path).run(exchange("CONNECT", "api.example.com:443", identity="agents/crawler"))
    (record,) = records(tmp_path)
    assert (record["is_tunnel"], record["method"], record["authority"]) == (True, "CONNECT", "api.example.com:443")
    assert (record["namespace"], record["service_account"]) == ("agents", "crawler")
    assert "identity" not in record


def test_a_record_has_the_name_of_a_client_of_no_namespace(tmp_path: Path):
    x = exchange("GET", "https://api.example.com/")
    x.identity = CallerIdentity(name="https://login.test#alice", source="token", groups=("staff",))
    harness(tmp_path).run(x)
    (record,) = records(tmp_path)
    assert (record["identity"], record["identity_source"]) == ("https://login.test#alice", "token")
    assert "staff" not in str(record)


def test_mcp_tells_the_tool(tmp_path: Path):
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "delete", "arguments": {}}}
    run(harness(tmp_path), call, {"jsonrpc": "2.0", "id": 1, "result": {}}, "/mcp")
    assert records(tmp_path)[0]["tools_called"] == ["delete"]


def test_what_is_no_json_is_recorded_all_the_same(tmp_path: Path):
    made = harness(tmp_path)
    made.run(exchange("POST", "https://a.example/", JSON), request_body=b'{"a": 1, "a": 2')
    made.run(exchange("GET", "https://a.example/"))
    first, second = records(tmp_path)
    assert first["request_body"]["bytes"] == 15
    assert "request_body" not in second


def test_a_folder_that_is_not_there_refuses_requests(tmp_path: Path):
    made = harness(tmp_path / "gone")
    assert made.run(exchange("GET", "https://a.example/")).status == 502
    (tmp_path / "gone").mkdir()
    assert made.run(exchange("GET", "https://a.example/")).status == 200
    folder = tmp_path / "gone"
    chain_writer._writers.pop(folder.resolve()).close()
    assert [record["kind"] for record in records_in(folder)] == [
        "open",
        "gap",
        "exchange",
    ]  # the refusal is lost, and told


def test_it_fails_open_where_that_is_said(tmp_path: Path):
    made = FilterHarness({"folder": str(tmp_path / "gone")}, type=TYPE, phase="request-headers", fail_open=True)
    assert made.run(exchange("GET", "https://a.example/")).status == 200


def test_while_too_many_wait_requests_are_refused(tmp_path: Path):
    made = harness(tmp_path, maxWaiting=1)
    assert made.run(exchange("GET", "https://a.example/")).status == 200
    writer = writer_of(str(tmp_path))
    wait_until(lambda: not writer._records)
    with writer._wake:  # the thread waits for it
        writer._records.append((writer._settings, {"kind": "exchange"}))
        result = made.run(exchange("GET", "https://a.example/"), phases=[Phase.REQUEST_HEADERS])
    assert result.status == 502
    assert result.error is not None
    assert result.error.reason is Reason.FILTER_FAILED


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"folder": "relative"}, "no absolute path"),
        ({"folder": "/x", "requestFields": ["Authorization"]}, "may carry a credential"),
        ({"folder": "/x", "requestFields": ["X-My-Token"]}, "may carry a credential"),
        ({"folder": "/x", "requestFields": ["Ocp-Apim-Subscription-Key"]}, "may carry a credential"),
        ({"folder": "/x", "keyRef": {"name": "k", "key": "v"}}, "is not there"),
        ({"folder": "/x", "bodies": "All"}, "bodies"),
        ({"folder": "/x", "unknown": 1}, "unknown"),
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, Any], words: str):
    with pytest.raises(FilterBuildError, match=words):
        FilterHarness(config, type=TYPE, phase="request-headers")


def test_a_key_that_can_be_guessed_is_refused():
    with pytest.raises(FilterBuildError, match="fewer than 32 bytes"):
        FilterHarness(
            {"folder": "/x", "keyRef": {"name": "k", "key": "v"}}, type=TYPE, phase="request-headers",
            secrets={"k/v": b"short"},
        )  # fmt: skip
