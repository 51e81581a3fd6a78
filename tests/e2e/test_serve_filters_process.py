"""`egressproxy serve-filters` over its life: workers, files of TLS that change, an Envoy that is misconfigured."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
from pathlib import Path

import pytest

from egressproxy.envoy.ext_proc.messages import MessagePart, ProtocolConfiguration
from egressproxy.protocols.grpc.health import CHECK, SERVING
from tests.e2e.test_serve_filters import Envoy, configuration, header, process, python, refusal, rule
from tests.support.net import free_port
from tests.support.pki import Pki, chain
from tests.support.waiting import WAIT_S, wait_until

SET = configuration(*rule("set", header("1")))


def workers_of(said: str) -> list[int]:
    found = re.search(r"workers serve: processes ([0-9, ]+)", said)
    assert found is not None, said
    return [int(pid) for pid in found[1].split(", ")]


def is_set(path: Path, value: bytes) -> bool:
    """Whether whoever accepts the next connection sets the field to this value, and is healthy."""
    envoy = Envoy(path)
    found = envoy.call().head("/set").headers[0].value == value
    assert envoy.unary(CHECK, b"")[0] == [SERVING]
    envoy.sock.close()
    return found


def test_workers_share_the_socket_and_one_that_ends_is_replaced(tmp_path: Path):
    with process(tmp_path, SET, "--workers", "2") as made:
        path = tmp_path / "f.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        made.wait_for_diagnostics("workers serve")
        first, second = workers_of(made.stderr)
        for each in (first, second):
            os.kill(each, signal.SIGSTOP)  # the other one accepts
            try:
                assert is_set(path, b"1")
            finally:
                os.kill(each, signal.SIGCONT)
        os.kill(first, signal.SIGKILL)
        made.wait_for_metric("egress_worker_restarts_total", 1)
        made.wait_for_metric("egress_workers", 2)
        os.kill(second, signal.SIGSTOP)  # the new one accepts
        try:
            assert is_set(path, b"1")
        finally:
            os.kill(second, signal.SIGCONT)
        made.replace(configuration(*rule("set", header("2"))))
        made.wait_for_diagnostics("configuration 2 is in service")
        assert is_set(path, b"2")
    assert not path.exists()


def test_workers_finish_what_is_under_way_before_they_end(tmp_path: Path):
    made = process(tmp_path, SET, "--workers", "2").start()
    envoys = [Envoy(tmp_path / "f.sock") for _ in range(4)]
    calls = [envoy.call() for envoy in envoys]
    for call in calls:
        call.head("/set")
    made._process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    for envoy, call in zip(envoys, calls, strict=True):
        wait_until(lambda envoy=envoy: envoy.hear() and envoy.client.goaways)
        assert call.response(ends=True).part is MessagePart.RESPONSE_HEADERS
    assert made.stop() == 0
    assert not (tmp_path / "f.sock").exists()
    assert "cut" not in made.stderr


def test_workers_refuse_rules_that_cannot_hold(tmp_path: Path):
    bad = configuration(*rule("connects", python("connect.py", "connect")))
    with pytest.raises(RuntimeError, match=r"HTTPRoute agents/connects: filter connect\.py-connect"):
        process(tmp_path, bad, "--workers", "2").start()


def test_files_of_tls_are_read_again_when_they_change(tmp_path: Path):
    port = free_port()
    files = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}

    def write(server: Pki, clients: Pki) -> None:
        leaf = server.issue("filters.test")
        texts = {
            "cert": chain(leaf).encode(), "key": leaf.private_key_pem.bytes(), "ca": clients.ca_pem.encode()
        }  # fmt: skip
        for name, text in texts.items():
            fresh = tmp_path / "new"
            fresh.write_bytes(text)
            fresh.replace(files[name])

    def is_served(server: Pki, client: Pki) -> bool:
        leaf = client.issue("envoy.test")
        shown = tmp_path / "client.pem"
        shown.write_bytes(leaf.private_key_and_cert_chain_pem.bytes())
        context = ssl.create_default_context(cadata=server.ca_pem)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(shown)
        try:
            raw = socket.create_connection(("127.0.0.1", port), WAIT_S)
            with context.wrap_socket(raw, server_hostname="filters.test") as sock:
                return bool(sock.recv(1))  # what refuses a certificate of TLS 1.3 says so behind the handshake
        except ssl.SSLError:
            return False

    old, new = Pki(), Pki()
    write(old, old)
    arguments = ["--tls-cert", str(files["cert"]), "--tls-key", str(files["key"]), "--tls-client-ca", str(files["ca"])]
    with process(tmp_path / "p", SET, "--listen", f"127.0.0.1:{port}", *arguments) as made:
        assert is_served(old, old)
        assert not is_served(old, new)
        files["key"].write_text("no key at all")
        wait_until(lambda: is_served(old, old) and "cannot be used" in made.stderr)
        write(new, new)
        wait_until(lambda: is_served(new, new))
        assert not is_served(new, old)
        assert made.stderr.count("cannot be used") <= 3, "it is told once for each state of the files"


def test_an_envoy_that_is_misconfigured_is_told_once_and_counted(tmp_path: Path):
    with process(tmp_path, configuration(*rule("upper", python("upper.py", "response-body")))) as made:
        envoy = Envoy(tmp_path / "f.sock")
        for _ in range(3):
            assert refusal(envoy.call().head("/upper", protocol=ProtocolConfiguration()))[0] == 500
        assert made.metric("egress_envoy_misconfigured_requests_total") == 3
        assert made.stderr.count("a filter needs a body that Envoy would let pass") == 1
        assert made.wait_for_record(path="/upper")["reason"] == "filter_failed"
        envoy.sock.close()
