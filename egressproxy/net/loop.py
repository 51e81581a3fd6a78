"""The event loop of a process (uvloop's, or asyncio's where that cannot be imported), and the poller on it. The sockets
of the data path are on the poller's epoll descriptor, which the loop watches as one reader.
"""

from __future__ import annotations

import asyncio
from functools import cache

from egressproxy.net.poller import Poller


@cache
def why_not_uvloop() -> Exception | None:
    """The error of importing uvloop, of any type, since a package may be broken in many ways; or None."""
    try:
        import uvloop  # noqa: F401   takes 3 ms: only processes that make a loop import it
    except Exception as error:
        return error.with_traceback(None)
    return None


def loop_name() -> str:
    """The package of the loop that `new_loop` makes: "uvloop" or "asyncio"."""
    return "uvloop" if why_not_uvloop() is None else "asyncio"


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for `asyncio.Runner(loop_factory=new_loop)`."""
    if why_not_uvloop() is not None:
        return asyncio.SelectorEventLoop()
    import uvloop

    return uvloop.new_event_loop()


def poller() -> Poller:
    """The poller of the running loop, created at the first call. Raises RuntimeError without a running loop."""
    loop = asyncio.get_running_loop()
    try:
        return loop.egress_poller  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        made = Poller(loop)
        loop.egress_poller = made  # type: ignore[attr-defined]  # it lives as long as the loop
        return made
