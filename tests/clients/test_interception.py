"""Real clients in tunnels that are opened: they trust the CA, are served, and are shown why something was refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.clients.test_table import BODY, CLIENTS, LONG, PROGRAMS, REASON, Client, curl
from tests.clients.world import DENIED, ORIGIN, Outcome, Require, Way, World
from tests.e2e.world import tls_secret
from tests.support import manifests as m
from tests.support.origins.basic import GREETING, pattern

CA_PEM, CA_KEY = new_ca("interception", time(), 30, permitted=["egress.test"])


class OpenedWorld(World):
    """Tunnels to *.egress.test are opened; clients trust the CA of that, and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert self.pki.ca_file is not None
        self.pki.ca_file.write_text(CA_PEM, encoding="ascii")

    def manifests(self) -> list[m.Manifest]:
        objects = super().manifests()
        policy = next(each for each in objects if each["kind"] == "EgressPolicy")
        policy["spec"]["intercept"] = {"hostnames": ["*.egress.test"], "caCertificateRef": {"name": "interception"}}
        policy["spec"]["tls"] = {"caBundleRefs": [{"kind": "ConfigMap", "name": "ca"}]}
        return [*objects, tls_secret("interception", CA_PEM, CA_KEY.reveal())]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenedWorld]:
    made = OpenedWorld(tmp_path_factory.mktemp("opened"))
    yield made
    made.close()


def row(client: Client) -> object:
    marks = [pytest.mark.nightly] if client.name in LONG - {"openai", "anthropic", "pip"} else []
    return pytest.param(client, id=client.name, marks=marks)


@pytest.mark.parametrize("outcome", [Outcome.ALLOWED, Outcome.DENIED], ids=lambda outcome: outcome.value)
@pytest.mark.parametrize("client", [row(client) for client in CLIENTS if Way.TLS in client.ways])
def test_a_client_is_served_inside_and_shows_why_it_was_denied(
    opened: OpenedWorld, require: Require, node_modules: str, tmp_path: Path, client: Client, outcome: Outcome
):
    require(client.kind + client.name)
    since = opened.gateway.mark()
    command = client.command(opened.url(Way.TLS, outcome, client.path), tmp_path)
    ended = opened.run(command, Way.TLS, folder=opened.home, NODE_PATH=node_modules, PIP_CONFIG_FILE="/dev/null")
    host = DENIED if outcome is Outcome.DENIED else ORIGIN
    authority = f"{host}:{opened.origin.tls_port}"
    if outcome is Outcome.ALLOWED:
        assert ended.status == 0, ended.output
        assert client.prints in ended.output
        opened.gateway.wait_for_record(since=since, kind="tunnel", method="CONNECT", authority=authority, status=200)
        if client.path != "/ws":
            opened.gateway.wait_for_record(since=since, kind="request", authority=authority, status=200)
        return
    assert ended.status != 0, ended.output
    sentence = opened.denial(Way.TLS)
    expected = {REASON: f"Denied: {sentence}", BODY: sentence}.get(client.shows, client.shows)
    assert expected in ended.output.replace('\\"', '"')
    opened.gateway.wait_for_record(
        since=since, kind="request", authority=authority, status=403, reason="destination_not_allowed"
    )


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_curl_speaks_either_version_and_large_bodies_pass_unchanged(
    opened: OpenedWorld, require: Require, tmp_path: Path, version: str
):
    require("curl")
    url = opened.url(Way.TLS, Outcome.ALLOWED, "/bytes/5242880")
    command = [*curl(url, tmp_path), version, "--output", str(tmp_path / "down"), "--write-out", "%{http_version}"]
    ended = opened.run(command, Way.TLS)
    assert ended.output == {"--http1.1": "1.1", "--http2": "2"}[version], ended.output
    assert (tmp_path / "down").read_bytes() == pattern(5242880)


@pytest.mark.parametrize("client", [each for each in CLIENTS if each.name in ("curl", "requests", "git", "undici")],
                         ids=lambda client: client.name)  # fmt: skip
def test_a_client_without_the_ca_is_named_in_the_log(
    opened: OpenedWorld, require: Require, node_modules: str, tmp_path: Path, client: Client
):
    require(client.kind + client.name)
    since = opened.gateway.mark()
    nothing = tmp_path / "other.pem"
    nothing.write_text(new_ca("other", time(), 1)[0], encoding="ascii")
    trust = dict.fromkeys(
        ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"), str(nothing)
    )
    command = client.command(opened.url(Way.TLS, Outcome.ALLOWED, client.path), tmp_path)
    ended = opened.run(command, Way.TLS, folder=opened.home, NODE_PATH=node_modules, **trust)
    assert ended.status != 0, ended.output
    record = opened.gateway.wait_for_record(since=since, kind="tunnel", method="CONNECT")
    if record["reason"] == "-":  # GnuTLS, which git has on Debian, verifies behind the handshake, and sends no alert
        assert "it may not trust the CA" in record["detail"]
    else:
        assert record["reason"] == "interception_refused"


@pytest.mark.parametrize("outcome", [Outcome.ALLOWED, Outcome.DENIED], ids=lambda outcome: outcome.value)
def test_java_with_the_ca_in_its_trust_store(opened: OpenedWorld, require: Require, tmp_path: Path, outcome: Outcome):
    require("java")
    require("keytool")
    store = tmp_path / "store"
    opened.run(
        ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(opened.pki.ca_file), "-keystore",
         str(store), "-storepass", "changeit"], Way.BASE,
    )  # fmt: skip
    options = [
        f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit",
        "-Dhttps.proxyHost=127.0.0.1", f"-Dhttps.proxyPort={opened.forward_port}",
    ]  # fmt: skip
    url = opened.url(Way.TLS, outcome, "/hello")
    ended = opened.run(["java", *options, str(PROGRAMS / "Get.java"), url], Way.BASE)
    if outcome is Outcome.ALLOWED:
        assert ended.output == f"HTTP_2 200 {GREETING}\n"
    else:
        assert opened.denial(Way.TLS) in ended.output


@pytest.mark.parametrize("outcome", [Outcome.ALLOWED, Outcome.DENIED], ids=lambda outcome: outcome.value)
def test_a_tunnel_that_is_asked_for_in_socks5_is_opened_as_well(
    opened: OpenedWorld, require: Require, tmp_path: Path, outcome: Outcome
):
    require("curl")
    since = opened.gateway.mark()
    proxy = ["--proxy", f"socks5h://127.0.0.1:{opened.socks_port}"]
    ended = opened.run([*curl(opened.url(Way.TLS, outcome, "/hello"), tmp_path), *proxy], Way.BASE)
    expected = GREETING if outcome is Outcome.ALLOWED else opened.denial(Way.TLS)
    assert expected in ended.output
    opened.gateway.wait_for_record(since=since, listener="socks", kind="request")
