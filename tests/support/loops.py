"""The event loops on which the data path runs: uvloop's, and asyncio's own where uvloop is not installed."""

from __future__ import annotations

import asyncio

import pytest

from egressproxy.net.loop import new_loop
from egressproxy.net.loop_name import LOOP_NAME

__all__ = ["BOTH_LOOPS"]

#: For a test that makes its loop itself, with the argument `factory`.
BOTH_LOOPS = pytest.mark.parametrize(
    "factory", [pytest.param(new_loop, id=LOOP_NAME), pytest.param(asyncio.SelectorEventLoop, id="asyncio")]
)
