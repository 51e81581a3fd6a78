"""The event loop of a process (uvloop's, or asyncio's where that cannot be imported), and the poller on it. The sockets
of the data path are on the poller's epoll descriptor, which the loop watches as one reader.
"""

from __future__ import annotations

import asyncio
from functools import cache

from egressproxy.net.poller import Poller


@cache
def why_not_uvloop() -> Exception | None:
    """What the import of uvloop has raised, whatever it is: a package may be broken in many ways. None: it is there."""
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
    """That of the running loop, which gets one at the first call. RuntimeError where no loop runs."""
    loop = asyncio.get_running_loop()
    try:
        return loop.egress_poller  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        made = Poller(loop)
        loop.egress_poller = made  # type: ignore[attr-defined]  # it lives as long as the loop
        return made
