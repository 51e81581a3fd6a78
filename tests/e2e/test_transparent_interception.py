"""Connections that were redirected are opened, too, where policy asks for it: in a network of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time

import pytest

from egressproxy.gateway.leaf_certificates.minting import new_ca
from tests.e2e.test_transparent import DENIED, NOWHERE, OPAQUE, ORIGIN, RULES, Redirected
from tests.e2e.world import tls_secret
from tests.support import manifests as m
from tests.support.origins.basic import GREETING
from tests.support.own_network import can_have_own_network, load_rules, own_network

pytestmark = pytest.mark.skipif(not can_have_own_network(), reason="needs root and nftables")

CA_PEM, CA_KEY = new_ca("interception", time(), 30)


class Opened(Redirected):
    """TLS to *.egress.test ends at the gateway; clients trust its CA alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert self.pki.ca_file is not None
        self.pki.ca_file.write_text(CA_PEM, encoding="ascii")

    def objects(self, policy: m.Manifest) -> list[m.Manifest]:
        """As of Redirected."""
        policy["spec"]["intercept"] = {"hostnames": ["*.egress.test"], "caCertificateRef": {"name": "ca"}}
        policy["spec"]["tls"] = {"caBundleRefs": [{"kind": "ConfigMap", "name": "roots"}]}
        return [policy, tls_secret("ca", CA_PEM, CA_KEY.reveal()), m.config_map("roots", {"ca.crt": self.pki.ca_pem})]


@pytest.fixture
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redirected]:
    folder = tmp_path_factory.mktemp("transparent")
    for each in (folder, folder.parent, folder.parent.parent):
        each.chmod(0o755)
    with own_network(f"{OPAQUE}/24", "fd09::9/64"):
        load_rules(RULES)
        made = Opened(folder)
        try:
            yield made
        finally:
            made.close()


def test_tls_that_was_redirected_is_opened_and_a_denial_is_told_inside(opened: Redirected):
    ended = opened.curl(f"https://{ORIGIN}/", NOWHERE)
    assert GREETING in ended.stdout, ended.stderr
    opened.gateway.wait_for_record(kind="request", authority=f"{ORIGIN}:443", status=200)
    ended = opened.curl(f"https://{DENIED}/", NOWHERE)
    assert f"{DENIED} is not allowed by policy agents/default" in ended.stdout
    opened.gateway.wait_for_record(kind="request", authority=f"{DENIED}:443", status=403)
