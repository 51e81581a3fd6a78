"""What every client test runs in: names, origins, and one gateway between them and the client.

Three ways lead through the gateway (`Way`): a forward proxy for http://, a tunnel through it for https://, and a base
URL on the reverse listener, from where the gateway originates TLS. Three things can come of it (`Outcome`): the origin
answers, policy denies, or the origin is down.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tests.support import manifests
from tests.support.name_server import NameServer
from tests.support.net import free_port, refusing_address
from tests.support.origins import ai, basic, git, packages, s3
from tests.support.origins.server import OriginServer
from tests.support.pki import Pki, chain
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S

#: Skips (or fails) the test where a client is not installed.
Require = Callable[[str], None]

ORIGIN, DENIED, DOWN, PRIVATE = "origin.egress.test", "denied.egress.test", "down.egress.test", "private.egress.test"
#: An allowed name that one test alone uses, so that no connection to it is open yet.
FRESH = "fresh.egress.test"
PROVIDER_KEY = "sk-the-gateways-own-key"


class Way(str, Enum):
    HTTP = "http"  # forward: absolute-form requests
    TLS = "tls"  # forward: CONNECT
    BASE = "base"  # reverse: a base URL


class Outcome(str, Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a client program ended: its exit status and everything that it printed."""

    status: int
    output: str


class World:
    """Starts everything in `folder`; `close` ends it."""

    #: Names that lead to the origin, too.
    more_names: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder)
        (folder / "git").mkdir()
        (folder / "home").mkdir()
        self.home = folder / "home"
        tables = [
            basic.routes(),
            git.routes(git.make_repository(folder / "git")),
            packages.pypi_routes(),
            packages.npm_routes(),
            s3.routes(),
            ai.routes(),
        ]
        self.origin = OriginServer(tables, self.pki.server_context(ORIGIN, *self.more_names)).start()
        names = dict.fromkeys((ORIGIN, DENIED, FRESH, *self.more_names), self.origin.address) | {
            DOWN: refusing_address()
        }
        # A name of the outside that resolves to an address of the inside.
        self.dns = NameServer({name: [address] for name, address in names.items()} | {PRIVATE: ["10.255.0.1"]}).start()
        self.forward_port, self.reverse_port = free_port(), free_port()
        self.forward_tls_port, self.reverse_tls_port = free_port(), free_port()
        self.socks_port = free_port()
        self.gateway = GatewayProcess(folder / "gateway", self.manifests())
        self.add_files(self.gateway.config)
        self.gateway.start()

    def close(self) -> None:
        self.gateway.stop()
        self.origin.stop()
        self.dns.stop()

    def add_files(self, folder: Path) -> None:
        """Put files beside the manifests."""

    def manifests(self) -> list[manifests.Manifest]:
        """On the reverse listener: /allowed, /denied and /down to three backends, /keyed to one with a credential.

        On the forward one a TLSRoute names the origin, for clients that open tunnels for http:// URLs, too.
        """
        injector = {
            "name": "key",
            "type": "egressproxy.io/CredentialInjector:v1",
            "phase": "backend-request",
            "config": {
                "secretRef": {"name": "provider", "key": "token"},
                "header": "Authorization",
                "template": "Bearer {}",
            },
        }
        port = self.origin.tls_port
        hosts = {"allowed": ORIGIN, "denied": PRIVATE, "down": DOWN}
        backends = [manifests.backend(name, host, port, tls=True, ca="ca") for name, host in hosts.items()]
        backends.append(manifests.backend("keyed", ORIGIN, port, tls=True, ca="ca", extensions=[injector]))
        rules = [manifests.prefix_rule(f"/{name}", name, rewrite="/") for name in [*hosts, "keyed"]]
        rules.append(manifests.prefix_rule("/npm", "allowed"))  # npm keeps the path of a tarball's URL
        leaf = self.pki.issue("127.0.0.1")
        anywhere = manifests.backend("anywhere", "-", port)
        anywhere["spec"]["destination"] = {"type": "Dynamic"}
        pair = {"tls.crt": chain(leaf), "tls.key": leaf.private_key_pem.bytes().decode()}
        tls = {"mode": "Terminate", "certificateRefs": [{"name": "listener"}]}
        return [
            manifests.gateway(
                manifests.forward_listener(self.forward_port),
                manifests.http_listener(self.reverse_port),
                manifests.forward_listener(self.forward_tls_port, "forward-tls", tls=tls),
                {"name": "https", "port": self.reverse_tls_port, "protocol": "HTTPS", "tls": tls},
                {"name": "socks", "port": self.socks_port, "protocol": "egressproxy.io/socks5"},
            ),
            manifests.secret("listener", pair, kind="kubernetes.io/tls"),
            manifests.policy([ORIGIN, DOWN, FRESH], dns=self.dns.address, cidrs=["127.0.0.0/8"]),
            manifests.config_map("ca", {"ca.crt": self.pki.ca_pem}),
            manifests.secret("provider", {"token": PROVIDER_KEY}),
            *backends,
            anywhere,
            manifests.tls_route("tunnels", "anywhere", hostnames=[ORIGIN], section="forward"),
            manifests.http_route("base", *rules, section="http"),
            manifests.http_route("base-tls", *rules, section="https"),
        ]

    # --- the client's side --------------------------------------------------------------------------------------

    def url(self, way: Way, outcome: Outcome, path: str) -> str:
        if way is Way.BASE:
            prefix = "" if path.startswith("/npm") and outcome is Outcome.ALLOWED else f"/{outcome.value}"
            return f"http://127.0.0.1:{self.reverse_port}{prefix}{path}"
        host = {Outcome.ALLOWED: ORIGIN, Outcome.DENIED: DENIED, Outcome.DOWN: DOWN}[outcome]
        return self.origin.url(host, path, tls=way is Way.TLS)

    def environment(self, way: Way, **more: str) -> dict[str, str]:
        """What a client finds in its environment: PATH, and every variable that names our proxy or our authority."""
        ca = str(self.pki.ca_file)
        trust = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
                 "AWS_CA_BUNDLE", "PIP_CERT")  # fmt: skip
        found = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8"} | dict.fromkeys(trust, ca)
        if way is not Way.BASE:
            proxy = f"http://127.0.0.1:{self.forward_port}"
            # Both spellings, as docs/forward-proxy.md says: for http:// curl and wget read the lower-case one alone.
            found |= dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), proxy)
        return found | more

    def run(self, command: list[str], way: Way, *, folder: Path | None = None, **more: str) -> Ended:
        """Run a client program to its end; its output and its errors come back as one text."""
        done = subprocess.run(
            command,
            cwd=folder or self.home,
            env=self.environment(way, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=WAIT_S,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode("utf-8", "replace"))

    # --- the gateway's side -------------------------------------------------------------------------------------

    def expected_record(self, way: Way, outcome: Outcome) -> dict[str, Any]:
        """The fields by which the access log has to tell the story."""
        status, reason = {
            Outcome.ALLOWED: (200, "-"),
            Outcome.DENIED: (403, "resolved_denied" if way is Way.BASE else "destination_not_allowed"),
            Outcome.DOWN: (503, "upstream_refused"),
        }[outcome]
        if way is Way.BASE:
            return {"status": status, "reason": reason, "listener": "http", "backend": f"agents/{outcome.value}"}
        host = {Outcome.ALLOWED: ORIGIN, Outcome.DENIED: DENIED, Outcome.DOWN: DOWN}[outcome]
        port = self.origin.tls_port if way is Way.TLS else self.origin.plain_port
        return {"status": status, "reason": reason, "listener": "forward", "authority": f"{host}:{port}"}

    def websocket_status(self, way: Way) -> int:
        """101 where the gateway sees the upgrade; 200 where it is inside of an opaque tunnel."""
        is_opaque = way is Way.TLS or (way is Way.HTTP and self.origin.plain_port != 80)
        return 200 if is_opaque else 101

    def denial(self, way: Way) -> str:
        """The sentence with which the gateway refuses."""
        if way is Way.BASE:
            return f"{PRIVATE}:{self.origin.tls_port} resolves to an address that policy does not allow (private)"
        return f"{DENIED} is not allowed by policy agents/default"
