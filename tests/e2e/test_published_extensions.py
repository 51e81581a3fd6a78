"""Extensions as they are published: the key of each spelling reaches a TLS origin, and none where it must not."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, client, get, read_message
from tests.support import manifests as m
from tests.support.manifests import conditions_of
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.writing import Client

pytestmark = pytest.mark.timeout(120)
HOST = "api.vendor.test"
WORKING_GROUP = "gateway.networking.k8s.io"
OURS = "egressproxy.io"
PLATFORM = "platform-secrets"


class Vendor:
    """A TLS origin that remembers the Authorization of each request."""

    def __init__(self, pki: Pki) -> None:
        self.seen: list[str] = []
        self.origin = Origin(self._serve, pki.server_context(HOST))

    def _serve(self, sock: socket.socket) -> None:
        while True:
            head, _ = read_message(sock)
            lines = [line for line in head.decode().split("\r\n") if line.lower().startswith("authorization:")]
            self.seen.append(", ".join(line.partition(":")[2].strip() for line in lines))
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


@pytest.fixture(scope="module")
def dns() -> Iterator[NameServer]:
    with NameServer({"*": ["127.0.0.1"]}) as server:
        yield server


@pytest.fixture(scope="module")
def vendor(pki: Pki) -> Iterator[Vendor]:
    made = Vendor(pki)
    with made.origin:
        yield made


def backend(group: str, kind: str, version: str, name: str, port: int, extensions: list[Any]) -> m.Manifest:
    ports = [
        {
            "number": port,
            "protocol": "HTTP",
            "tls": {"mode": "Simple", "caBundleRef": [{"kind": "ConfigMap", "name": "ca"}]},
        }
    ]
    destination = {"type": "Fqdn", "fqdn": {"hostname": HOST}, "ports": ports}
    spec = {"destination": destination, "extensions": extensions}
    return m.manifest(f"{group}/{version}", kind, name, "agents", spec=spec)


def rule(name: str, group: str, kind: str = "Backend") -> m.Manifest:
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": f"/{name}"}}],
        "backendRefs": [{"group": group, "kind": kind, "name": name}],
    }


def grant(group: str, kind: str) -> m.Manifest:
    spec = {
        "from": [{"group": group, "kind": kind, "namespace": "agents"}],
        "to": [{"group": "", "kind": "Secret", "name": "openai-api-key"}],
    }
    return m.manifest(f"{WORKING_GROUP}/v1beta1", "ReferenceGrant", f"from-{group}", PLATFORM, spec=spec)


def world(
    port: int, dns: NameServer, pki: Pki, token: str, *more: m.Manifest, rules: list[m.Manifest]
) -> list[m.Manifest]:
    return [
        m.gateway(m.http_listener(port)),
        m.policy(None, dns=dns.address, cidrs=ALLOW_LOOPBACK),
        m.config_map("ca", {"ca.crt": pki.ca_pem}),
        m.secret("local", {"whatever": token}),
        m.secret("openai-api-key", {"api-key": "old", "apiKey": token}, namespace=PLATFORM),
        m.http_route("r", *rules),
        *more,
    ]


LOCAL: dict[str, Any] = {"secretRef": {"name": "local"}}
FAR: dict[str, Any] = {"secretRef": {"name": "openai-api-key", "namespace": PLATFORM}}
#: name -> (group, kind, version, the extension as it is published, what the origin is to see of the token T)
FORMS: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "bare": (WORKING_GROUP, "Backend", "v1alpha1", {
        "name": "inject-credentials", "type": "CredentialInjector", "phase": "request-headers", "priority": 10,
        "failOpen": False, "config": FAR}, "Bearer T"),
    "qualified": (WORKING_GROUP, "Backend", "v1alpha1", {
        "name": "inject-credentials", "type": f"{WORKING_GROUP}/CredentialInjector:v1", "phase": "request-headers",
        "priority": 10, "failOpen": False, "config": FAR}, "Bearer T"),
    "raw": ("ainetworking.prototype.x-k8s.io", "XBackendDestination", "v0alpha0", {
        "name": "inject", "type": "CredentialInjector", "rawConfig": LOCAL}, "Bearer T"),
    "nameless": (WORKING_GROUP, "Backend", "v1alpha1", {"type": "CredentialInjector", "config": LOCAL}, "Bearer T"),
    "ours": (OURS, "Backend", "v1alpha1", {
        "name": "inject", "type": f"{OURS}/CredentialInjector:v1",
        "config": {**FAR, "template": "Token {}"}}, "Token T"),
}  # fmt: skip


def published(port: int) -> tuple[list[m.Manifest], list[m.Manifest]]:
    objects = [backend(*form[:3], name, port, [form[3]]) for name, form in FORMS.items()]
    return objects, [rule(name, form[0], form[1]) for name, form in FORMS.items()]


def fetch(port: int, name: str) -> tuple[int, bytes]:
    with client(port) as sock:
        request = get("front.test", port, f"/{name}", absolute=False)
        return ask(sock, request.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer theirs\r\n\r\n"))


GRANTS = [grant(WORKING_GROUP, "Backend"), grant(OURS, "Backend")]


def test_the_key_of_every_published_spelling_is_injected_and_rotates(
    dns: NameServer, pki: Pki, vendor: Vendor, tmp_path: Path
):
    port = free_port()
    objects, rules = published(vendor.origin.port)
    every = world(port, dns, pki, "sk-one", *objects, *GRANTS, rules=rules)
    with GatewayProcess(tmp_path / "gw", every) as gateway:
        for name, form in FORMS.items():
            vendor.seen.clear()
            assert fetch(port, name) == (200, b"ok"), name
            assert vendor.seen == [form[4].removesuffix("T") + "sk-one"], name
        status, text = gateway.admin(f"/apis/{WORKING_GROUP}/v1alpha1/namespaces/agents/backends/bare")
        assert status == 200
        shown = json.loads(text)
        assert shown["spec"]["extensions"] == [FORMS["bare"][3]]
        assert {each["type"]: each["status"] for each in conditions_of(shown["status"])} == {
            "Accepted": "True",
            "ResolvedRefs": "True",
        }
        gateway.replace(world(port, dns, pki, "sk-two", *objects, *GRANTS, rules=rules))
        gateway.wait_for_metric("egress_config_generation", 2)
        for name in FORMS:
            vendor.seen.clear()
            assert fetch(port, name) == (200, b"ok"), name
            assert vendor.seen[0].endswith(" sk-two"), name
        # Without its grant the key is gone with the next reload.
        gateway.replace(world(port, dns, pki, "sk-two", *objects, grant(OURS, "Backend"), rules=rules))
        gateway.wait_for_metric("egress_config_generation", 3)
        vendor.seen.clear()
        for name in ("bare", "qualified"):
            status, body = fetch(port, name)
            assert (status, json.loads(body)["error"]["reason"]) == (503, "credential_missing")
        assert fetch(port, "ours") == fetch(port, "raw") == (200, b"ok")
        assert vendor.seen == ["Token sk-two", "Bearer sk-two"]
        _, text = gateway.admin(f"/apis/{WORKING_GROUP}/v1alpha1/namespaces/agents/backends/bare")
        refs = {each["type"]: each for each in conditions_of(json.loads(text)["status"])}["ResolvedRefs"]
        assert (refs["status"], refs["reason"]) == ("False", "RefNotPermitted")
        gateway.wait_for_diagnostics("RefNotPermitted")
        assert "sk-" not in gateway.stderr


def test_a_published_rate_holds_over_workers_and_reloads(dns: NameServer, pki: Pki, vendor: Vendor, tmp_path: Path):
    port = free_port()
    extension = {
        "name": "rate-qos", "type": f"{WORKING_GROUP}/QoSController:v1", "phase": "backend-request", "priority": 30,
        "failOpen": True, "config": {"requestsPerHour": 4},
    }  # fmt: skip
    made = backend(WORKING_GROUP, "Backend", "v1alpha1", "slow", vendor.origin.port, [extension])
    objects = world(port, dns, pki, "t", made, rules=[rule("slow", WORKING_GROUP)])
    with GatewayProcess(tmp_path / "gw", objects, arguments=["--workers", "2"]) as gateway:
        assert [fetch(port, "slow")[0] for _ in range(3)] == [200, 200, 200]
        gateway.replace([*objects, m.config_map("another", {"a": "b"})])
        gateway.wait_for_metric("egress_config_generation", 2)
        assert [fetch(port, "slow")[0] for _ in range(3)] == [200, 429, 429]
        with client(port) as sock:
            sock.sendall(get("front.test", port, "/slow", absolute=False))
            head, body = read_message(sock)
        assert b"retry-after: " in head.lower()
        error = json.loads(body)["error"]
        assert (error["reason"], error["rule"]) == ("request_rate", "Backend agents/slow")
        assert "more than 4 requests in an hour" in error["message"]
        assert gateway.wait_for_record(status=429)["reason"] == "request_rate"
        gateway.wait_for_metric("egress_denied_total", 3)
        assert gateway.metric("egress_denied_total", reason="request_rate") == 3


def verb(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "egressproxy", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_an_unknown_type_closes_its_backend_and_everything_says_so(
    dns: NameServer, pki: Pki, vendor: Vendor, tmp_path: Path
):
    port = free_port()
    scan = {"name": "scan", "type": "vendor.example/CredentialInjektor:v1", "config": {"any": {"thing": None}}}
    closed = backend(WORKING_GROUP, "Backend", "v1alpha1", "closed", vendor.origin.port, [scan])
    opened = backend(WORKING_GROUP, "Backend", "v1alpha1", "opened", vendor.origin.port, [{**scan, "failOpen": True}])
    rules = [rule("closed", WORKING_GROUP), rule("opened", WORKING_GROUP)]
    objects = world(port, dns, pki, "t", opened, rules=rules)
    state = tmp_path / "state"
    arguments = ["--state-dir", str(state), "--api-writes"]
    with GatewayProcess(tmp_path / "gw", objects, arguments=arguments) as gateway:
        code, answer = Client(gateway).send(
            "POST", f"/apis/{WORKING_GROUP}/v1alpha1/namespaces/agents/backends", closed
        )[:2]
        assert code == 201, answer
        _, text = gateway.admin(f"/apis/{WORKING_GROUP}/v1alpha1/namespaces/agents/backends/closed")
        shown = json.loads(text)
        degraded = {each["type"]: each for each in conditions_of(shown["status"])}["Degraded"]
        assert (degraded["status"], degraded["reason"]) == ("True", "UnsupportedExtensionType")
        assert "extension scan" in degraded["message"]
        assert "vendor.example/CredentialInjektor:v1" in degraded["message"]
        assert "did you mean egressproxy.io/CredentialInjector:v1?" in degraded["message"]
        vendor.seen.clear()
        status, body = fetch(port, "closed")
        assert (status, json.loads(body)["error"]["reason"]) == (500, "unknown_extension")
        assert "extension scan (vendor.example/CredentialInjektor:v1)" in json.loads(body)["error"]["message"]
        assert vendor.seen == []
        assert fetch(port, "opened") == (200, b"ok")
        assert vendor.seen == ["Bearer theirs"]
        assert gateway.wait_for_record(status=500)["reason"] == "unknown_extension"
        gateway.wait_for_diagnostics("UnsupportedExtensionType")
        admin = ("--admin", f"127.0.0.1:{gateway.admin_port}")
        code, text = verb("explain", "GET", f"http://front.test:{port}/closed", *admin)
        assert code != 0
        assert "extension scan (vendor.example/CredentialInjektor:v1)" in text
        code, text = verb("explain", "GET", f"http://front.test:{port}/opened", *admin)
        assert code == 0, text
        assert "left out: the type is not known, and failOpen is set" in text
        code, text = verb("get", "backends.gateway.networking.k8s.io", "opened", "-n", "agents", "-o", "yaml", *admin)
        assert code == 0, text
        assert yaml.safe_load(text)["spec"]["extensions"] == [{**scan, "failOpen": True}]
    folder = tmp_path / "written"
    folder.mkdir()
    m.write(folder / "all.yaml", [*objects, closed])
    _, text = verb("check", str(folder))
    assert "Backend agents/closed" in text
    assert (
        "spec.extensions[0].type: Degraded is True (UnsupportedExtensionType): extension scan has the unknown" in text
    )


def test_metrics_and_log_tell_backends_of_one_name_in_two_groups_apart(
    dns: NameServer, pki: Pki, vendor: Vendor, tmp_path: Path
):
    port = free_port()
    named = [backend(group, "Backend", "v1alpha1", "same", vendor.origin.port, []) for group in (OURS, WORKING_GROUP)]
    rules = [
        {
            "matches": [{"path": {"type": "PathPrefix", "value": f"/{group}"}}],
            "backendRefs": [{"group": group, "kind": "Backend", "name": "same"}],
        }
        for group in (OURS, WORKING_GROUP)
    ]
    theirs = f"agents/same (Backend.{WORKING_GROUP})"
    with GatewayProcess(tmp_path / "gw", world(port, dns, pki, "t", *named, rules=rules)) as gateway:
        for path in (OURS, WORKING_GROUP, WORKING_GROUP):
            assert fetch(port, path) == (200, b"ok")
        gateway.wait_for_record(path=f"/{WORKING_GROUP}", backend=theirs)
        gateway.wait_for_record(path=f"/{OURS}", backend="agents/same")
        assert gateway.metric("egress_requests_total", backend=theirs) == 2
        assert gateway.metric("egress_requests_total", backend="agents/same") == 1
        gateway.replace(world(port, dns, pki, "t", named[1], rules=rules[1:]))
        gateway.wait_for_metric("egress_config_generation", 2)
        assert fetch(port, WORKING_GROUP) == (200, b"ok")
        gateway.wait_for_record(path=f"/{WORKING_GROUP}", backend="agents/same")
