"""What memory and descriptors this process has and may have, and how children are started and have ended."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from egressproxy.build import release

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: What the other processes of a gateway have of the memory of its cgroup: a quarter, and no more than this. They read
#: and compile the configuration, and serve the admin address.
OTHERS_BYTES: Final = 128 << 20
#: A worker has so much in any case: with less it could serve nobody.
LEAST_BYTES: Final = 128 << 20


class ResidentMemory:
    """Reads how many bytes of this process are resident, in two microseconds. Source: proc_pid_statm(5), `resident`."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """Bytes."""
        return int(os.pread(self._fd, 128, 0).split(b" ", 2)[1]) * _PAGE_BYTES

    def close(self) -> None:
        os.close(self._fd)


def collect_seldom() -> None:
    """Look for garbage in circles less often: a start makes what stays, and traffic makes next to none."""
    gc.set_threshold(50_000, 20, 100)


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
    """Bytes that the cgroup of this process and those above it allow; 0: no limit. `root` is where `proc` and `sys`
    are. Sources: cgroups(7); cgroup-v2.rst (memory.max), cgroup-v1/memory.rst (memory.limit_in_bytes) of the kernel.
    """
    files = _limit_files(root, "memory", "memory.max", "memory.limit_in_bytes")
    found = [limit for path in files if (limit := _read_limit(path))]
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    least = min(found, default=0)
    return least if least < total else 0  # version 1 says "no limit" by a number beyond all memory


def cpu_quota(root: Path = Path("/")) -> float:
    """How many processors the cgroup of this process and those above it allow; 0: no quota. Sources: cgroup-v2.rst
    (cpu.max) and sched-bwc.rst (version 1) of the kernel.
    """
    found = []
    for path in _limit_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        try:
            words = path.read_text().split()
            if len(words) == 1:  # version 1 has the period in another file
                words += path.with_name("cpu.cfs_period_us").read_text().split()
            found.append(int(words[0]) / int(words[1]))
        except (OSError, ValueError, IndexError, ZeroDivisionError):  # there is none here; or "max"
            continue
    return min((each for each in found if each > 0), default=0.0)


def _limit_files(root: Path, controller: str, name_v2: str, name_v1: str) -> Iterator[Path]:
    """Where versions 2 and 1 of cgroups may have a limit of this controller."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", name_v2
        elif controller in controllers.split(","):
            mount, name = root / "sys/fs/cgroup" / controller, name_v1
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


#: Source: <linux/prctl.h>.
_PR_SET_DUMPABLE: Final = 4


def close_memory() -> None:
    """From now on nothing of it is written into a core, and no process of the same user reads it: root's alone may, and
    a container's root only with CAP_SYS_PTRACE. Copies (fork) inherit that, other programs (exec) do not.

    Files of this process below /proc are root's then: what has to be written there comes before.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, AttributeError):  # Linux alone has it
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


#: `MADV_COLLAPSE` of linux/mman.h (Linux 6.1); an older kernel answers EINVAL, and nothing changes.
_MADV_COLLAPSE: Final = 25


def collapse_heap(root: Path = Path("/")) -> int:
    """Put what is in this process's anonymous memory now into huge pages, once, at the end of the start. Returns how
    many bytes lie in mappings that took it; 0 where the system has no huge pages or its operator has switched them off
    (`never`). What is allocated later comes in small pages as ever.

    The copying takes about a millisecond for 4 MiB. `root` is where `proc` and `sys` are. Sources: madvise(2); the
    kernel's transhuge.rst; proc_pid_maps(5).
    """
    try:
        setting = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
        size = int((root / "sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
        maps = (root / "proc/self/maps").read_text()
        advise = ctypes.CDLL(None).madvise
    except (OSError, ValueError, AttributeError):  # another kernel, another libc
        return 0
    if "[never]" in setting:
        return 0
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(
        end - start
        for start, end in _anonymous(maps)
        if end - start >= size and advise(start, end - start, _MADV_COLLAPSE) == 0
    )


def _anonymous(maps: str) -> Iterator[tuple[int, int]]:
    """Start and end of each mapping that objects of this process may be in."""
    for line in maps.splitlines():
        addresses, mode, _, _, inode, *path = line.split(maxsplit=5)
        if mode == "rw-p" and inode == "0" and (not path or path[0] == "[heap]"):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)


#: Descriptors for other use than that of clients and backends: the admin address, the log, the loader.
RESERVED: Final = 64


def descriptors() -> int:
    """The present limit of open file descriptors; sys.maxsize where there is none. Source: getrlimit(2)."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def descriptors_for_traffic() -> int:
    """Those that clients and backends may have together; the kernel gives the lowest number that is free."""
    most = descriptors()
    return most if most == sys.maxsize else max(most - RESERVED, most // 2)


_ROOT: Final = str(Path(__file__).resolve().parents[2])


#: How a new program ends whose files are not those of its parent. Python and signals have no such status.
OTHER_RELEASE: Final = 79


def child_command(statements: str) -> list[str]:
    """A new program rather than a fork: nothing of this process's memory is in it, secrets included, and it can be
    started at any time, beside threads.

    It is this interpreter, which finds modules where this process does. The environment, the working directory and the
    user's own folders change nothing of that (-I, -S). Tracebacks name lines and no columns, which saves a megabyte.

    Processes say things to each other that another release may read otherwise. Where the files of the package were
    replaced since this process began, the new program ends with OTHER_RELEASE before it does anything.
    """
    same = f"from egressproxy.build import is_release; is_release({release()!r}) or sys.exit({OTHER_RELEASE})"
    program = f"import sys; sys.path[:] = {[*sys.path, _ROOT]!r}; {same}; {statements}"
    return [sys.executable, "-I", "-S", "-X", "no_debug_ranges", "-c", program]


def ending(status: int) -> str:
    """What became of a process, as a predicate: `status` as in `subprocess.Popen.returncode`."""
    if status == OTHER_RELEASE:
        return (
            "would be of another release than this process, whose files were replaced while it runs, and has ended: "
            "restart the gateway"
        )
    if status >= 0:
        return f"ended with status {status}"
    if -status == signal.SIGKILL:
        return "was ended by SIGKILL (as the system does where memory is short)"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
