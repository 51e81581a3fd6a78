"""`egressproxy mcp pins`: what it prints of a file and of a server, and what it refuses."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy.ai.filters.tool_pins import Definition, LearnedPins
from egressproxy.cli import mcp
from egressproxy.cli.main import main

TOOLS = [{"name": "a", "description": 'say "hi"', "inputSchema": {}}, {"name": "b", "description": "x\u200by"}]


def pins(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["mcp", "pins", *arguments])


@contextmanager
def server(answers: dict[str, Any], status: int = 200) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answers each method with this result, in JSON. Yields its URL, and the fields of requests."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(dict(self.headers))
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            cursor = message.get("params", {}).get("cursor", "")
            said = {
                "jsonrpc": "2.0",
                "id": message.get("id"),
                **answers.get(message["method"] + cursor, {"result": {}}),
            }
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", "http://192.0.2.1/")
            self.send_header("Mcp-Session-Id", "s1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}/mcp", asked
        httpd.shutdown()


def test_the_pages_of_a_server_are_pins_and_what_nobody_sees_is_told():
    pages = {
        "tools/list": {"result": {"tools": TOOLS[:1], "nextCursor": "2"}},
        "tools/list2": {"result": {"tools": TOOLS[1:]}},
    }
    with server(pages) as (url, asked):
        found = pins(url, "--header", "Authorization: Bearer t")
    assert found.exit_code == 1
    assert yaml.safe_load(found.stdout) == {
        "tools": [
            {"name": tool["name"], "hash": Definition.of(tool).hash, "description": tool["description"]}
            for tool in TOOLS
        ]
    }
    assert "tool 'b' has the invisible character U+200B" in found.stderr
    assert "\u200b" not in found.output
    assert {each["Authorization"] for each in asked} == {"Bearer t"}
    assert [each.get("Mcp-Session-Id") for each in asked] == [None, "s1", "s1", "s1"]


@pytest.mark.parametrize(("status", "remedy"), [(302, ""), (401, "--header"), (404, "/mcp")])
def test_a_server_that_does_not_list_is_told_and_no_redirect_followed(status: int, remedy: str):
    with server({}, status) as (url, asked):
        found = pins(url)
    assert (found.exit_code, f"answers {status}" in found.stderr, len(asked)) == (2, True, 1)
    assert remedy in found.stderr.partition("answers")[2]


def test_an_error_of_the_server_is_told():
    with server({"initialize": {"error": {"code": 1, "message": "no"}}}) as (url, _):
        found = pins(url)
    assert (found.exit_code, "refuses initialize" in found.stderr) == (2, True)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"tools": 5}, "answers tools/list with no list of tools"),
        ({"tools": [5]}, "answers tools/list with no list of tools"),
        ({"tools": [{"description": "x"}]}, "lists a tool without a name"),
        ({"tools": TOOLS, "nextCursor": ""}, None),
    ],
)
def test_a_list_that_is_none_is_told(result: Any, why: str | None):
    with server({"tools/list": {"result": result}}) as (url, _):
        found = pins(url)
    if why is None:
        assert found.exit_code == 1
    else:
        assert (found.exit_code, found.stderr) == (2, f"egressproxy: {url} {why}\n")


def test_a_list_without_an_end_is_no_list(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mcp, "_MAX_PAGES", 2)
    page = {"result": {"tools": [], "nextCursor": "2"}}
    with server({"tools/list": page, "tools/list2": page}) as (url, _):
        found = pins(url)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "lists tools on more than 2 pages" in found.stderr


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-x\r\n", "does not answer: what it says is no HTTP, or is cut off"),
        (b"HTTP/1.1 401 N\x1b[2Jo\r\nContent-Length: 0\r\n\r\n", "answers 401 N\\x1b[2Jo"),
        (b"", "does not answer: what it says is no HTTP, or is cut off"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "what it says is no HTTP, or is cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "cannot be read: it is no JSON"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "cannot be read: it is no JSON"),
    ],
)
def test_what_is_no_server_of_mcp_is_told_in_words(said: bytes, why: str):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            client, _ = listening.accept()
            with client:
                asked = b""
                while not asked.endswith(b"}"):  # what is not read would make a reset of the end
                    asked += client.recv(65536)
                client.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        found = pins(f"http://127.0.0.1:{listening.getsockname()[1]}/")
    assert found.exit_code == 2
    assert why in found.stderr
    assert found.exception is None or isinstance(found.exception, SystemExit)


def test_where_nobody_listens_and_what_cannot_be_sent_is_told_without_its_value():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    assert pins(url).stderr == f"egressproxy: {url} does not answer: Connection refused\n"
    found = pins(url, "--header", "Authorization: Bearer se\ncret")
    assert found.exit_code == 2
    assert "cret" not in found.output
    assert "has a character that none may have" in found.stderr


def test_learned_pins_are_those_of_one_backend(tmp_path: Path):
    file = str(tmp_path / "pins.json")
    for backend in ("n/a", "n/b"):
        LearnedPins(file).learn(backend, [Definition.of(TOOLS[0])], ends=True)
    assert pins(file).exit_code == 2
    assert "n/a" in pins(file, "--backend", "n/c").stderr
    found = pins(file, "--backend", "n/a", "-o", "json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["tools"][0]["hash"] == Definition.of(TOOLS[0]).hash


@pytest.mark.parametrize("content", [None, "{", "[]", '{"servers": {"n/a": {"tools": {"x": 1}}}}'])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, content: str | None):
    file = tmp_path / "pins.json"
    if content is not None:
        file.write_text(content)
    found = pins(str(file))
    assert (found.exit_code, "cannot be read" in found.stderr) == (2, True)
