"""Programs that are run for their output: bounded in time and bytes, and ended with their children."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

#: Seconds in which its children must end after the kill.
REAP_S: Final = 1.0
#: Source: <linux/prctl.h>.
_PR_SET_CHILD_SUBREAPER: Final = 36


async def run_program(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: float, max_bytes: int
) -> tuple[int, bytes]:
    """The exit status and the standard output of a program, which gets no input; its standard error, which may have
    secrets, is discarded. The program is killed with its children where this does not return.

    Raises OSError or ValueError if it cannot be started, TimeoutError, and OverflowError beyond `max_bytes`.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
    )
    has_ended = False
    try:
        async with asyncio.timeout(timeout_s):
            output = await _output(process, max_bytes)
            status = await process.wait()
        has_ended = True
    finally:
        if not has_ended:
            await _kill(process)
    return status, output


async def _output(process: Process, max_bytes: int) -> bytes:
    assert process.stdout is not None
    output = b""
    while piece := await process.stdout.read(65536):
        output += piece
        if len(output) > max_bytes:
            raise OverflowError
    return output


async def _kill(process: Process) -> None:
    """Kill the process and its group, and leave no zombies: this process adopts and reaps the children, since a
    container's first process may not.
    """
    _adopt_orphans(True)
    try:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        ends = time.monotonic() + REAP_S
        with suppress(ChildProcessError):  # no child is left
            while time.monotonic() < ends:
                if os.waitpid(-process.pid, os.WNOHANG) == (0, 0):  # noqa: ASYNC222 (it does not wait)
                    await asyncio.sleep(0.01)
    finally:
        _adopt_orphans(False)


def _adopt_orphans(does: bool) -> None:
    with suppress(OSError, AttributeError):  # only on Linux
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)
