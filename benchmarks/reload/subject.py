"""The gateway that is measured, its manifests, and the programs that keep the cores busy."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import START_S, Child, StartError

Manifest = dict[str, Any]

GATEWAY_API = "gateway.networking.k8s.io"
OURS = "egressproxy.io"
#: Where connections end at once: a request that is allowed is answered 502.
NOBODY = 9


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many programs that never rest, at this process's priority."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextmanager
def running(folder: Path, admin: int, workers: int, arguments: Sequence[str]) -> Iterator[Child]:
    """`egressproxy run` until the end of the block. Raises StartError."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("egressproxy")), "run", "--admin", f"127.0.0.1:{admin}"]
    child = Child("egressproxy", [*command, "--access-log", "off", "--workers", str(workers), *arguments], folder, None)
    try:
        child.wait_for([admin])
        deadline = time.monotonic() + START_S
        while not _is_up(admin):
            if time.monotonic() > deadline or not child.is_running():
                raise StartError(f"egressproxy is not ready: {child.complaint()}")
            time.sleep(0.05)
        yield child
    finally:
        child.stop()


def _is_up(admin: int) -> bool:
    """Whether its configuration is in service, be it an empty one."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{admin}/metrics", timeout=5) as answer:
            return b"\negress_config_generation 1" in answer.read()
    except (urllib.error.URLError, TimeoutError):
        return False


def gateway(port: int) -> Manifest:
    listeners = [{"name": "forward", "port": port, "protocol": f"{OURS}/forward-proxy"}]
    spec = {
        "gatewayClassName": "egressproxy",
        "addresses": [{"type": "IPAddress", "value": "127.0.0.1"}],
        "listeners": listeners,
    }
    return _manifest(f"{GATEWAY_API}/v1", "Gateway", "egress", spec)


def policy(denied: Sequence[str], count: int) -> Manifest:
    """Allows *.reload.example, which is nobody's, but for what is denied."""
    hosts = {f"d{number}.reload.example": ["127.0.0.1"] for number in range(count)}
    spec = {
        "targetRefs": [{"group": GATEWAY_API, "kind": "Gateway", "name": "egress"}],
        "destinations": {
            "allow": [{"hostnames": ["*.reload.example"]}],
            "deny": [{"hostnames": list(denied)}] if denied else [],
        },
        "addresses": {"allow": [{"cidrs": ["127.0.0.0/8"], "hostnames": ["*.reload.example"]}]},
        "dns": {"hosts": hosts},
    }
    return _manifest(f"{OURS}/v1alpha1", "EgressPolicy", "outbound", spec)


def backend(name: str) -> Manifest:
    ports = [{"number": 443, "protocol": "HTTP11", "tls": {"mode": "Simple"}}]
    destination = {"type": "Fqdn", "fqdn": {"hostname": f"{name}.reload.example"}, "ports": ports}
    return _manifest(f"{OURS}/v1alpha1", "Backend", name, {"destination": destination})


def route(name: str, backend_name: str) -> Manifest:
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": [{"group": OURS, "kind": "Backend", "name": backend_name}],
    }
    spec = {"parentRefs": [{"name": "egress"}], "hostnames": [f"{name}.reload.example"], "rules": [rule]}
    return _manifest(f"{GATEWAY_API}/v1", "HTTPRoute", name, spec)


def _manifest(api_version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}
