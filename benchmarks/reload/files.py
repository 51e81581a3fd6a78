"""A file gets one deny more, and a request says when it is in force."""

from __future__ import annotations

import http.client
import time
from pathlib import Path

import yaml

from benchmarks.processes import StartError, free_ports
from benchmarks.reload.subject import NOBODY, Manifest, backend, gateway, policy, route, running

#: Between a change and the next one: what the last one left is done by then.
PAUSE_S = 0.3
LIMIT_S = 60.0
#: How often a request asks.
ASK_S = 0.005


def changes(folder: Path, count: int, workers: int) -> list[float]:
    """Seconds from the rename to the first 403, of each change. Raises StartError."""
    port, admin = free_ports(2)
    config = folder / "config"
    config.mkdir()
    denied: list[str] = []
    _write(config / "egress.yaml", [gateway(port), backend("models"), route("models", "models")])
    _write(config / "policy.yaml", [policy(denied, count)])
    seconds = []
    with running(folder, admin, workers, ["--config", str(config)]):
        for number in range(count):
            host = f"d{number}.reload.example"
            time.sleep(PAUSE_S)
            if _status(port, host) == 403:
                raise StartError(f"{host} is denied before it should be")
            denied.append(host)
            _stage(config / "policy.yaml", [policy(denied, count)]).replace(config / "policy.yaml")
            started = time.monotonic()
            while _status(port, host) != 403:
                if time.monotonic() - started > LIMIT_S:
                    raise StartError(f"{host} is not denied after {LIMIT_S:.0f} s")
                time.sleep(ASK_S)
            seconds.append(time.monotonic() - started)
    return seconds


def _write(path: Path, objects: list[Manifest]) -> None:
    _stage(path, objects).replace(path)


def _stage(path: Path, objects: list[Manifest]) -> Path:
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(yaml.safe_dump_all(objects, sort_keys=False), encoding="utf-8")
    return staged


def _status(port: int, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", f"http://{host}:{NOBODY}/")
        return connection.getresponse().status
    finally:
        connection.close()
