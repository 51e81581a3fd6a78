"""The event loop of a process, and the poller on it.

The loop is uvloop's, or asyncio's own where uvloop is not installed. Timers, tasks, DNS and the admin server use it as
anywhere. The sockets of the data path are on the epoll descriptor of a `Poller`, which the loop watches as one reader.
"""

from __future__ import annotations

import asyncio

from egressproxy.net.loop_name import LOOP_NAME
from egressproxy.net.poller import Poller

__all__ = ["new_loop", "poller"]


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for `asyncio.Runner(loop_factory=new_loop)`."""
    if LOOP_NAME == "asyncio":
        return asyncio.SelectorEventLoop()
    import uvloop

    return uvloop.new_event_loop()


def poller() -> Poller:
    """That of the running loop, which gets one at the first call. RuntimeError where no loop runs."""
    loop = asyncio.get_running_loop()
    try:
        return loop.egress_poller  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        made = Poller(loop)
        loop.egress_poller = made  # type: ignore[attr-defined]  # it lives as long as the loop
        return made
