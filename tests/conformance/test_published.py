"""Every published form of a Backend, with its Secret, CA, ReferenceGrant, Gateway and route: checked, served, shown.

One program for all of them. The origin is on loopback, on the ports that the forms name, with TLS of a CA of its own.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from egressproxy.cli.main import main
from tests.conformance.published import FORMS, HOST, INJECTOR, Form, clear, second
from tests.support import manifests as m
from tests.support.http2 import Http2Server
from tests.support.kubectl import find_kubectl
from tests.support.manifests import conditions_of
from tests.support.name_server import NameServer
from tests.support.net import can_bind_low_ports, free_port, loopback_address
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess

pytestmark = pytest.mark.timeout(180)
GRANT = "gateway.networking.k8s.io/v1beta1"
PROTOTYPE_GROUP = "ainetworking.prototype.x-k8s.io"
KEY = "sk-of-the-platform"
SERVED = [form for form in FORMS if form.refused is None]
REFUSED = [form for form in FORMS if form.refused is not None]
#: One of each shape: a write takes a while.
APPLIED = [
    form for form in FORMS if form.name in ("first-simple", "second-simple", "prototype-whole", "draft", "gep-4894")
]
#: And each kind in each group.
OF_EACH_KIND = [
    form for form in FORMS if form in APPLIED or form.name in ("renamed-simple", "prototype-raw-config", "xbackend")
]
#: Credentials never go in plain text, unless the manifest says so.
STREAM = Form("stream", clear(second("Simple")))
IN_CLEAR = Form("key-in-clear", second("INSECURE_DISABLE", number=8080), 8080, is_tls=False)


def by_name(form: Form) -> str:
    return form.name


@dataclass
class Origin:
    """Answers each request with what it saw, on port 8080 in plain text, on 80 and 443 inside TLS."""

    address: str
    pki: Pki
    seen: list[dict[str, Any]] = field(default_factory=list)
    servers: list[http.server.ThreadingHTTPServer] = field(default_factory=list)

    def start(self) -> Origin:
        context = self.pki.server_context(HOST)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["h2", "http/1.1"])
        context.load_verify_locations(cadata=self.pki.ca_pem)
        for port in (80, 8080, 443):
            server = http.server.ThreadingHTTPServer((self.address, port), self._handler(), bind_and_activate=True)
            server.daemon_threads = True
            if port != 8080:
                server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name=f"origin {port}").start()
            self.servers.append(server)
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        seen = self.seen

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                sock = self.connection
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                    is_http2 = sock.selected_alpn_protocol() == "h2"
                else:
                    is_http2 = sock.recv(4, socket.MSG_PEEK) == b"PRI "
                if is_http2:
                    self.speak_http2()
                else:
                    super().handle()

            def speak_http2(self) -> None:
                server, answered = Http2Server(), set[int]()
                self.connection.sendall(server.outgoing())
                while piece := self.connection.recv(65536):
                    server.take(piece)
                    for stream, call in server.calls.items():
                        if call.is_whole and stream not in answered:
                            answered.add(stream)
                            fields = {name.decode(): value.decode() for name, value in call.headers.items()}
                            fields["host"] = fields[":authority"]
                            server.respond(stream, [(b":status", b"200")], self.look(fields[":path"], fields))
                    self.connection.sendall(server.outgoing())

            def do_GET(self) -> None:
                body = self.look(self.path, {name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def look(self, path: str, fields: dict[str, str]) -> bytes:
                subject = self.connection.getpeercert() or {} if isinstance(self.connection, ssl.SSLSocket) else {}
                names = dict(part[0] for part in subject.get("subject", ()))  # type: ignore[union-attr,misc]
                found = {
                    "path": path,
                    "port": self.server.server_address[1],
                    "is_tls": isinstance(self.connection, ssl.SSLSocket),
                    "is_http2": ":authority" in fields,
                    "client": names.get("commonName", ""),
                    "host": fields.get("host", ""),
                    "authorization": fields.get("authorization", ""),
                }
                seen.append(found)
                return json.dumps(found).encode()

            def log_message(self, *_: Any) -> None:
                """Nothing is written."""

        return Handler


def secret(name: str, namespace: str, data: dict[str, bytes]) -> m.Manifest:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return m.manifest("v1", "Secret", name, namespace, data=encoded)


@dataclass
class World:
    port: int
    tcp_port: int
    tls_port: int
    dns: NameServer
    origin: Origin
    pki: Pki

    def backend(self, form: Form) -> m.Manifest:
        made: m.Manifest = yaml.safe_load(form.text)
        made["metadata"]["namespace"] = form.name
        return made

    def around(self) -> list[m.Manifest]:
        """The Gateway, its policy and the platform's key."""
        everybody = {"allowedRoutes": {"namespaces": {"from": "All"}}}
        listeners = [
            m.http_listener(self.port, **everybody),
            {"name": "tcp", "port": self.tcp_port, "protocol": "TCP", **everybody},
            {"name": "tls", "port": self.tls_port, "protocol": "TLS", "tls": {"mode": "Passthrough"}, **everybody},
        ]
        return [
            m.gateway(*listeners, namespace="gateways"),
            m.policy(dns=self.dns.address, cidrs=["127.0.0.0/8"], namespace="gateways"),
            secret("models-api-key", "platform-keys", {"token": KEY.encode()}),
        ]

    def objects(self, form: Form) -> list[m.Manifest]:
        """What belongs to one form: the Backend, its certificates, the grant for the key, and a route by its name."""
        made = self.backend(form)
        group, kind = made["apiVersion"].partition("/")[0], made["kind"]
        client = self.pki.issue("client.test", cn="egress-client")
        pair = {"tls.crt": chain(client).encode(), "tls.key": client.private_key_pem.bytes()}
        grant = {
            "from": [{"group": group, "kind": kind, "namespace": form.name}],
            "to": [{"group": "", "kind": "Secret", "name": "models-api-key"}],
        }
        ref = {"group": group, "kind": form.called or kind, "name": made["metadata"]["name"]}
        if group == PROTOTYPE_GROUP:  # as the routes of its samples do
            ref["port"] = form.port
        route = {
            "parentRefs": [{"name": "gw", "namespace": "gateways"}],
            "hostnames": [f"{form.name}.test"],
            "rules": [{"backendRefs": [ref]}],
        }
        pod = m.manifest("v1", "Pod", "models", form.name, status={"podIP": self.origin.address})
        pod["metadata"]["labels"] = dict(form.labels)
        return [
            made,
            *([pod] if form.labels else []),
            m.config_map("vendor-ca", {"ca.crt": self.pki.ca_pem}, namespace=form.name),
            secret("egress-client-cert", form.name, pair),
            m.manifest(GRANT, "ReferenceGrant", form.name, "platform-keys", spec=grant),
            m.manifest("gateway.networking.k8s.io/v1", "HTTPRoute", "models", form.name, spec=route),
        ]

    def streams(self, form: Form) -> list[m.Manifest]:
        """A TCPRoute and a TLSRoute to the Backend of a form."""
        made = self.backend(form)
        ref = {"group": made["apiVersion"].partition("/")[0], "kind": made["kind"], "name": made["metadata"]["name"]}
        rules = [{"backendRefs": [ref]}]
        parent = {"name": "gw", "namespace": "gateways"}
        tcp = {"parentRefs": [{**parent, "sectionName": "tcp"}], "rules": rules}
        tls = {"parentRefs": [{**parent, "sectionName": "tls"}], "hostnames": [HOST], "rules": rules}
        version = "gateway.networking.k8s.io/v1alpha2"
        return [
            m.manifest(version, "TCPRoute", "stream", form.name, spec=tcp),
            m.manifest(version, "TLSRoute", "stream", form.name, spec=tls),
        ]

    def ask(self, form: Form, path: str = "/v1") -> tuple[int, dict[str, Any]]:
        """The status, and what the origin saw ({} where it saw nothing)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path, headers={"Host": f"{form.name}.test"})
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if answer.status == 200 else {}
        finally:
            connection.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if not can_bind_low_ports():
        pytest.skip("the forms name ports 80 and 443")
    pki = Pki()
    origin = Origin(loopback_address(), pki).start()
    try:
        with NameServer({HOST: [origin.address]}) as dns:
            yield World(free_port(), free_port(), free_port(), dns, origin, pki)
    finally:
        origin.stop()


@pytest.fixture(scope="module")
def gateway(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("published")
    roots = folder / "roots.pem"
    roots.write_text(world.pki.ca_pem)
    objects = world.around() + [each for form in (*FORMS, IN_CLEAR, STREAM) for each in world.objects(form)]
    objects += world.streams(STREAM)
    environment = {"SSL_CERT_FILE": str(roots)}  # what the system trusts
    writes = ["--state-dir", str(folder / "state"), "--api-writes"]
    with GatewayProcess(folder / "gw", objects, environment=environment, arguments=writes) as process:
        yield process


def plural(manifest: m.Manifest) -> str:
    return f"/apis/{manifest['apiVersion']}/namespaces/{manifest['metadata']['namespace']}/{manifest['kind'].lower()}s"


def shown(gateway: GatewayProcess, manifest: m.Manifest) -> dict[str, Any]:
    status, text = gateway.admin(f"{plural(manifest)}/{manifest['metadata']['name']}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in conditions_of(found["status"])}


@pytest.mark.parametrize("form", FORMS, ids=by_name)
def test_a_published_form_passes_check(world: World, form: Form, tmp_path: Path):
    m.write(tmp_path / "all.yaml", [*world.around(), *world.objects(form)])
    runner = CliRunner()
    result = runner.invoke(main, ["check", str(tmp_path)])
    if form.refused is None:
        assert result.exit_code == 0, result.output
        strict = runner.invoke(main, ["check", str(tmp_path), "--strict"])
        assert strict.exit_code == (1 if "Insecure" in result.output else 0), strict.output
        return
    assert result.exit_code == 1  # it would not be served as written
    assert form.refused[1] in result.output
    assert runner.invoke(main, ["check", str(tmp_path), "--allow-unserved"]).exit_code == 0


@pytest.mark.parametrize("form", SERVED, ids=by_name)
def test_a_published_form_is_served(world: World, gateway: GatewayProcess, form: Form):
    status, seen = world.ask(form)
    assert status == 200
    assert (seen["port"], seen["is_tls"], seen["client"], seen["host"].partition(":")[0]) == (
        form.port, form.is_tls, form.client, form.host,
    )  # fmt: skip
    assert form.is_http2 is None or seen["is_http2"] is form.is_http2
    assert seen["authorization"] == (f"Bearer {KEY}" if form.has_key else "")
    found = conditions(shown(gateway, world.backend(form)))
    assert found["Accepted"][0] == found["ResolvedRefs"][0] == "True"
    assert (HOST if form.host == HOST else "app=models") in found["Accepted"][2]
    for kind, wanted in form.conditions:
        assert found[kind][0] == wanted


@pytest.mark.parametrize("form", REFUSED, ids=by_name)
def test_a_form_that_cannot_be_served_is_a_condition_and_its_rule_is_closed(
    world: World, gateway: GatewayProcess, form: Form
):
    assert form.refused is not None
    path = f"/{form.name}"
    status, _ = world.ask(form, path)
    assert status >= 500
    assert not [each for each in world.origin.seen if each["path"] == path]
    kind, reason = form.refused
    found = conditions(shown(gateway, world.backend(form)))
    assert found[kind][:2] == ("True" if kind == "Degraded" else "False", reason)
    for kind, wanted in form.conditions:
        assert found[kind][0] == wanted


def test_a_key_does_not_go_out_in_plain_text(world: World, gateway: GatewayProcess):
    assert INJECTOR.strip() in IN_CLEAR.text
    status, _ = world.ask(IN_CLEAR, "/in-clear")
    assert status == 403
    assert not [each for each in world.origin.seen if each["path"] == "/in-clear"]


def test_protocol_tls_is_a_stream_for_a_tcp_route_and_a_tls_route(world: World, gateway: GatewayProcess):
    """From a TCP listener it goes on in TLS; what is TLS already passes as it is."""
    plain = http.client.HTTPConnection("127.0.0.1", world.tcp_port, timeout=20)
    passed = http.client.HTTPSConnection("127.0.0.1", world.tls_port, timeout=20)
    passed.sock = world.pki.client_context().wrap_socket(
        socket.create_connection(("127.0.0.1", world.tls_port), 20), server_hostname=HOST
    )
    for connection in (plain, passed):
        connection.request("GET", "/stream", headers={"Host": "of.the.client"})
        seen = json.loads(connection.getresponse().read())
        connection.close()
        assert (seen["is_tls"], seen["host"], seen["authorization"]) == (True, "of.the.client", "")


@pytest.mark.parametrize("form", FORMS, ids=by_name)
def test_a_form_shows_itself_as_it_was_written(world: World, gateway: GatewayProcess, form: Form):
    written = world.backend(form)
    found = shown(gateway, written)
    assert (found["spec"], found["apiVersion"], found["kind"]) == (
        written["spec"], written["apiVersion"], written["kind"],
    )  # fmt: skip


@pytest.mark.parametrize("form", APPLIED, ids=by_name)
def test_a_form_is_applied_by_the_server_and_shows_itself(world: World, gateway: GatewayProcess, form: Form):
    written = world.backend(form)
    written["metadata"]["name"] = f"applied-{form.name}"
    path = f"{plural(written)}/{written['metadata']['name']}?fieldManager=test"
    for _ in range(2):
        connection = http.client.HTTPConnection("127.0.0.1", gateway.admin_port, timeout=60)
        connection.request("PATCH", path, yaml.safe_dump(written), {"Content-Type": "application/apply-patch+yaml"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status in (200, 201), text
    assert shown(gateway, written)["spec"] == written["spec"]


def test_kubectl_applies_each_shape_of_each_kind_and_finds_nothing_changed(
    world: World, gateway: GatewayProcess, tmp_path: Path
):
    """In one file, as the kinds and their groups come: created, as it was written, without a difference, deleted."""
    written = [world.backend(form) for form in OF_EACH_KIND]
    for form, manifest in zip(OF_EACH_KIND, written, strict=True):
        manifest["metadata"]["name"] = f"kubectl-{form.name}"
    path = tmp_path / "all.yaml"
    m.write(path, written)
    program = [find_kubectl(), "--server", f"http://127.0.0.1:{gateway.admin_port}"]
    environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": ""}

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            [*program, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert kubectl("apply", "-f", str(path)).count(" created\n") == len(OF_EACH_KIND)
    kubectl("diff", "-f", str(path))
    found = json.loads(kubectl("get", "-f", str(path), "-o", "json"))["items"]
    assert [(each["apiVersion"], each["kind"], each["spec"]) for each in found] == [
        (each["apiVersion"], each["kind"], each["spec"]) for each in written
    ]
    assert kubectl("delete", "-f", str(path)).count(" deleted\n") == len(OF_EACH_KIND)
