"""ControllingTerminal: whether the terminal that this process was started in has just gone.

SIGHUP says two things. A terminal that closes sends it, and whoever wants files to be read again does. The kernel takes
the terminal from all processes of its session before it, or their shell, sends the signal (tty_ioctl(4), TIOCNOTTY;
credentials(7)), so that `/dev/tty` cannot be opened any more. A process that was put aside by its shell (`disown`) is
sent nothing then; what it is sent long after is no end. One that ignores SIGHUP from the start (`nohup`) goes on.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

#: How often it is looked, and how long after the end of a terminal its signal may come.
LOOK_S: Final = 1.0
RECENT_S: Final = 3.0
_PATH: Final = "/dev/tty"


class ControllingTerminal:
    """To be made before SIGHUP has a handler; `look` every LOOK_S as long as it is `there`."""

    __slots__ = ("_gone_at", "is_there")

    def __init__(self) -> None:
        self._gone_at: float | None = None
        self.is_there = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def look(self) -> None:
        """Note whether it is gone."""
        if self.is_there and not _has_terminal():
            self.is_there = False
            self._gone_at = time.monotonic()

    def has_just_gone(self) -> bool:
        """For SIGHUP: whether it means the end."""
        self.look()
        return self._gone_at is not None and time.monotonic() - self._gone_at <= RECENT_S


def _has_terminal() -> bool:
    try:
        os.close(os.open(_PATH, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
