"""The name of the event loop, for those who do not need the loop itself: `egressproxy version`, the log, metrics."""

from importlib.util import find_spec
from typing import Final

__all__ = ["LOOP_NAME"]

#: The package of the loop that `net.loop.new_loop` makes.
LOOP_NAME: Final = "uvloop" if find_spec("uvloop") is not None else "asyncio"
