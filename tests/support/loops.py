"""The event loops on which the data path runs: uvloop's, and asyncio's own where uvloop cannot be imported."""

from __future__ import annotations

import asyncio

import pytest

from egressproxy.net.loop import loop_name, new_loop

#: For a test that makes its loop itself, with the argument `factory`.
BOTH_LOOPS = pytest.mark.parametrize(
    "factory", [pytest.param(new_loop, id=loop_name()), pytest.param(asyncio.SelectorEventLoop, id="asyncio")]
)
