"""Child processes: how each of them is started, and how each of them has ended."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = str(Path(__file__).resolve().parents[2])


def child_command(statements: str) -> list[str]:
    """A new program rather than a fork: nothing of this process's memory is in it, secrets included, and it can be
    started at any time, beside threads.

    It is this interpreter, which finds modules where this process does. The environment, the working directory and the
    user's own folders change nothing of that (-I, -S).
    """
    return [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:] = {[*sys.path, _ROOT]!r}; {statements}"]


def ending(status: int) -> str:
    """What became of a process, as a predicate: `status` as in `subprocess.Popen.returncode`."""
    if status >= 0:
        return f"ended with status {status}"
    if -status == signal.SIGKILL:
        return "was ended by SIGKILL (as the system does where memory is short)"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
