"""ProcessLimits: the limits of one serving process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """`connections` of clients (None: by the file descriptors), `requests` in progress, tunnels included, and bytes of
    resident memory. 0: no limit.
    """

    connections: int | None = None
    requests: int = 0
    memory_bytes: int = 0


NO_LIMITS = ProcessLimits()
