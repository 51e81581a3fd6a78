"""The composition root: wires configuration, gateway, telemetry and admin, and runs them until a signal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from egressproxy.config.compile.contract import Compiled
    from egressproxy.config.load import ResourceSet

__all__ = ["RunOptions", "compiled", "run"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `run` was asked for. `bind` are IP literals; `admin` and `metrics` are (address, port) or None."""

    config: tuple[Path, ...] = ()
    bind: tuple[str, ...] = ("127.0.0.1",)
    admin: tuple[str, int] | None = ("127.0.0.1", 15000)
    metrics: tuple[str, int] | None = None
    access_log: str | None = None  # None: stdout; "off": none; else a path
    log_level: str = "info"


def run(options: RunOptions) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status: 0 after a drain, 1 where the start failed."""
    raise SystemExit("not wired yet")


def compiled(resources: ResourceSet, bind: tuple[str, ...]) -> Compiled:
    """Compile with the filters of this build; opens no sockets. Raises ConfigError."""
    raise SystemExit("not wired yet")
