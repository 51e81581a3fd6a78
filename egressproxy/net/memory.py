"""The memory of this process: how much is resident, how much it may have, and how what is free is given back."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: What the other processes of a gateway have of the memory of its cgroup: a quarter, and no more than this. They read
#: and compile the configuration, and serve the admin address.
OTHERS_BYTES: Final = 128 << 20
#: A worker has so much in any case: with less it could serve nobody.
LEAST_BYTES: Final = 128 << 20


class ResidentMemory:
    """Reads how many bytes of this process are resident. A call takes two microseconds: the file stays open.

    Source: proc_pid_statm(5), field `resident`.
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """Bytes."""
        return int(os.pread(self._fd, 128, 0).split(b" ", 2)[1]) * _PAGE_BYTES

    def close(self) -> None:
        os.close(self._fd)


def give_back_memory(*, collects: bool = True) -> None:
    """Give pages that nobody uses back to the system. CPython frees to malloc, and malloc keeps what it has: after a
    burst most of it stays resident otherwise. With `collects` objects in circles are collected first, for which every
    object is looked at: of 50,000 idle connections that takes 85 ms.

    Without glibc only the circles are collected. Source: malloc_trim(3).
    """
    if collects:
        gc.collect()
    if _TRIM is not None:
        _TRIM(0)


def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another libc
        return None
    trim.argtypes = (ctypes.c_size_t,)
    return trim


_TRIM: Final = _malloc_trim()


def memory_for_each(workers: int, root: Path = Path("/")) -> int:
    """Bytes that each worker may have where nothing says it: its part of what the cgroup allows. 0: no limit."""
    limit = cgroup_limit(root)
    return max((limit - min(limit // 4, OTHERS_BYTES)) // workers, LEAST_BYTES) if limit else 0


def cgroup_limit(root: Path = Path("/")) -> int:
    """Bytes that the cgroup of this process may have: the lowest limit of it and those above it. 0: no limit.

    `root` is where `proc` and `sys` are. Sources: cgroups(7); the kernel's cgroup-v2.rst (memory.max) and
    cgroup-v1/memory.rst (memory.limit_in_bytes).
    """
    found = [limit for path in _limit_files(root) if (limit := _read_limit(path))]
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    least = min(found, default=0)
    return least if least < total else 0  # version 1 says "no limit" by a number beyond all memory


def _limit_files(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        place = mount / own.strip("/")
        yield mount / name  # in a container its own cgroup may be here, whatever its name is outside
        while place != mount and mount in place.parents:
            yield place / name
            place = place.parent


def _read_limit(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is none here; or "max"
        return 0
