"""What this process keeps: every byte string of some size that any object holds, and who holds it.

The buffer that all tunnels share is left out: it is there once, whatever passes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from egressproxy.protocols.tunnel import socket_tunnel

_Text = bytes | bytearray | memoryview | str
_TEXTS = (bytes, bytearray, memoryview, str)

#: Frames hold what this function itself looks at. What a module holds stands in its dictionary, which is looked at;
#: to ask the module itself would bring objects to life that CPython 3.12 has freed and keeps for later (`_asyncio`).
_LEFT_OUT = (FrameType, ModuleType)
_AT_ONCE = 10_000


def pinned(mark: bytes, least: int = 1024) -> list[str]:
    """The holders of strings with at least so many bytes that contain the mark; none is what a test wants to see."""
    gc.collect()
    holders = [each for each in gc.get_objects() if not issubclass(type(each), _LEFT_OUT)]
    found = []
    for start in range(0, len(holders), _AT_ONCE):
        some = holders[start : start + _AT_ONCE]
        if any(_has(mark, text, least) for text in _reached(gc.get_referents(*some))):
            found += [
                f"{_name(each)}{way}: {len(text)} bytes" for each in some for way, text in _held(each, mark, least)
            ]
    return found


def _name(holder: object) -> str:
    return f"{type(holder).__module__}.{type(holder).__name__}"


def _held(holder: object, mark: bytes, least: int) -> list[tuple[str, _Text]]:
    return [(way, text) for way, text in _reach(holder) if _has(mark, text, least)]


def _has(mark: bytes, text: _Text, least: int) -> bool:
    shared = (socket_tunnel._buffer, socket_tunnel._view)
    if len(text) < least or text is shared[0] or text is shared[1]:
        return False
    return mark in (text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text))


def _reached(referents: list[object]) -> list[_Text]:
    """The strings among them, and in containers among them that the collector does not track."""
    found: list[Any] = [held for held in referents if isinstance(held, _TEXTS)]
    inner = [held for held in referents if isinstance(held, (tuple, dict)) and not gc.is_tracked(held)]
    return found + _reached(gc.get_referents(*inner)) if inner else found


def _reach(holder: object) -> Iterator[tuple[str, _Text]]:
    """The same of one holder, each with the way to it."""
    for held in gc.get_referents(holder):
        if isinstance(held, _TEXTS):
            yield "", held
        elif isinstance(held, tuple | dict) and not gc.is_tracked(held):
            for way, more in _reach(held):
                yield f" > {type(held).__name__}{way}", more
