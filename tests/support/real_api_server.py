"""A real kube-apiserver with an etcd, on loopback: empty, for as long as the tests of a module run.

$EGRESSPROXY_KUBE_APISERVER names the program; etcd is looked up in PATH. Without either the tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubectl import find_kubectl
from tests.support.net import free_port
from tests.support.waiting import wait_until

PROGRAM = "EGRESSPROXY_KUBE_APISERVER"
_ADMIN = "admin-token"


class RealApiServer:
    """Made by `real_api_server`. `request` and `kubectl` act as cluster-admin. `restart` kills it, and starts it again
    with what its etcd holds.
    """

    def __init__(self, folder: Path, port: int, restart: Callable[[], None]) -> None:
        self._restart = restart
        self.url = f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        self._tls = ssl.create_default_context(cafile=folder / "certs/apiserver.crt")
        self.kubeconfig.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                "clusters": [
                    {"name": "test", "cluster": {
                        "server": self.url, "certificate-authority": str(folder / "certs/apiserver.crt"),
                    }},
                ],
                "users": [{"name": "admin", "user": {"token": _ADMIN}}],
            })
        )  # fmt: skip

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", token: str = _ADMIN
    ) -> tuple[int, Any]:
        """Status and body of the answer."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, context=self._tls) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else text  # it has not begun to serve the kind

    def restart(self) -> None:
        """Returns when it answers again."""
        self._restart()
        wait_until(lambda: _is_ready(self), "the API server is not ready again")

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

    def start(command: list[str]) -> None:
        with (folder / "server.log").open("ab") as log:
            running.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))

    def restart() -> None:
        running[-1].kill()
        running.pop().wait()
        start(commands[1])

    try:
        for command in commands:
            start(command)
        wait_until((folder / "certs/apiserver.crt").exists, "the API server has made no certificate")
        server = RealApiServer(folder, port, restart)
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
