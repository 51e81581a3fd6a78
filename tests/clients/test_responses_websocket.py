"""OpenAI's responses over a WebSocket: its own SDK, and `websockets`, behind filters that see each message."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.clients.world import Require
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

pytest.importorskip("openai")
pytest.importorskip("websockets")

from openai import APIStatusError, OpenAI
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

MAIL = "ann@corp.example"
#: What a limit of tokens leaves: two responses of 30 tokens each, and no third.
TOKENS = 55


class ResponsesServer:
    """A provider of responses over WebSockets, in a thread: it repeats the input, in pieces, or calls tool `shell`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.extensions: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server, self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WAIT_S)

    async def _start(self) -> tuple[Server, int]:
        server = await serve(self._talk, "127.0.0.1", 0)
        return server, int(next(iter(server.sockets)).getsockname()[1])

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.response is not None
        self.extensions.append(connection.response.headers.get("Sec-WebSocket-Extensions", ""))
        async for message in connection:
            request = json.loads(message)
            self.requests.append(request)
            for event in events_of(request):
                await connection.send(json.dumps(event))

    def close(self) -> None:
        async def stop() -> None:
            self._server.close()
            await self._server.wait_closed()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


def events_of(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    said = request["input"]
    if type(said) is not str:
        said = said[-1]["content"][0]["text"] if said else ""
    about = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": request["model"], "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress",
    }  # fmt: skip
    usage = {
        "input_tokens": 20, "output_tokens": 10, "total_tokens": 30,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    yield {"type": "response.created", "sequence_number": 0, "response": about}
    if said == "call it":
        call = {"type": "function_call", "id": "f", "call_id": "c", "name": "shell", "arguments": "{}"}
        yield {"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": call}
        return
    if request.get("generate") is False:  # Codex opens a session so
        yield {"type": "response.completed", "sequence_number": 1, "response": {**about, "usage": usage}}
        return
    where = {"item_id": "m", "output_index": 0, "content_index": 0, "logprobs": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": item}
    half = said.find("<") + 3 if "<" in said else len(said) // 2
    for number, piece in enumerate((said[:half], said[half:])):
        yield {"type": "response.output_text.delta", "sequence_number": 1 + number, "delta": piece, **where}
    yield {"type": "response.output_text.done", "sequence_number": 3, "text": said, **where}
    part = {"type": "output_text", "text": said, "annotations": []}
    item = {**item, "status": "completed", "content": [part]}
    yield {"type": "response.output_item.done", "sequence_number": 4, "output_index": 0, "item": item}
    whole = {**about, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "sequence_number": 4, "response": whole}


def extension(name: str, config: dict[str, Any]) -> m.Manifest:
    return {"name": name, "type": f"egressproxy.io/{name}:v1", "phase": "request-headers", "config": config}


PII = extension("PIIDetector", {"entities": [{"name": "EMAIL", "action": "Placeholder"}], "applyTo": "Requests"})
MODELS = extension("ModelPolicy", {"deny": ["gpt-dear*"]})
TOOLS = extension("ToolPolicy", {"tools": {"deny": [{"names": ["shell"]}]}})
METER = extension("TokenMeter", {"prices": [{"models": ["*"], "input": 1, "output": 2}]})
LIMIT = extension("QoSController", {"limits": [{"type": "Tokens", "limit": TOKENS, "unit": "Day", "name": "daily"}],
                                    "outputTokens": 5})  # fmt: skip


@pytest.fixture
def provider() -> Iterator[ResponsesServer]:
    made = ResponsesServer()
    yield made
    made.close()


Gateway = Callable[..., GatewayProcess]


@pytest.fixture
def gateway(tmp_path: Path, provider: ResponsesServer) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts a gateway before the provider, with these filters; it listens at `port`."""
    with ExitStack() as stack:

        def start(port: int, *extensions: m.Manifest) -> GatewayProcess:
            objects = [
                m.gateway(m.http_listener(port)),
                m.policy(cidrs=["127.0.0.0/8"], extensions=list(extensions)),
                m.ip_backend("provider", provider.port),
                m.http_route("route", m.prefix_rule("/", "provider")),
            ]
            return stack.enter_context(GatewayProcess(tmp_path, objects))

        yield start


def said(port: int, text: str, model: str = "gpt-5") -> tuple[str, list[Any]]:
    """The text of a response to the SDK, and its events."""
    client = OpenAI(api_key="unused", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0)
    with client.responses.connect() as connection:
        connection.response.create(model=model, input=text)
        events: list[Any] = []
        for event in connection:
            events.append(event)
            if event.type in ("response.completed", "error"):
                break
    return "".join(each.delta for each in events if each.type == "response.output_text.delta"), events


def test_the_sdk_of_openai_has_its_responses_through_every_filter(gateway: Gateway, provider: ResponsesServer):
    port = free_port()
    process = gateway(port, PII, MODELS, TOOLS, METER, LIMIT)
    text, events = said(port, f"mail {MAIL} and go on")
    assert text == f"mail {MAIL} and go on"
    assert events[-1].response.usage.total_tokens == 30
    assert [request["input"] for request in provider.requests] == ["mail <EMAIL_1> and go on"]

    _, refused = said(port, "x", model="gpt-dearest")
    assert (refused[-1].type, refused[-1].code) == ("error", "model_denied")
    assert len(provider.requests) == 1

    said(port, "again")
    _, spent = said(port, "and again")
    assert (spent[-1].type, spent[-1].code) == ("error", "token_rate")
    assert len(provider.requests) == 2

    def responses() -> list[dict[str, Any]]:
        return [line for line in process.records if "websocket" in line]

    wait_until(lambda: len(responses()) == 4)
    assert [(line["status"], line["reason"]) for line in responses()] == [
        (200, "-"), (403, "model_denied"), (200, "-"), (429, "token_rate"),
    ]  # fmt: skip
    assert [line.get("gen_ai.usage.output_tokens") for line in responses()] == [10, None, 10, None]
    assert responses()[0]["ai_cost"] == pytest.approx((20 * 1 + 10 * 2) / 1e6)


def test_a_call_of_a_denied_tool_does_not_come_through(gateway: Gateway, provider: ResponsesServer):
    port = free_port()
    gateway(port, TOOLS)
    with connect(f"ws://127.0.0.1:{port}/v1/responses") as socket:
        assert "permessage-deflate" in provider.extensions[0]  # both sides compress
        socket.send(json.dumps({"type": "response.create", "model": "gpt-5", "input": "call it"}))
        assert json.loads(socket.recv(WAIT_S))["type"] == "response.created"
        told = json.loads(socket.recv(WAIT_S))
        assert (told["type"], told["error"]["code"]) == ("error", "filter_rejected")
        with pytest.raises(ConnectionClosedError) as caught:
            socket.recv(WAIT_S)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1008


def test_codex_has_its_turn_through_every_filter(
    gateway: Gateway, provider: ResponsesServer, require: Require, agents: str, tmp_path: Path
):
    require("agent:codex")
    port = free_port()
    process = gateway(port, PII, MODELS, TOOLS, METER)
    command = [
        f"{agents}/codex", "-c", f'openai_base_url="http://127.0.0.1:{port}/v1"', "exec", "--skip-git-repo-check",
        "-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false", f"Say hello to {MAIL}",
    ]  # fmt: skip
    (tmp_path / "home").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "CODEX_API_KEY": "unused"}
    done = subprocess.run(
        command, cwd=tmp_path / "home", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith(f"Say hello to {MAIL}"), done.stderr
    asked = json.dumps(provider.requests)
    assert "<EMAIL_1>" in asked
    assert MAIL not in asked
    wait_until(lambda: any(line["status"] == 101 for line in process.records))
    assert [line["status"] for line in process.records] == [200, 200, 101]  # the first asks for nothing yet


def test_it_asks_for_plain_requests_where_a_filter_could_not_hold(gateway: Gateway):
    """426 is what makes Codex go on over HTTP at once."""
    port = free_port()
    process = gateway(port, TOOLS, extension("ApprovalHold", {}))
    with pytest.raises(InvalidStatus) as caught, connect(f"ws://127.0.0.1:{port}/v1/responses"):
        pass
    answer = caught.value.response
    assert answer.status_code == HTTPStatus.UPGRADE_REQUIRED
    assert answer.headers["Upgrade"] == "HTTP/1.1"
    error = json.loads(answer.body or b"")["error"]
    assert (error["reason"], error["remedy"]) == ("filter_rejected", "send plain requests (POST)")
    wait_until(lambda: bool(process.records))
    assert process.records[0]["rule"] == "EgressPolicy agents/default"
    with pytest.raises((InvalidStatus, APIStatusError)):
        said(port, "x")
