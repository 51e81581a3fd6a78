"""`run --log-format json`: every line of standard error is a JSON object, whichever process it is of."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.world import ALLOW_LOOPBACK, ask, client, get
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

FILTER = """
import sys
import threading
import warnings
from egressproxy.filters import Filter

warnings.warn("of the file of a filter")
print("printed by a filter", file=sys.stderr)
threading.Thread(target=lambda: 1 / 0).start()


class Mine(Filter):
    def request_headers(self, x):
        raise RuntimeError("of a request")
"""
LOUD_FILTER = """
import logging
import os
import sys
from egressproxy.filters import Filter, LocalResponse


class Loud(Filter):
    def request_headers(self, x):
        print("P" * 20_000 + "\\n" + "p" * 20_000, file=sys.stderr)
        logging.getLogger("loud").warning("L" * 20_000)
        return LocalResponse(200, [], str(os.getpid()).encode())
"""
LEVELS = {"debug", "info", "warning", "error"}


@pytest.fixture
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


def lines(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """All of it; fails for a line that is no object of ours."""
    found = [json.loads(line) for line in gateway.stderr.splitlines()]
    assert all(each["time"] and each["logger"] and each["message"] and each["level"] in LEVELS for each in found)
    return found


def objects(port: int, dns: NameServer) -> list[m.Manifest]:
    loose = m.backend("loose", "a.test", 443, tls=True)
    loose["spec"]["destination"]["ports"][0]["tls"]["insecureSkipVerify"] = True
    lost = m.http_route("lost", m.prefix_rule("/", "not-there"), hostnames=["lost.test"])
    policy = m.policy(("a.test",), dns=dns.address, cidrs=ALLOW_LOOPBACK)
    mine = {"name": "mine", "type": "egressproxy.io/Python:v1", "phase": "request-headers", "config": {"path": "f.py"}}
    policy["spec"]["extensions"] = [mine]
    return [m.gateway(m.forward_listener(port)), policy, loose, lost]


def test_a_start_with_warnings_a_refused_reload_and_a_drain(dns: NameServer, tmp_path: Path):
    port = free_port()
    gateway = GatewayProcess(
        tmp_path, objects(port, dns),
        arguments=["--log-format", "json", "--workers", "2", "--drain-timeout", "0.2"],
        environment={"PYTHONWARNINGS": "always"},
    )  # fmt: skip
    (gateway.config / "f.py").write_text(FILTER)
    with gateway:
        for words in (
            "not verified",
            "not-there",
            "of the file of a filter",
            "printed by a filter",
            "ZeroDivisionError",
        ):
            gateway.wait_for_diagnostics(words)
        with client(port) as asking:
            assert ask(asking, get("a.test", 80))[0] >= 500  # the filter has failed
        gateway.wait_for_diagnostics("FilterFailed")
        with client(port) as asking:
            assert ask(asking, get("denied.test", 80))[0] == 403
        gateway.wait_for_diagnostics("denied.test")
        gateway.replace_text("kind: Gatewy\n")
        gateway.wait_for_diagnostics("stays in service")
        gateway.wait_for_diagnostics("apiVersion is missing")
        with client(port) as unfinished:
            unfinished.sendall(b"GET http://a.test/ HTTP/1.1\r\nHost: a.te")
            assert gateway.stop() == 0
    found = lines(gateway)
    (refused,) = [each for each in found if "apiVersion is missing" in each["message"]]
    assert (refused["level"], refused["file"], refused["line"]) == ("error", f"{gateway.config}/manifests.yaml", 1)
    (lost,) = [each for each in found if each.get("object") == "HTTPRoute agents/lost"]
    assert (lost["severity"], lost["code"], lost["level"]) == ("unserved", "BackendNotFound", "warning")
    assert any(each.get("object", "").startswith("Gateway ") and each.get("reason") for each in found), "no Event"
    assert found[-1]["message"].startswith("stopped")
    assert {"worker 1", "worker 2"} <= {each.get("process", "") for each in found}


def test_a_configuration_that_is_refused_at_the_start(tmp_path: Path):
    gateway = GatewayProcess(tmp_path, [], arguments=["--log-format", "json"])
    gateway.replace_text("apiVersion: egressproxy.io/v1alpha1\nkind: EgresPolicy\nmetadata: {name: x}\n")
    with pytest.raises(RuntimeError, match="ended with status 1"):
        gateway.start()
    (problem,) = lines(gateway)
    assert (problem["level"], problem["line"], problem["fieldPath"]) == ("error", 2, "kind")
    assert "did you mean EgressPolicy?" in problem["message"]


def test_a_port_that_is_taken_at_the_start(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = m.forward_listener(taken.getsockname()[1])
        gateway = GatewayProcess(tmp_path, [m.gateway(listener)], arguments=["--log-format", "json"])
        with pytest.raises(RuntimeError, match="ended with status 1"):
            gateway.start()
    assert any("cannot" in each["message"] and each["level"] == "error" for each in lines(gateway))


def test_long_lines_of_threads_and_processes_are_never_mixed_in_a_pipe(tmp_path: Path, dns: NameServer):
    """The reader is slow: the pipe is full, and who writes has to wait in the midst of a line."""
    port = free_port()
    arguments = ["--log-format", "json", "--workers", "2"]
    unbuffered = {"PYTHONUNBUFFERED": "1"}  # as images have it
    gateway = GatewayProcess(tmp_path / "gateway", objects(port, dns), arguments=arguments, environment=unbuffered)
    (gateway.config / "f.py").write_text(LOUD_FILTER)
    os.mkfifo(gateway.stderr_path)
    read: list[bytes] = []

    def reader() -> None:
        with open(gateway.stderr_path, "rb", buffering=0) as pipe:
            while piece := pipe.read(3000):
                read.append(piece)

    thread = threading.Thread(target=reader)
    thread.start()
    with gateway, ThreadPoolExecutor(8) as pool:

        def loud(_: int) -> bytes:
            with client(port) as conversation:
                status, body = ask(conversation, get("a.test", 80))
                assert status == 200
                return body

        served = [*pool.map(loud, range(60))]
        while len(set(served)) < 2 and len(served) < 6000:  # until each has had their share
            served += pool.map(loud, range(60))
    thread.join(WAIT_S)
    said = [json.loads(line) for line in b"".join(read).splitlines()]
    assert {each.get("process", "") for each in said if each["logger"] == "loud"} == {"worker 1", "worker 2"}
    assert sum(len(each["message"]) == 20_000 for each in said) == 3 * len(served)
