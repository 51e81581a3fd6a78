"""A real kube-apiserver with an etcd, on loopback: empty, for as long as the tests of a module run.

$EGRESSPROXY_KUBE_APISERVER names the program; etcd is looked up in PATH. Without either the tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from egressproxy.config.served_kinds import CONFIGURED, OURS, ServedKind
from tests.support.cluster_access import ClusterAccess
from tests.support.kubectl import find_kubectl
from tests.support.net import free_port
from tests.support.waiting import wait_until

PROGRAM = "EGRESSPROXY_KUBE_APISERVER"
_ADMIN = "admin-token"
_ROOT: Final = Path(__file__).resolve().parents[2]
_BUILT_IN: Final = ("", "discovery.k8s.io", "certificates.k8s.io")
#: The folder of Gateway API's own definitions (the experimental channel).
CRDS: Final = "EGRESSPROXY_GATEWAY_API_CRDS"


class RealApiServer(ClusterAccess):
    """Made by `real_api_server`. What is asked for is asked for as cluster-admin. `stop` kills it, and its etcd where
    that is said; `start` starts what is not there, with what etcd holds.
    """

    def __init__(self, folder: Path, port: int, stop: Callable[[bool], None], start: Callable[[], None]) -> None:
        self._ca = folder / "certs/apiserver.crt"
        super().__init__(
            f"https://127.0.0.1:{port}", _ADMIN, ssl.create_default_context(cafile=self._ca), has_old_slices=True
        )
        self._stop = stop
        self._start = start
        self.kubeconfig = self.kubeconfig_of(_ADMIN, folder / "kubeconfig")

    def kubeconfig_of(self, token: str, file: Path) -> Path:
        """The file, as of whoever has this token."""
        file.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                "clusters": [
                    {"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self._ca)}},
                ],
                "users": [{"name": "admin", "user": {"token": token}}],
            })
        )  # fmt: skip
        return file

    def token_of(self, namespace: str, account: str) -> str:
        """A token of a service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"audiences": ["https://kubernetes.default.svc"]}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        status, found = self.request("POST", path, body)
        assert status == 201, found
        return str(found["status"]["token"])

    def stop(self, *, and_etcd: bool = False) -> None:
        """With SIGKILL."""
        self._stop(and_etcd)

    def start(self) -> None:
        """Returns when it answers again."""
        self._start()
        wait_until(lambda: _is_ready(self), "the API server is not ready again")

    def restart(self) -> None:
        """Kill it, and return when it answers again."""
        self.stop()
        self.start()

    def install_kinds(self) -> None:
        """Ours, Gateway API's, and the rest, such as those of working groups, whose schemas are not there: they admit
        all.
        """
        gateway_api = Path(os.environ.get(CRDS, "/-"))
        if not gateway_api.is_dir():
            pytest.skip(f"${CRDS} names no folder of Gateway API's CustomResourceDefinitions")
        others = [kind for kind in CONFIGURED if kind.group not in (*_BUILT_IN, OURS)]
        files = {kind: gateway_api / f"{kind.group}_{kind.plural}.yaml" for kind in others}
        written = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files.values() if file.exists()]
        unwritten = [kind for kind, file in files.items() if not file.exists()]
        made = [*map(_as_served, written), *map(_without_schema, unwritten)]
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for each in (
            *made,
            *yaml.safe_load_all((_ROOT / "deploy/crds/egressproxy.io.yaml").read_text(encoding="utf-8")),
        ):
            status, told = self.request("POST", path, each)
            assert status in (201, 409), told
        for kind in (each for each in CONFIGURED if each.group not in _BUILT_IN):
            wait_until(lambda kind=kind: self._serves(kind), f"{kind.resource} is not served")

    def _serves(self, kind: ServedKind) -> bool:
        paths = [f"/apis/{kind.group}/{version}/{kind.plural}" for version in kind.versions]
        return any(self.request("GET", path)[0] == 200 for path in paths)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        """What it prints, on both outputs; whether it succeeded does not matter."""
        command = [find_kubectl(), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr


@contextmanager
def real_api_server(folder: Path) -> Iterator[RealApiServer]:
    """The server, ready; it ends with the block."""
    program, etcd = os.environ.get(PROGRAM, ""), shutil.which("etcd")
    if not program or etcd is None:
        pytest.skip(f"${PROGRAM} names no kube-apiserver, or there is no etcd")
    port, store, peers = free_port(), f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    subprocess.run(["openssl", "genrsa", "-out", "accounts.key", "2048"], cwd=folder, check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{_ADMIN},admin,1,"system:masters"\n')
    commands = (
        [
            etcd, "--data-dir", "etcd", "--unsafe-no-fsync", "--listen-client-urls", store, "--advertise-client-urls",
            store, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
            "--initial-cluster", f"default={peers}",
        ],
        [
            program, f"--etcd-servers={store}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            "--cert-dir=certs", "--service-account-key-file=accounts.key",
            "--service-account-signing-key-file=accounts.key", "--token-auth-file=tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16", "--disable-admission-plugins=ServiceAccount",
        ],
    )  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        with (folder / "server.log").open("ab") as log:
            for command in commands[len(running) :]:
                running.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))

    def stop(and_etcd: bool) -> None:
        while len(running) > (0 if and_etcd else 1):
            process = running.pop()
            process.kill()
            process.wait()

    try:
        start()
        wait_until((folder / "certs/apiserver.crt").exists, "the API server has made no certificate")
        server = RealApiServer(folder, port, stop, start)
        wait_until(lambda: _is_ready(server), f"the API server is not ready: {folder}/server.log")
        yield server
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def _is_ready(server: RealApiServer) -> bool:
    try:
        names = ("kube-system", "default")  # it makes them after it has begun to answer
        return all(server.request("GET", f"/api/v1/namespaces/{name}")[0] == 200 for name in names)
    except (OSError, ValueError):
        return False


def _as_served(value: Any) -> Any:
    """A definition in which the group of a reference may be "", which this server takes for null, and a filter of a
    route may be one that is published, but not released.
    """
    if isinstance(value, list):
        return [_as_served(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {name: _as_served(part) for name, part in value.items()}
    fields = made.get("properties")
    if isinstance(fields, dict):
        group = fields.get("group")
        if isinstance(group, dict) and group.get("type") == "string":
            group["nullable"] = True
        if "requestHeaderModifier" in fields:
            del fields["type"]["enum"]
            made["x-kubernetes-preserve-unknown-fields"] = True
    return made


def _without_schema(kind: ServedKind) -> dict[str, Any]:
    """A CustomResourceDefinition that admits everything; of its status, `controllers` is merged."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    controller = {
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}, "conditions": {"type": "array", "items": anything}},
    }  # fmt: skip
    controllers = {
        "type": "array", "items": controller, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    }  # fmt: skip
    status = {**anything, "properties": {"controllers": controllers}}
    versions = [
        {
            "name": version, "served": True, "storage": version == kind.versions[0], "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": status}}},
        }
        for version in kind.versions
    ]  # fmt: skip
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.singular}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": kind.resource,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {"group": kind.group, "names": names, "scope": "Namespaced", "versions": versions},
    }  # fmt: skip
