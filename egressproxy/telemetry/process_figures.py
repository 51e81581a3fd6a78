"""The memory and processor time of a process, read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """`worker` counts from 1; `cpu_s` is user and system time."""

    worker: int
    resident_bytes: int = 0
    cpu_s: float = 0.0


def process_figures(worker: int, pid: int) -> ProcessFigures:
    """The figures of a running process. Raises OSError if there is no such process.

    Source: proc_pid_stat(5), fields utime (14), stime (15) and rss (24), after the name in brackets.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ProcessFigures(worker, int(fields[21]) * _PAGE_BYTES, ticks / _TICKS_PER_S)
