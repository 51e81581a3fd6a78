"""What is known of a worker that compiled code has ended with a signal: where in Python it was.

No exception is raised there, and nothing is logged. The module faulthandler writes, while the process ends, which
functions ran: names of files and functions and numbers of lines, no values. It writes to a file in memory that the
supervisor has made, so that it becomes part of one message of the log. Compiled functions are not among them: the
latest is the one that has called them.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Final

from egressproxy import build

#: The signals of which faulthandler tells.
CRASHES: Final = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
#: Calls that are shown, and bytes that are read of what faulthandler has written.
MAX_CALLS: Final = 8
MAX_BYTES: Final = 16 * 1024
#: A line of its traceback, in every version of Python.
_CALL: Final = re.compile(r'^  File "([^"\n]*)", line (\d+|\?\?\?) in (\S+)', re.MULTILINE)


def watching(descriptor: int) -> str:
    """The statements with which a new process begins that is to write there where it crashes."""
    return f"import faulthandler; faulthandler.enable({descriptor}, all_threads=False)"


def crash(status: int, descriptor: int) -> str:
    """What is known of the crash, and what to do; "" for any other end. `status` is that of `subprocess.Popen`."""
    if -status not in CRASHES:
        return ""
    calls = ", ".join(
        f"{os.path.basename(file)}:{line} in {function}"
        for file, line, function in _CALL.findall(os.pread(descriptor, MAX_BYTES, 0).decode(errors="replace"))[
            :MAX_CALLS
        ]
    )
    where = f"; the latest calls in Python: {calls}" if calls else ""
    if build.name() == build.PURE:
        return f"compiled code of a library has crashed{where}"
    remedy = f"{build.PURE_VARIABLE}=1 in the environment runs the gateway without compiled modules of its own"
    return f"compiled code has crashed, the gateway's or a library's{where}; {remedy}"
