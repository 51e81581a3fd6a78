"""A cache in front of a provider in a real process: what is asked twice is answered once, until a reload."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from tests.e2e.world import Origin, client, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import wait_until

BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = b'data: {"choices": [{"delta": {"content": "%d"}}]}\n\ndata: [DONE]\n\n'


def ask(port: int, key: str = "a", lane: str = "") -> tuple[bytes, bytes]:
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: ai.test\r\nAuthorization: Bearer {key}\r\nX-Lane: {lane}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
    )
    with client(port) as sock:
        sock.sendall(head.encode() + BODY)
        head_bytes, body = read_message(sock)
        return head_bytes.lower(), body


def test_what_is_asked_twice_is_answered_once_for_each_client_and_rule(tmp_path: Path):
    port, asked = free_port(), list[bytes]()

    def serve(sock: socket.socket) -> None:
        asked.append(read_message(sock)[0])
        body = STREAM % len(asked)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with Origin(serve) as origin:
        here = {
            "apiVersion": "egressproxy.io/v1alpha1",
            "kind": "Backend",
            "metadata": {"name": "here", "namespace": "agents"},
            "spec": {"destination": {"type": "Ip", "ip": {"address": "127.0.0.1"}, "ports": [{"number": origin.port}]}},
        }
        lane: dict[str, Any] = m.prefix_rule("/", "here")
        lane["matches"][0]["headers"] = [{"name": "X-Lane", "value": "fast"}]
        policy = {
            "apiVersion": "egressproxy.io/v1alpha1",
            "kind": "EgressPolicy",
            "metadata": {"name": "cache", "namespace": "agents"},
            "spec": {
                "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}],
                "extensions": [{"name": "cache", "type": "egressproxy.io/Cache:v1", "priority": 1000}],
            },
        }
        objects = [
            m.gateway(m.http_listener(port)),
            here,
            m.http_route("here", lane, m.prefix_rule("/", "here"), section="http"),
            policy,
        ]
        with GatewayProcess(tmp_path, objects) as gateway:
            head, body = ask(port)
            assert body == STREAM % 1
            assert b"\r\ncache-status: egressproxy; fwd=miss\r\n" in head
            head, body = ask(port)
            assert body == STREAM % 1
            assert b"\r\ncache-status: egressproxy; hit; ttl=" in head
            assert b"\r\ncontent-type: text/event-stream\r\n" in head
            assert head.count(b"\r\ndate:") == head.count(b"\r\nage:") == 1
            assert ask(port, "b")[1] == STREAM % 2
            assert ask(port, lane="fast")[1] == STREAM % 3
            assert ask(port, lane="fast")[1] == STREAM % 3
            assert len(asked) == 3
            wait_until(lambda: len(gateway.records) == 5, "every request has its line")
            assert [each["cache"] for each in gateway.records] == ["miss", "hit", "miss", "miss", "hit"]
            assert gateway.metric("egress_cache_requests_total", outcome="hit") == 2
            assert gateway.metric("egress_cache_entries") == 3

            os.kill(gateway.pid, signal.SIGHUP)  # as POST /reload does
            gateway.wait_for_metric("egress_config_generation", 2)
            assert ask(port)[1] == STREAM % 4
