"""How long tests wait for what has to happen: until it happens, and not much longer than any machine can take.

A limit here is no measurement. It is the end of a test that would otherwise hang, so that it fails with words of its
own; it costs nothing where the event comes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

#: For one event. A machine that is slower still says so: EGRESSPROXY_TEST_PATIENCE=3 makes it three times as long.
WAIT_S = 60.0 * float(os.environ.get("EGRESSPROXY_TEST_PATIENCE", "1"))
_LOOK_AGAIN_S = 0.01


def wait_until(is_so: Callable[[], object], what: str = "it never came to that") -> None:
    """Return once it is so; raises AssertionError with `what` if that takes longer than WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(_LOOK_AGAIN_S)


async def until(is_so: Callable[[], object], what: str = "it never came to that") -> None:
    """The same for a test that runs on a loop."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(_LOOK_AGAIN_S / 10)
