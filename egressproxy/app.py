"""The composition root: wires configuration, gateway, telemetry and admin, and runs them until a signal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RunOptions", "run"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `egressproxy run` was asked for. `bind` are IP literals; `admin` and `metrics` are (address, port) or None."""

    config: tuple[Path, ...] = ()
    bind: tuple[str, ...] = ("127.0.0.1",)
    admin: tuple[str, int] | None = ("127.0.0.1", 15000)
    metrics: tuple[str, int] | None = None
    access_log: str | None = None           # None: stdout; "off": none; else a path
    log_level: str = "info"


def run(options: RunOptions) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status: 0 after a drain, 1 where the start failed."""
    raise SystemExit("not wired yet")
