"""Audit in the real process: workers, a folder that is gone, and the verb that verifies."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from egressproxy.model.secret import SecretBytes
from egressproxy.operators.audit.verification import verified
from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess, verb
from tests.support.waiting import WAIT_S, wait_until

KEY = "k" * 40


def gateway(folder: Path, port: int, origin: int, audit: Path, *arguments: str) -> GatewayProcess:
    extension = {
        "name": "audit", "type": "egressproxy.io/Audit:v1", "phase": "request-headers", "priority": 0,
        "config": {"folder": str(audit), "keyRef": {"name": "key", "key": "key"}},
    }  # fmt: skip
    own = m.policy(cidrs=["127.0.0.0/8"], extensions=[extension])
    own["spec"]["dns"] = {"hosts": {"origin.test": ["127.0.0.1"]}}
    route = m.http_route("all", m.prefix_rule("/", "origin"))
    objects = [m.gateway(m.http_listener(port)), own, m.secret("key", {"key": KEY}), route]
    return GatewayProcess(folder, [*objects, m.backend("origin", "origin.test", origin)], arguments=arguments)


class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(WAIT_S)


def ask(port: int, path: str = "/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", path, b'{"model": "m"}', {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def written(audit: Path) -> int:
    return sum(report.records - report.files for report in verified(audit, SecretBytes(KEY.encode())))


def test_two_workers_write_two_chains_that_the_verb_verifies(tmp_path: Path, origin: int):
    audit, port = tmp_path / "audit", free_port()
    audit.mkdir()
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    with gateway(tmp_path / "g", port, origin, audit, "--workers", "2"):
        for number in range(40):
            assert ask(port, f"/{number}?key=s3cret") == 200
        wait_until(lambda: written(audit) == 40)
    ran = verb("audit", "verify", str(audit), "--key-file", str(key))
    assert ran.exit_code == 0, ran.stderr
    ends = [line.rpartition("; ")[2] for line in ran.stdout.splitlines()]
    shown = verb("audit", "show", str(audit), "-o", "json").stdout.splitlines()
    records = [json.loads(line) for line in shown]
    assert sorted(record["path"] for record in records) == sorted(f"/{number}" for number in range(40))
    assert {(record["decision"], record["reason"], record["model"][0]) for record in records} == {("allowed", "-", "m")}
    assert "s3cret" not in "".join(shown)
    assert verb("audit", "show", str(audit)).stdout.count(" allowed 200 model=m") == 40
    anchored = verb(
        "audit", "verify", str(audit), "--key-file", str(key), *[part for end in ends for part in ("--anchor", end)]
    )
    assert anchored.exit_code == 0
    path = next(iter(sorted(audit.glob("*.jsonl"))))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    ran = verb("audit", "verify", str(audit), "--key-file", str(key))
    assert ran.exit_code == 1
    assert "the last 1 records are missing" in ran.stderr
    assert verb("audit", "verify", str(audit), "--anchor", "nonsense").exit_code == 2


def test_a_folder_that_is_gone_closes_and_a_drain_writes_all(tmp_path: Path, origin: int):
    audit, port = tmp_path / "audit", free_port()
    with gateway(tmp_path / "g", port, origin, audit) as made:
        assert ask(port) == 502
        made.wait_for_diagnostics("AuditUnavailable")
        assert made.metric("egress_audit_lost_total", filter="audit") == 1
        audit.mkdir()
        for _ in range(20):
            assert ask(port) == 200
    assert written(audit) == 21  # with the record of the gap
