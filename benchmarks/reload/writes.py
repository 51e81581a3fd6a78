"""Objects that are written through the API: by kubectl one after the other, and by many clients at once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from benchmarks.processes import StartError, free_ports
from benchmarks.reload.subject import Manifest, backend, gateway, policy, route, running

PLURALS = {"Gateway": "gateways", "EgressPolicy": "egresspolicies", "Backend": "backends", "HTTPRoute": "httproutes"}
LIMIT_S = 300.0


def by_kubectl(folder: Path, count: int, workers: int, arguments: Sequence[str]) -> float:
    """Seconds that `kubectl apply` takes for a file of so many new objects. Raises StartError."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise StartError("kubectl is missing: apt-get install --no-install-recommends kubernetes-client")
    port, admin = free_ports(2)
    folder.mkdir(parents=True)
    manifests = folder / "objects.json"
    manifests.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(port, count)}))
    command = [kubectl, "--server", f"http://127.0.0.1:{admin}", "apply", *arguments, "-f", str(manifests)]
    clean = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    with running(folder, admin, workers, _state(folder)):
        started = time.monotonic()
        done = subprocess.run(
            command, env={**clean, "HOME": str(folder), "KUBECONFIG": ""}, capture_output=True, timeout=LIMIT_S
        )
        taken = time.monotonic() - started
    if done.returncode:
        raise StartError(f"kubectl: {done.stderr.decode(errors='replace')}")
    return taken


def by_clients(folder: Path, count: int, workers: int) -> list[float]:
    """Seconds until each of so many writers, who begin at once, has its answer. Raises StartError."""
    port, admin = free_ports(2)
    with running(folder, admin, workers, _state(folder)):
        return asyncio.run(_together(admin, objects(port, count)))


async def _together(admin: int, objects: Sequence[Manifest]) -> list[float]:
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(_create(session, admin, each) for each in objects))


async def _create(session: aiohttp.ClientSession, admin: int, made: Manifest) -> float:
    path = f"/apis/{made['apiVersion']}/namespaces/default/{PLURALS[made['kind']]}"
    started = time.monotonic()
    while True:
        async with session.post(f"http://127.0.0.1:{admin}{path}", json=made) as answer:
            if answer.status == 201:
                return time.monotonic() - started
            if answer.status != 429:
                raise StartError(f"{path}: {answer.status} {await answer.text()}")
        await asyncio.sleep(0.05)  # too many wait


def _state(folder: Path) -> list[str]:
    return ["--state-dir", str(folder / "state"), "--api-writes"]


def objects(port: int, count: int) -> list[Manifest]:
    """A Gateway, a policy, and pairs of a route and its Backend."""
    made = [gateway(port), policy([], 0)]
    for number in range(count // 2 + 1):
        made += [backend(f"b{number}"), route(f"b{number}", f"b{number}")]
    return made[:count]
