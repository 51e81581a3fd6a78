"""AI providers behind the real process, without an SDK: workers, reloads, tunnels to port 80, and what is told."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.world import client, read_head, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.origins.providers import Provider, Trouble
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki
from tests.support.process import GatewayProcess, SharedGateway
from tests.support.waiting import wait_until

CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello there"}]}
API = "AnthropicMessages"


def place(server: OriginServer, *apis: str) -> m.Manifest:
    port: dict[str, Any] = {"number": server.plain_port, "protocol": "HTTP11", "tls": {"mode": "None"}}
    if apis:
        port["protocolOptions"] = {"ai": {"apis": list(apis)}}
    destination = {"type": "Ip", "ip": {"address": server.address}, "ports": [port]}
    return m.manifest(f"{m.OURS}/v1alpha1", "Backend", "claude", "agents", spec={"destination": destination})


def config(port: int, server: OriginServer, *apis: str, alias: str = "claude-x") -> list[m.Manifest]:
    ref = {"group": m.OURS, "kind": "Backend", "name": "claude"}
    return [
        m.gateway(m.http_listener(port)),
        m.policy(cidrs=["127.0.0.0/8"]),
        place(server, *apis),
        m.failover("any", {"backendRef": ref, "modelAlias": alias}, firstByte="5s"),
        m.http_route("route", m.prefix_rule("/", "any")),
    ]


def request(**more: Any) -> bytes:
    body = json.dumps({**CHAT, **more}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def ask(port: int, **more: Any) -> tuple[bytes, Any]:
    with client(port) as sock:
        sock.sendall(request(**more))
        head, body = read_message(sock)
        return head, json.loads(body)


def test_workers_translate_count_and_follow_reloads(tmp_path: Path):
    port, provider = free_port(), Provider()
    with (
        OriginServer([provider.routes()], Pki().server_context("127.0.0.1")) as server,
        GatewayProcess(tmp_path, config(port, server, API), arguments=("--workers", "2")) as gateway,
    ):
        for _ in range(6):
            head, said = ask(port)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert said["object"] == "chat.completion"
            assert said["choices"][0]["message"]["content"] == "You said: Hello there"
        assert {(each.path, each.body["model"]) for each in provider.requests} == {("/v1/messages", "claude-x")}
        labels = {"route": "agents/route", "backend": "agents/claude", "client_api": "OpenAIChat", "backend_api": API}
        assert gateway.metric("egress_ai_translated_requests_total", **labels, result="ok") == 6
        gateway.replace(config(port, server, API, alias="claude-y"))

        def is_new() -> bool:
            ask(port)
            return provider.requests[-1].body["model"] == "claude-y"

        wait_until(is_new, "the other name is not used")
        gateway.replace(config(port, server))  # says nothing of APIs any more

        def is_as_before() -> bool:
            return ask(port)[1]["object"] == "chat.completion" and provider.requests[-1].path != "/v1/messages"

        wait_until(is_as_before, "it is still translated")
        assert provider.requests[-1].body == {**CHAT, "model": "claude-x"}


def test_a_stream_flows_through_and_breaks_visibly(shared: SharedGateway):
    port, provider = free_port(), Provider()
    with ExitStack() as stack:
        server = stack.enter_context(OriginServer([provider.routes()], Pki().server_context("127.0.0.1")))
        gateway = stack.enter_context(shared.serving(config(port, server, API)))
        for trouble, ends_well in ((None, True), (Trouble.SHORT, True), (Trouble.BREAK, False)):
            provider.script = [trouble]
            sock = stack.enter_context(client(port))
            sock.sendall(request(stream=True))
            head = read_head(sock)
            assert b"\r\ncontent-type: text/event-stream\r\n" in head.lower()
            said, is_reset = b"", False
            try:
                while not said.endswith(b"0\r\n\r\n"):
                    piece = sock.recv(65536)
                    if not piece:
                        break
                    said += piece
            except ConnectionResetError:
                is_reset = True
            assert b"You" in said
            assert said.endswith(b"0\r\n\r\n") is ends_well, (trouble, said, is_reset)
            assert (b"[DONE]" in said) is ends_well  # a stream that has told why it stopped may lack its last event
            assert b'"error"' not in said
        wait_until(lambda: len(gateway.records) == 3, "not all is logged")
        assert [each["reason"] for each in gateway.records] == ["-", "-", "upstream_incomplete"]


def test_check_and_explain_say_what_becomes_of_a_request(shared: SharedGateway):
    port = free_port()
    with OriginServer([Provider().routes()], Pki().server_context("127.0.0.1")) as server:
        with shared.serving(config(port, server, API)) as gateway:
            path = f"/explain?method=POST&url=http://x:{port}/v1/chat/completions&dns=false"
            status, text = gateway.admin(path)
            assert status == 200, text
            (backend,) = json.loads(text)["backends"]
        assert backend["ai"] == {
            "apis": [API],
            "modelAlias": "claude-x",
            "becomes": f"OpenAIChat is translated to {API} (POST /v1/messages), asks for claude-x for every model",
        }
