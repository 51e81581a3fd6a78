"""Suite: the real program beside echoing pods, asked by its admin API and through its sockets."""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance import objects as o
from tests.conformance.echo import H2C_PORT, HTTP_PORT, TLS_PORT, Pod
from tests.support import manifests as m
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

CONTROLLER = "egressproxy.io/gateway-controller"
SITES = (
    "example.org", "second-example.org", "unknown-example.org", "fourth-example.wildcard.org", "*.wildcard.org",
    "abc.example.com", "other.example.com", "*.example.com", "*.example.org",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What came back: the echo is None where no pod answered. The status of a call of gRPC is gRPC's: 0 is OK."""

    status: int
    fields: tuple[tuple[str, str], ...]
    body: str
    echo: dict[str, Any] | None

    def get(self, name: str) -> str | None:
        """The values of a field, joined as one."""
        found = [value for key, value in self.fields if key.lower() == name.lower()]
        return ", ".join(found) if found else None

    @property
    def who(self) -> str | int:
        """The Service that answered, else the status."""
        return self.echo["service"] if self.echo is not None and self.status in (0, 200) else self.status

    def sent(self, name: str) -> str | None:
        """What the pod saw of a field."""
        assert self.echo is not None, f"no pod answered, but {self.status} {self.body}"
        values = self.echo["headers"].get(name.lower())
        return ",".join(values) if values else None


class Suite:
    """`apply` replaces what is there besides the base set, and returns when it is in service."""

    def __init__(self, folder: Path) -> None:
        self.pki, self.other_pki, self.backend_pki = Pki(), Pki(), Pki()
        chosen = random.SystemRandom()
        self._net = f"127.{chosen.randrange(2, 250)}.{chosen.randrange(250)}"
        self._spare_net = f"127.{chosen.randrange(2, 250)}.{chosen.randrange(250)}"
        self._pods_net = f"127.{chosen.randrange(2, 250)}.{chosen.randrange(250)}"
        self.pods: list[Pod] = []
        self.log: list[dict[str, Any]] = []  # what all pods saw, in order
        self._objects: list[m.Manifest] = []
        self._addresses: dict[tuple[str, str], str] = {}  # as status says since the last change
        self._backends: list[m.Manifest] = []
        self._make_backends()
        self.process = GatewayProcess(folder, self._all(), arguments=["--bind", f"{self._net}.0/24"])

    def start(self) -> Suite:
        for pod in self.pods:
            pod.start()
        self.process.start()
        return self

    def stop(self) -> None:
        self.process.stop()
        for pod in self.pods:
            pod.stop()

    # --- what is configured ---------------------------------------------------------------------------------------

    def apply(self, *objects: m.Manifest) -> None:
        self._objects = list(objects)
        self._addresses.clear()
        before = self.process.metric("egress_config_generation")
        refused = self.process.metric("egress_config_reloads_total", result="failure")
        self.process.replace(self._all())
        deadline = time.monotonic() + WAIT_S
        while self.process.metric("egress_config_generation") <= before:
            failed = self.process.metric("egress_config_reloads_total", result="failure")
            assert failed == refused, f"refused:\n{self.process.stderr[-3000:]}"
            assert time.monotonic() < deadline, "no reload"
            time.sleep(0.02)

    def change(self, *objects: m.Manifest) -> None:
        """Replace the objects of these names, or add them."""
        key = lambda each: (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])  # noqa: E731
        new = {key(each) for each in objects}
        self.apply(*(each for each in self._objects if key(each) not in new), *objects)

    @property
    def spare_address(self) -> str:
        """An address that no Gateway has."""
        return f"{self._spare_net}.1"

    def pods_of(self, service: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.service == service]

    def _all(self) -> list[m.Manifest]:
        return [*self._base(), *self._backends, *self._objects]

    def _base(self) -> list[m.Manifest]:
        return [
            o.namespace(o.INFRA, **{"gateway-conformance": "infra"}),
            o.namespace(o.APP, **{"gateway-conformance": "backend"}),
            o.namespace(o.WEB, **{"gateway-conformance": "backend"}),
            o.gateway("same-namespace", o.http()),
            o.gateway("all-namespaces", o.http(routes="All")),
            o.gateway("backend-namespaces", o.http(routes="gateway-conformance=backend")),
            o.gateway(
                "same-namespace-with-https-listener", o.https(), o.https("with-hostname", hostname="second-example.org")
            ),
            *self._certificates,
        ]

    def _make_backends(self) -> None:
        leaf = self.pki.issue(*SITES)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.pki.ca_pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["h2", "http/1.1"])
        shown = self.backend_pki.identified(
            "abc.example.com", "other.example.com", "spiffe://abc.example.com/test-identity"
        )
        with tempfile.NamedTemporaryFile() as file:
            file.write(shown.chain_pem.encode() + shown.key_pem.reveal())
            file.flush()
            context.load_cert_chain(file.name)
        data = {"tls.crt": chain(leaf), "tls.key": leaf.private_key_pem.bytes().decode()}
        self._certificates = [
            m.secret("site", data, namespace=ns, kind="kubernetes.io/tls") for ns in (o.INFRA, o.APP, o.WEB)
        ]
        self._certificates += [
            m.config_map("backend-ca", {"ca.crt": self.backend_pki.ca_pem}, namespace=o.INFRA),
            m.config_map("wrong-ca", {"ca.crt": self.other_pki.ca_pem}, namespace=o.INFRA),
            m.config_map("malformed-ca", {"ca.crt": "no certificate"}, namespace=o.INFRA),
            m.config_map("client-ca", {"ca.crt": self.pki.ca_pem}, namespace=o.INFRA),
        ]
        plain = [
            ("infra-backend-v1", o.INFRA), ("infra-backend-v2", o.INFRA), ("infra-backend-v3", o.INFRA),
            ("app-backend-v1", o.APP), ("app-backend-v2", o.APP), ("web-backend", o.WEB),
        ]  # fmt: skip
        for name, ns in plain:
            ports: list[m.Manifest] = [{"port": 8080, "targetPort": HTTP_PORT, "protocol": "TCP"}]
            if name == "infra-backend-v1":
                ports = [
                    {"name": "first-port", **ports[0]},
                    {"name": "second-port", "port": 8081, "targetPort": H2C_PORT, "appProtocol": "kubernetes.io/h2c"},
                    {"name": "third-port", "port": 8082, "targetPort": HTTP_PORT, "appProtocol": "kubernetes.io/ws"},
                ]
            self._add(name, ns, ports, [self._pod(name, ns, number, h2c=len(ports) > 1) for number in (1, 2)])
        calls: list[m.Manifest] = [{"port": 8080, "targetPort": HTTP_PORT, "appProtocol": "kubernetes.io/h2c"}]
        for number in (1, 2, 3):
            name = f"grpc-infra-backend-v{number}"
            self._add(name, o.INFRA, calls, [self._pod(name, o.INFRA, each) for each in (1, 2)])
        secured: list[m.Manifest] = [{"name": "https", "port": 443, "targetPort": TLS_PORT, "appProtocol": "HTTPS"}]
        self._add("tls-backend", o.INFRA, secured, [self._pod("tls-backend", o.INFRA, 1, context)])
        self._add("grpc-tls", o.INFRA, secured, [self._pod("grpc-tls", o.INFRA, 1, context)])
        again = [secured[0] | {"name": f"https-{number}", "port": port} for number, port in ((1, 443), (2, 8443))]
        self._add("two-ports", o.INFRA, again, [self._pod("two-ports", o.INFRA, 1, context)])
        half = [self._pod("half-broken", o.INFRA, 1), self._pod("half-broken", o.INFRA, 2)]
        half[0].broken = True
        self._add("half-broken", o.INFRA, [{"port": 8080, "targetPort": HTTP_PORT}], half)
        self._add("nobody", o.INFRA, [{"port": 8080, "targetPort": HTTP_PORT}], [])

    def _pod(self, name: str, ns: str, number: int, context: ssl.SSLContext | None = None, *, h2c: bool = False) -> Pod:
        pod = Pod(f"{self._pods_net}.{len(self.pods) + 1}", name, ns, number, context, h2c, log=self.log)
        self.pods.append(pod)
        return pod

    def _add(self, name: str, ns: str, ports: list[m.Manifest], pods: list[Pod]) -> None:
        targets = [{"name": each.get("name", ""), "port": each["targetPort"], "protocol": "TCP"} for each in ports]
        self._backends += [o.service(name, ns, *ports), o.slices(name, ns, targets, [pod.address for pod in pods])]

    # --- what is said of it ---------------------------------------------------------------------------------------

    def get(self, kind: str, name: str, ns: str = o.INFRA) -> dict[str, Any]:
        path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{ns}/{kind.lower()}s/{name}".replace(
            "policys", "policies"
        )
        status, body = self.process.admin(path)
        assert status == 200, body
        return json.loads(body)  # type: ignore[no-any-return]

    def gateway(self, name: str, *expected: str, kind: str = "Gateway", ns: str = o.INFRA) -> dict[str, Any]:
        """The status of a Gateway (or ListenerSet), after its conditions were looked at."""
        found = self.get(kind, name, ns)
        status: dict[str, Any] = found["status"]
        check(status["conditions"], expected, found, name)
        return status

    def listener(
        self, name: str, section: str, *expected: str, kinds: Any = None, attached: int | None = None, **where: str
    ) -> None:
        found = self.get(where.get("kind", "Gateway"), name, where.get("ns", o.INFRA))
        (one,) = (each for each in found["status"]["listeners"] if each["name"] == section)
        check(one["conditions"], expected, found, f"{name}/{section}")
        if kinds is not None:
            supported = {each["kind"] for each in one["supportedKinds"]}
            assert set(kinds) <= supported, f"{name}/{section}: {supported}"
            assert kinds or not supported, f"{name}/{section}: {supported}"
        if attached is not None:
            assert one["attachedRoutes"] == attached, f"{name}/{section}: {one['attachedRoutes']} routes"

    def route(self, name: str, *expected: str, kind: str = "HTTPRoute", ns: str = o.INFRA, parent: int = 0) -> None:
        found = self.get(kind, name, ns)
        parents = found["status"]["parents"]
        assert [each["parentRef"]["name"] for each in parents] == [each["name"] for each in found["spec"]["parentRefs"]]
        assert all(each["controllerName"] == CONTROLLER for each in parents)
        check(parents[parent]["conditions"], expected, found, name)

    def policy(self, name: str, *expected: str, gateway: str = "same-namespace") -> None:
        """The conditions of a BackendTLSPolicy for a Gateway."""
        found = self.get("BackendTLSPolicy", name)
        ancestors = found.get("status", {}).get("ancestors", [])
        (one,) = (each for each in ancestors if each["ancestorRef"]["name"] == gateway)
        assert one["ancestorRef"]["namespace"] == o.INFRA
        assert one["controllerName"] == CONTROLLER
        check(one["conditions"], expected, found, name)

    # --- what it does ---------------------------------------------------------------------------------------------

    def address(self, gateway: str, ns: str = o.INFRA) -> str:
        if (gateway, ns) not in self._addresses:
            (one,) = self.get("Gateway", gateway, ns)["status"]["addresses"]
            self._addresses[gateway, ns] = str(one["value"])
        return self._addresses[gateway, ns]

    def ask(
        self,
        gateway: str,
        path: str = "/",
        host: str = "example.com",
        *,
        port: int = 0,
        method: str = "GET",
        body: bytes | None = None,
        sni: str = "",
        context: ssl.SSLContext | None = None,
        **fields: str,
    ) -> Answer:
        """Ask a Gateway, over TLS where `sni` is given. Raises OSError or http.client.HTTPException when cut off."""
        secured = bool(sni)
        connection = http.client.HTTPConnection(self.address(gateway), port or (443 if secured else 80), WAIT_S)
        connection.connect()
        try:
            if secured:
                connection.sock = (context or self.client()).wrap_socket(connection.sock, server_hostname=sni)
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", host)
            for name, value in fields.items():
                connection.putheader(name.replace("_", "-"), value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            got = connection.getresponse()
            text = got.read().decode()
        finally:
            connection.close()
        echo = json.loads(text) if text.startswith('{"pod"') else None
        return Answer(got.status, tuple(got.getheaders()), text, echo)

    def ask_many(self, gateway: str, path: str, count: int, host: str = "example.com") -> list[Answer]:
        """The same request, again and again on one connection."""
        connection = http.client.HTTPConnection(self.address(gateway), 80, WAIT_S)
        answers = []
        for _ in range(count):
            connection.request("GET", path, headers={"Host": host})
            got = connection.getresponse()
            text = got.read().decode()
            answers.append(Answer(got.status, (), text, json.loads(text) if text.startswith('{"pod"') else None))
        connection.close()
        return answers

    def client(self, pki: Pki | None = None, shows: Any = None) -> ssl.SSLContext:
        """A client's context; the names of certificates are not looked at."""
        context = ssl.create_default_context(cadata=(pki or self.pki).ca_pem)
        context.check_hostname = False
        if shows is not None:
            shows.configure_cert(context)
        return context

    def is_refused(self, gateway: str, *arguments: Any, **named: Any) -> bool:
        """Whether there is no answer at all."""
        try:
            self.ask(gateway, *arguments, **named)
        except (OSError, http.client.HTTPException):
            return True
        return False

    def is_dropped(self, gateway: str, sni: str, port: int = 443) -> bool:
        """Whether the connection of a client that begins TLS ends with FIN or RST, and without a word in TLS."""
        with socket.create_connection((self.address(gateway), port), WAIT_S) as sock:
            try:
                self.client().wrap_socket(sock, server_hostname=sni).close()
            except (ssl.SSLEOFError, ConnectionResetError):
                return True
            except ssl.SSLError:
                return False
        return False


def check(conditions: list[dict[str, Any]], expected: tuple[str, ...], owner: dict[str, Any], what: str) -> None:
    """Hold conditions against `Type=Status/Reason`, `Type=Status`, or `-Type` for one that must not be there."""
    generation = owner["metadata"]["generation"]
    stale = [each["type"] for each in conditions if each["observedGeneration"] != generation]
    assert not stale, f"{what}: {stale} of another generation"
    found = {each["type"]: f"{each['type']}={each['status']}/{each['reason']}" for each in conditions}
    for each in expected:
        kind = each.lstrip("-").partition("=")[0]
        if each.startswith("-"):
            assert kind not in found, f"{what}: {found[kind]}"
            continue
        got = found.get(kind, "nothing")
        assert got == each or ("/" not in each and got.startswith(f"{each}/")), f"{what}: {each} expected, {got} found"
