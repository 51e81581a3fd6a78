"""Files with certificates while they are written: what they held before stays in force, and status says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time

import pytest

from egressproxy.config.compile.interface import Compiled
from egressproxy.config.reading.load import ResourceSet, read_all
from egressproxy.gateway.leaf_certificates.minting import new_ca
from egressproxy.ir.gateway import CertificateIR, ListenerIR
from egressproxy.model.secret import SecretSource
from egressproxy.processes.loader.answer import handed_over, previous_of
from egressproxy.processes.loader.compilation import compiled
from tests.support.mounted import mount
from tests.support.pki import Pki

OBJECTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: agents}
spec:
  gatewayClassName: egressproxy
  tls:
    backend: {clientCertificateRef: {name: client}}
    frontend: {default: {validation: {caCertificateRefs: [{kind: Secret, name: roots, group: ""}]}}}
  listeners:
  - name: web
    port: 8443
    protocol: HTTPS
    tls: {certificateRefs: [{name: web}]}
  - {name: forward, port: 3128, protocol: egressproxy.io/forward-proxy}
---
apiVersion: egressproxy.io/v1alpha1
kind: Backend
metadata: {name: origin, namespace: agents}
spec:
  destination:
    type: Fqdn
    fqdn: {hostname: origin.test}
    ports:
    - number: 443
      tls:
        mode: Simple
        caBundleRef: [{group: certificates.k8s.io, kind: ClusterTrustBundle, name: bundle}]
        crlRefs: [{kind: Secret, name: lists}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: route, namespace: agents}
spec:
  parentRefs: [{name: gw, sectionName: web}]
  rules: [{backendRefs: [{group: egressproxy.io, kind: Backend, name: origin}]}]
---
apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {name: policy, namespace: agents}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gw}]
  intercept: {hostnames: [api.test], caCertificateRef: {name: interception}}
"""


def pair(certificate: CertificateIR) -> dict[str, str]:
    return {"tls.crt": certificate.chain_pem, "tls.key": certificate.key_pem.reveal().decode()}


def ca() -> dict[str, str]:
    chain, key = new_ca("interception", time(), 30)
    return {"tls.crt": chain, "tls.key": key.reveal().decode()}


class Bench:
    """A configuration whose certificates are all in files of `folder`, and what comes of reading it again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = [
            folder / "objects.yaml",
            SecretSource("agents", path=folder / "secrets"),
            SecretSource(name="bundle", path=folder / "bundle.pem", is_trust_bundle=True),
        ]
        self.memory = b""
        self.compiled = Compiled(None)  # type: ignore[arg-type]
        (folder / "objects.yaml").write_text(OBJECTS)
        self.write(Pki())
        self.load()

    def write(self, pki: Pki) -> None:
        secrets = self.folder / "secrets"
        for name, data in (
            ("web", pair(pki.certificate("web.test"))),
            ("client", pair(pki.certificate("client.test"))),
            ("roots", {"ca.crt": pki.ca_pem}),
            ("lists", {"crl.pem": pki.crl()}),
            ("interception", ca()),
        ):
            (secrets / name).mkdir(parents=True, exist_ok=True)
            for key, value in data.items():
                (secrets / name / key).write_text(value)
        (self.folder / "bundle.pem").write_text(pki.ca_pem)

    def load(self) -> ResourceSet:
        previous = previous_of(self.memory)
        resources = read_all(self.sources)
        self.compiled = compiled(resources, ("127.0.0.1",), previous)
        self.made = handed_over(resources, self.compiled, previous)
        self.memory = self.made.memory
        return resources

    @property
    def listeners(self) -> dict[str, ListenerIR]:
        return {each.name: each for each in self.compiled.spec.listeners}

    def values(self) -> dict[str, str]:
        """What is in force of each file."""
        web, forward = self.listeners["web"], self.listeners["forward"]
        assert web.tls is not None
        assert web.tls.clients is not None
        backend = web.http_routes[0].rules[0].backends[0].backend
        assert backend is not None, web.http_routes[0].rules[0].backends[0].error
        assert backend.tls is not None
        return {
            "web": web.tls.certificates[0].chain_pem,
            "client": backend.tls.client_certificate,
            "roots": web.tls.clients.ca_pem,
            "lists": backend.tls.crl_pem,
            "bundle": backend.tls.ca_pem,
            "interception": forward.policy.intercepts[0].chain_pem,
        }

    @property
    def told(self) -> list[str]:
        return [str(each) for each in self.made.findings if "stays in force" in str(each)]


def cut(file: Path) -> None:
    text = file.read_text()
    file.write_text(text[: len(text) // 2])


def empty(file: Path) -> None:
    file.write_text("")


FILES = {
    "web": "secrets/web/tls.crt",
    "client": "secrets/client/tls.crt",
    "roots": "secrets/roots/ca.crt",
    "lists": "secrets/lists/crl.pem",
    "interception": "secrets/interception/tls.crt",
}


@pytest.mark.parametrize("spoil", [cut, empty])
@pytest.mark.parametrize("name", [*FILES, "bundle"])
def test_a_file_that_is_cut_off_leaves_in_force_what_it_held(tmp_path: Path, name: str, spoil: Callable[[Path], None]):
    if name == "bundle" and spoil is empty:
        return  # the whole configuration is refused
    bench = Bench(tmp_path)
    before = bench.values()
    spoil(tmp_path / FILES.get(name, "bundle.pem"))
    for _ in range(2):  # it is remembered over reloads
        bench.load()
        assert bench.values() == before
        (told,) = bench.told
        assert "LastGoodInForce" in str(bench.compiled.statuses)
        assert "PRIVATE" not in told
    bench.write(Pki())
    bench.load()
    assert bench.told == []
    assert "LastGoodInForce" not in str(bench.compiled.statuses)
    assert bench.values()[name] != before[name]


@pytest.mark.parametrize("name", ["web", "client", "interception"])
@pytest.mark.parametrize("written", ["tls.crt", "tls.key"])
def test_half_a_pair_leaves_the_old_one_in_force_until_the_other_half_is_written(
    tmp_path: Path, name: str, written: str
):
    bench = Bench(tmp_path)
    before = bench.values()
    fresh = ca() if name == "interception" else pair(Pki().certificate("fresh.test"))
    (tmp_path / "secrets" / name / written).write_text(fresh[written])
    bench.load()
    assert bench.values() == before
    (told,) = bench.told
    assert f"Secret agents/{name}: tls.key does not belong to the first certificate of tls.crt" in told
    for key, value in fresh.items():
        (tmp_path / "secrets" / name / key).write_text(value)
    bench.load()
    assert bench.told == []
    assert bench.values()[name].strip() == fresh["tls.crt"].strip()


def test_a_pair_without_its_key_is_half_a_pair_and_a_secret_that_is_gone_is_gone(tmp_path: Path):
    bench = Bench(tmp_path)
    before = bench.values()
    (tmp_path / "secrets/web/tls.key").unlink()
    bench.load()
    assert bench.values() == before
    (tmp_path / "secrets/web/tls.crt").unlink()
    (tmp_path / "secrets/web").rmdir()
    bench.load()
    assert "web" not in bench.listeners
    assert bench.told == []


def test_a_mounted_secret_is_taken_as_a_whole(tmp_path: Path):
    bench = Bench(tmp_path)
    mounted = tmp_path / "mounted"
    mount(mounted, pair(Pki().certificate("web.test")))
    for key in ("tls.crt", "tls.key"):
        (tmp_path / "secrets/web" / key).unlink()
    (tmp_path / "secrets/web").rmdir()
    bench.sources.append(SecretSource("agents", "web", path=mounted))
    bench.load()
    first = bench.values()["web"]
    mount(mounted, pair(Pki().certificate("web.test")))
    bench.load()
    assert bench.told == []
    assert bench.values()["web"] != first
    mount(mounted, {"tls.crt": first, "tls.key": "none"})
    second = bench.values()["web"]
    bench.load()
    assert bench.values()["web"] == second
    assert len(bench.told) == 1


def test_nothing_is_remembered_of_secrets_in_manifests(tmp_path: Path):
    bench = Bench(tmp_path)
    assert {at[2] for at in bench.compiled.materials} == {*FILES, "bundle"}
    previous = previous_of(bench.memory)
    assert previous is not None
    assert previous.materials == bench.compiled.materials
    assert "PRIVATE" not in repr(previous) + repr(bench.compiled) + repr(bench.made)
