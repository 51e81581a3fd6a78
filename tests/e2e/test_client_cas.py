"""A CA for each client: made, listed and withdrawn through the admin API of the real process, with two workers."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from egressproxy.cli.main import main
from tests.e2e.world import ALLOW_LOOPBACK, Origin, ask, read_head
from tests.support import manifests as m
from tests.support.name_server import NameServer
from tests.support.net import free_port
from tests.support.pki import Pki
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

HOST = "api.origin.test"
#: The two sandboxes, and one whom nobody knows.
ONE, TWO, STRANGER = "127.0.0.2", "127.0.0.3", "127.0.0.4"
POLICY = "agents/default"


@dataclass
class World:
    gateway: GatewayProcess
    folder: Path
    authority: str
    forward: int
    socks: int

    def asks(self, *pairs: tuple[str, str], method: str = "POST", **headers: str) -> tuple[int, dict[str, Any]]:
        query = urllib.parse.urlencode(pairs)
        url = f"http://127.0.0.1:{self.gateway.admin_port}/intercept/cas?{query}"
        request = urllib.request.Request(url, method=method, headers={"X-Egressproxy": "test", **headers})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def makes(self, name: str, account: str, *more: tuple[str, str]) -> tuple[int, dict[str, Any]]:
        subject = ("namespace", "agents"), ("serviceAccount", account)
        return self.asks(("policy", POLICY), ("new", name), *subject, *more)

    def cli(self, *arguments: str) -> tuple[int, str]:
        ended = CliRunner().invoke(main, ["ca", *arguments, "--admin", f"127.0.0.1:{self.gateway.admin_port}"])
        return ended.exit_code, ended.output

    def curl(self, client: str, ca: str, *options: str, socks: bool = False) -> subprocess.CompletedProcess[str]:
        """A client at this address that trusts the CA of this name alone."""
        proxy = f"socks5h://127.0.0.1:{self.socks}" if socks else f"http://127.0.0.1:{self.forward}"
        return subprocess.run(
            ["curl", "--silent", "--show-error", "--max-time", "20", "--noproxy", "", "--interface", client,
             "--proxy", proxy, "--cacert", str(self.folder / f"{ca}.crt"), *options, f"https://{self.authority}/"],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    def tls(self, client: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        """Python's ssl in a tunnel."""
        sock = socket.create_connection(("127.0.0.1", self.forward), WAIT_S, source_address=(client, 0))
        sock.sendall(f"CONNECT {self.authority} HTTP/1.1\r\nHost: {self.authority}\r\n\r\n".encode())
        head = read_head(sock)
        if not head.startswith(b"HTTP/1.1 200 "):
            sock.close()
            raise PermissionError(head)
        return context.wrap_socket(sock, server_hostname=HOST, session=session)

    def trusting(self, *cas: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata="".join((self.folder / f"{ca}.crt").read_text() for ca in cas))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, pki = tmp_path_factory.mktemp("cas"), Pki()
    forward, socks = free_port(), free_port()
    with NameServer({"*": ["127.0.0.1"]}) as dns, Origin(context=pki.server_context(HOST)) as origin:
        policy = m.policy(
            [HOST], dns=dns.address, cidrs=ALLOW_LOOPBACK,
            tls={"caBundleRefs": [{"kind": "ConfigMap", "name": "roots"}]},
            identity={"address": {"clients": [
                {"cidrs": [f"{ONE}/32"], "namespace": "agents", "serviceAccount": "one"},
                {"cidrs": [f"{TWO}/32"], "namespace": "agents", "serviceAccount": "two"},
            ]}},
            intercept={"hostnames": ["*.origin.test"], "issuing": {"maxLifetime": "48h", "maxCount": 3}},
        )  # fmt: skip
        listeners = m.forward_listener(forward), {"name": "socks", "port": socks, "protocol": "egressproxy.io/socks5"}
        objects = [m.gateway(*listeners), policy, m.config_map("roots", {"ca.crt": pki.ca_pem})]
        arguments = ["--state-dir", str(folder / "state"), "--api-writes", "--workers", "2", "--log-level", "debug"]
        with GatewayProcess(folder / "gateway", objects, arguments=arguments) as gateway:
            yield World(gateway, folder, f"{HOST}:{origin.port}", forward, socks)


def test_each_client_has_its_own_ca_until_that_is_withdrawn(world: World):
    refused = world.curl(ONE, "none", "-k")
    assert "403" in refused.stderr, "no CA yet, and none for everybody"
    code, made = world.makes("sandbox-1", "one", ("lifetime", "12h"))
    assert code == 200, made
    (world.folder / "one.crt").write_text(made["certificate"])
    assert "KEY" not in json.dumps(made)
    assert made["permitted"] == ["origin.test"]
    arguments = "new", "sandbox-2", "--policy", POLICY, "--namespace", "agents", "--service-account", "two"
    code, said = world.cli(*arguments, "--out", str(world.folder / "two.crt"))
    assert code == 0, said

    for options in ([], ["--http2"]):
        for socks in (False, True):
            for client, own, other in ((ONE, "one", "two"), (TWO, "two", "one")):
                good = world.curl(client, own, *options, socks=socks)
                assert good.stdout == "ok", good.stderr
                assert world.curl(client, other, *options, socks=socks).returncode == 60, "SSL certificate problem"
    assert "403" in world.curl(STRANGER, "one", "-H", "X-Forwarded-For: 127.0.0.2").stderr
    request = f"GET / HTTP/1.1\r\nHost: {world.authority}\r\n\r\n".encode()
    both = world.trusting("one", "two")
    with world.tls(ONE, both) as mine:
        assert ask(mine, request) == (200, b"ok")
        session, shown = mine.session, mine.getpeercert(binary_form=True)
    assert session is not None
    for _ in range(4):  # in either worker
        with world.tls(TWO, both, session) as other:
            assert not other.session_reused
            assert other.getpeercert(binary_form=True) != shown
    with pytest.raises(ssl.SSLCertVerificationError):
        world.tls(TWO, world.trusting("one"))
    assert world.gateway.metric("egress_minted_certificates_of_ca_total", ca="agents/sandbox-1") >= 1

    open_tunnels = [world.tls(ONE, both) for _ in range(4)]
    other_tunnel = world.tls(TWO, both)
    assert all(ask(each, request) == (200, b"ok") for each in (*open_tunnels, other_tunnel))
    code, said = world.cli("revoke", "sandbox-1", "--policy", POLICY)
    assert (code, said) == (0, "done in every worker\n")
    for socks in (False, True):
        ended = world.curl(ONE, "one", "-k", socks=socks)
        assert ended.returncode, "in force at once, whatever the client trusts"
    for each in open_tunnels:
        with pytest.raises(AssertionError):  # closed: there is no head of an answer
            ask(each, request)
        each.close()
    assert ask(other_tunnel, request) == (200, b"ok")
    other_tunnel.close()
    assert world.curl(TWO, "two").stdout == "ok"

    code, said = world.cli("list", "-o", "json")
    states = {each["name"]: each["state"] for each in json.loads(said)["cas"]}
    assert states == {"sandbox-1": "withdrawn", "sandbox-2": "in force"}
    secret = (world.folder / "state" / "secret_agents_sandbox-1.yaml").read_text()
    assert "tls.key" not in secret
    kept = world.folder / "state" / "secret_agents_sandbox-2.yaml"
    assert os.stat(kept).st_mode & 0o777 == 0o600
    key = next(line.split()[1] for line in kept.read_text().splitlines() if line.startswith("  tls.key: "))
    shown = world.gateway.admin("/config")[1] + world.gateway.stderr + world.gateway.access_log_path.read_text()
    assert key not in shown
    assert key[:60] not in shown


def test_a_restart_keeps_them(world: World):
    assert world.gateway.stop() == 0
    world.gateway.start()
    assert world.curl(TWO, "two").stdout == "ok"
    assert "403" in world.curl(ONE, "one").stderr
    assert world.asks(("policy", POLICY), ("forget", "sandbox-1"))[0] == 200
    wait_until(lambda: "sandbox-1" not in world.cli("list")[1])


@pytest.mark.parametrize(
    ("pairs", "headers", "code"),
    [
        ([("new", "../../etc/x"), ("namespace", "a")], {}, 422),
        ([("new", "Upper"), ("namespace", "a")], {}, 422),
        ([("new", "a/b"), ("namespace", "a")], {}, 422),
        ([("new", "x")], {}, 422),
        ([("new", "x"), ("serviceAccount", "a")], {}, 422),
        ([("new", "x"), ("namespace", "a"), ("lifetime", "3d")], {}, 422),
        ([("new", "x"), ("namespace", "a"), ("lifetime", "1s")], {}, 422),
        ([("new", "x"), ("namespace", "a"), ("lifetime", "inf")], {}, 400),
        ([("new", "x"), ("namespace", "a"), ("permit", "example.com")], {}, 422),
        ([("new", "x"), ("namespace", "a"), ("permit", "test")], {}, 422),
        ([("new", "x"), ("namespace", "a"), ("key", "pem")], {}, 400),
        ([("new", "x"), ("revoke", "x")], {}, 400),
        ([("new", "x"), ("new", "y"), ("namespace", "a")], {}, 400),
        ([("new", "sandbox-2"), ("namespace", "b")], {}, 409),
        ([("new", "y"), ("namespace", "agents"), ("serviceAccount", "two")], {}, 409),
        ([("revoke", "nobody")], {}, 404),
        ([("new", "x"), ("namespace", "a")], {"Origin": "http://evil.test"}, 403),
        ([("new", "x"), ("namespace", "a")], {"X-Forwarded-For": "1.2.3.4"}, 403),
    ],
)
def test_what_is_refused(world: World, pairs: list[tuple[str, str]], headers: dict[str, str], code: int):
    assert world.asks(("policy", POLICY), *pairs, **headers)[0] == code


def test_the_number_is_bounded(world: World):
    for number in (1, 2):
        assert world.makes(f"more-{number}", f"more-{number}")[0] == 200
    assert world.makes("more-3", "more-3")[0] == 403
    assert world.asks(("policy", "agents/other"), ("new", "x"), ("namespace", "a"))[0] == 404
