"""in_slices: long work on the event loop, in slices so short that traffic does not feel them."""

from __future__ import annotations

import asyncio
import time
from typing import Final, TypeVar

from egressproxy.model.steps import Cooperative

T = TypeVar("T")

#: For how many seconds steps go on before the loop has a turn.
SLICE_S: Final = 0.002


async def in_slices(steps: Cooperative[T]) -> T:
    """Take the steps between turns of the loop, and what blocks in a thread; gives the result.

    Raises what a step raises. A step takes as long as it takes: make them small.
    """
    loop = asyncio.get_running_loop()
    until = time.monotonic() + SLICE_S
    try:
        while True:
            try:
                blocking = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if blocking is not None:
                await loop.run_in_executor(None, blocking)
            elif time.monotonic() < until:
                continue
            else:
                await asyncio.sleep(0)
            until = time.monotonic() + SLICE_S
    finally:
        steps.close()
