"""What a process may see of others of its user: root may look into all, and nobody else into those of a gateway."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

#: Runs the rest of its line without the capability to look into every process, as a container's root is.
AS_IN_A_CONTAINER = (
    ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"] if os.geteuid() == 0 else []
)


def can_look_into(pid: int) -> bool:
    """Whether a process of the same user reads the memory of this one."""
    look = f"head --bytes=0 /proc/{pid}/mem"
    done = subprocess.run(
        [*AS_IN_A_CONTAINER, "sh", "-c", look], capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
    return done.returncode == 0


def is_closed_to_others() -> bool:
    """Whether this machine lets no process look into others but its children (the kernel's Yama)."""
    setting = Path("/proc/sys/kernel/yama/ptrace_scope")
    return setting.exists() and setting.read_text() != "0\n"


looks_into_others = pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into the processes of a gateway")
