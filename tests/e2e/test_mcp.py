"""MCP servers behind the real process: sessions over endpoints and gateways, streams over reloads and stops."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_retries import service
from tests.e2e.world import Origin, client, read_head, read_message
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "whoami"}}


class McpServer(Origin):
    """A scripted server: its sessions are `NAME.1`, `NAME.2` …; what it does not know it answers 404.

    A GET is a stream: `say` sends the next event on all that are open, after those that Last-Event-ID asks for.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions = set[str]()
        self.streams: list[socket.socket] = []
        self.events: list[bytes] = []
        self.resumed: list[str] = []
        self._begun = 0
        super().__init__(self._converse)

    def _converse(self, sock: socket.socket) -> None:
        while True:
            head, body = read_message(sock)
            method, path, _ = head.decode().split(" ", 2)
            assert path == "/mcp"
            session = field(head, "mcp-session-id")
            message = json.loads(body) if body else {}
            if message.get("method") == "initialize" and not session:
                self._begun += 1
                session = f"{self.name}.{self._begun}"
                self.sessions.add(session)
            if session not in self.sessions:
                answer(sock, 404, b"{}")
            elif method == "DELETE":
                self.sessions.remove(session)
                answer(sock, 200)
            elif method == "GET":
                self._stream(sock, field(head, "last-event-id"))
                return
            else:
                said = {"jsonrpc": "2.0", "id": message["id"], "result": {"served": self.name, "session": session}}
                answer(sock, 200, json.dumps(said).encode(), f"Mcp-Session-Id: {session}\r\n")

    def _stream(self, sock: socket.socket, last: str) -> None:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if last:
            self.resumed.append(last)
            for event in self.events[int(last) + 1 :]:
                sock.sendall(b"%x\r\n%b\r\n" % (len(event), event))
        self.streams.append(sock)
        sock.settimeout(WAIT_S)
        while sock.recv(4096):
            pass

    def say(self, text: str) -> bytes:
        event = f"id: {len(self.events)}\ndata: {text}\n\n".encode()
        self.events.append(event)
        for sock in self.streams:
            sock.sendall(b"%x\r\n%b\r\n" % (len(event), event))
        return event

    def dies(self) -> None:
        """Refuses connections, and resets its streams."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.streams:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.shutdown(socket.SHUT_RD)  # ends the thread that reads, which closes it
        self.streams.clear()

    def returns(self) -> None:
        """Listens again, on the same port, and knows its sessions."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def end_streams(self) -> None:
        for sock in self.streams:
            sock.sendall(b"0\r\n\r\n")


def answer(sock: socket.socket, status: int, body: bytes = b"", fields: str = "") -> None:
    sock.sendall(f"HTTP/1.1 {status} X\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def field(head: bytes, name: str) -> str:
    found = re.search(rf"\r\n{name}: ([^\r]*)", head.decode(), re.IGNORECASE)
    return found[1] if found else ""


def to_tools(listener: int, *ports: int, **rule: Any) -> list[m.Manifest]:
    """/tools to the MCP backend `tools` over these endpoints of a Service, at /mcp."""
    port = {"number": 80, "protocol": "MCP", "tls": {"mode": "None"}}
    port["protocolOptions"] = {"mcp": {"version": "2025-06-18", "path": "/mcp"}}
    destination = {"type": "Service", "service": {"name": "pods"}, "ports": [port]}
    backend = m.manifest(f"{m.OURS}/v1alpha1", "Backend", "tools", "agents", spec={"destination": destination})
    route = m.http_route("tools", m.prefix_rule("/tools", "tools", **rule))
    return [m.gateway(m.http_listener(listener)), route, backend, *service(*ports)]


def ask(port: int, message: Any = None, method: str = "POST", **fields: str) -> tuple[int, bytes, Any]:
    """One request on a connection of its own: status, head, and the JSON of the body."""
    body = json.dumps(message).encode() if message is not None else b""
    if body:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    with client(port) as sock:
        sock.sendall(f"{method} /tools HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + body)
        head, said = read_message(sock)
    return int(head.split(b" ", 2)[1]), head, json.loads(said) if said else None


def begin(port: int) -> tuple[str, str]:
    """A new session: the name of the server that has made it, and its id."""
    status, head, said = ask(port, INITIALIZE)
    assert status == 200
    return said["result"]["served"], field(head, "mcp-session-id")


def test_sessions_stay_with_their_endpoint_over_workers_and_gateways_with_one_key(tmp_path: Path):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    ports = free_port(), free_port()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(McpServer(name)) for name in ("a", "b")}
        gateways = []
        for number, port in enumerate(ports):
            objects = to_tools(port, *(server.port for server in servers.values()))
            arguments = ["--session-key", str(key), "--workers", str(number + 1)]
            gateways.append(stack.enter_context(GatewayProcess(tmp_path / str(number), objects, arguments=arguments)))
        sessions = [begin(port) for port in ports * 4]
        assert {served for served, _ in sessions} == {"a", "b"}
        for served, session in sessions:
            for port in ports * 2:
                status, head, said = ask(port, CALL, Mcp_Session_Id=session, MCP_Protocol_Version="2025-06-18")
                assert (status, said["id"], said["result"]["served"]) == (200, 2, served)
                assert field(head, "mcp-session-id") == session
        served, session = sessions[0]
        other = "b" if served == "a" else "a"
        for port in ports:
            status, _, said = ask(port, CALL, Mcp_Session_Id=f"{other}{session[1:]}")
            assert (status, said["id"], said["error"]["data"]["reason"]) == (404, 2, "mcp_session")
            status, _, said = ask(port, CALL, Mcp_Session_Id=session, MCP_Protocol_Version="2024-11-05")
            assert (status, said["error"]["code"], said["error"]["data"]["supported"]) == (400, -32022, ["2025-06-18"])
        assert ask(ports[1], method="DELETE", Mcp_Session_Id=session)[0] == 200
        status, _, said = ask(ports[0], CALL, Mcp_Session_Id=session)
        assert (status, said) == (404, {})  # the server's own answer
        for gateway in gateways:
            assert not any(session in json.dumps(record) for record in gateway.records)
        counted = {"method": "tools/call", "tool": "whoami", "result": "ok", "backend": "agents/tools"}
        assert gateways[1].metric("egress_mcp_messages_total", **counted) == len(sessions) * 2


def events_of(sock: socket.socket) -> Iterator[bytes]:
    """The events of a stream, as they come, however they are cut into chunks; b"" at its end."""
    stream, text = sock.makefile("rb"), b""
    while size := int(stream.readline() or b"0", 16):
        text += stream.read(size)
        stream.readline()
        while b"\n\n" in text:
            event, _, text = text.partition(b"\n\n")
            yield event + b"\n\n"
    yield text


def listen(port: int, session: str, last: str = "") -> tuple[socket.socket, Iterator[bytes]]:
    sock = client(port)
    more = f"Last-Event-ID: {last}\r\n" if last else ""
    accept = "Accept: text/event-stream\r\n"
    sock.sendall(f"GET /tools HTTP/1.1\r\nHost: x\r\nMcp-Session-Id: {session}\r\n{accept}{more}\r\n".encode())
    assert read_head(sock).startswith(b"HTTP/1.1 200")
    return sock, events_of(sock)


def test_a_stream_outlives_reloads_and_a_stop_and_is_resumed_at_another_gateway(tmp_path: Path):
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4 + "\n")
    first, second = free_port(), free_port()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(McpServer(name)) for name in ("a", "b")}
        ports = [server.port for server in servers.values()]
        arguments = ["--session-key", str(key)]
        gateway = GatewayProcess(
            tmp_path / "1", to_tools(first, *ports), arguments=[*arguments, "--drain-timeout", "60"]
        )
        stack.enter_context(gateway)
        stack.enter_context(GatewayProcess(tmp_path / "2", to_tools(second, *ports), arguments=arguments))
        served, session = begin(first)
        server = servers[served]
        sock, events = listen(first, session)
        stack.enter_context(sock)
        wait_until(lambda: server.streams)
        for text in ("one", "two"):
            assert server.say(text) == next(events)  # each before the next is said
        gateway.replace(to_tools(first, *reversed(ports), timeouts={"backendRequest": "9s"}))
        gateway.wait_for_metric("egress_config_generation", 2)
        assert server.say("after the reload") == next(events)

        ended = threading.Thread(target=gateway.stop)
        ended.start()
        wait_until(lambda: not accepts(first), "the listener is open")
        assert server.say("while it drains") == next(events)
        assert ended.is_alive()
        again, resumed = listen(second, session, last="1")  # the client has come as far as "two"
        stack.enter_context(again)
        assert [next(resumed), next(resumed)] == server.events[2:]
        assert server.resumed == ["1"]
        wait_until(lambda: len(server.streams) == 2)
        both = server.say("to both")
        assert (next(events), next(resumed)) == (both, both)
        server.end_streams()
        assert (next(events), next(resumed)) == (b"", b"")
        ended.join(WAIT_S)
        assert not ended.is_alive()


def test_a_stream_that_breaks_with_its_endpoint_is_resumed_there(tmp_path: Path):
    """While its endpoint is gone, another one is asked, which does not know the session: a client may begin anew."""
    port = free_port()
    with ExitStack() as stack:
        servers = {name: stack.enter_context(McpServer(name)) for name in ("a", "b")}
        objects = to_tools(port, *(server.port for server in servers.values()), retry={"attempts": 1})
        gateway = stack.enter_context(GatewayProcess(tmp_path, objects, arguments=["--drain-timeout", "1"]))
        served, session = begin(port)
        server = servers[served]
        sock, events = listen(port, session)
        stack.enter_context(sock)
        wait_until(lambda: server.streams)
        assert server.say("one") == next(events)
        server.dies()
        with pytest.raises((ConnectionError, ValueError)):  # a reset, or no chunk: never an end in good order
            assert next(events) != b""
        assert gateway.wait_for_record(reason="upstream_incomplete")["backend"] == "agents/tools"
        assert ask(port, CALL, Mcp_Session_Id=session)[0] == 404
        assert begin(port)[0] != served  # another session goes on at once
        server.events.append(b"id: 1\ndata: missed\n\n")
        server.returns()
        again, resumed = listen(port, session, last="0")
        stack.enter_context(again)
        assert next(resumed) == b"id: 1\ndata: missed\n\n"
        assert server.resumed == ["0"]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    except OSError:
        return False
    return True
