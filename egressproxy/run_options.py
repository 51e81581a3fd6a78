"""What `egressproxy run` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egressproxy.model.secret import SecretBytes
from egressproxy.model.secret_source import ConfigSource, SecretSource

__all__ = ["RunOptions"]


_NO_KEY = SecretBytes(b"")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`bind` are IP literals and networks; `admin` and `metrics` are (address, port), None for none."""

    config: tuple[Path, ...] = ()
    secrets: tuple[SecretSource, ...] = ()
    bind: tuple[str, ...] = ("127.0.0.1",)
    admin: tuple[str, int] | None = ("127.0.0.1", 15000)
    metrics: tuple[str, int] | None = None
    access_log: str | None = None  # None: stdout; "off": none; else a path
    log_level: str = "info"
    log_format: str = "text"  # of the diagnostics: text or json
    drain_timeout_s: float = 10.0
    workers: int = 1
    state_dir: Path | None = None  # what was written through the API
    api_writes: bool = False
    api_token_file: Path | None = None
    guarded: bool = False  # a reload that would allow what was recently denied has to be acknowledged
    zone: str = ""  # where this gateway runs, as in EndpointSlices; "": not known
    session_key: SecretBytes = _NO_KEY  # empty: one is made up
    max_connections: int | None = None  # of each worker, as the next two; see ProcessLimits
    max_requests: int = 0
    max_memory: int | None = None  # bytes; None: by the cgroup

    @property
    def sources(self) -> tuple[ConfigSource, ...]:
        """What the configuration is read from."""
        return (*self.config, *self.secrets)

    @property
    def is_configured(self) -> bool:
        """Whether there is a configuration; otherwise the open proxy is served."""
        return bool(self.config) or self.state_dir is not None
