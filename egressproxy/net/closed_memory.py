"""The memory of this process is its own: it holds keys and credentials.

Sources: prctl(2) and ptrace(2), "Ptrace access mode checking"; core(5).
"""

from __future__ import annotations

import ctypes
import resource
from contextlib import suppress
from typing import Final

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
