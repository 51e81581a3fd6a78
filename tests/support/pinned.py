"""What this process keeps: every byte string of some size that any object holds, and who holds it.

The buffer that all tunnels share is left out: it is there once, whatever passes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FrameType, ModuleType

from egressproxy.protocols.tunnel import socket_tunnel

#: Frames hold what this function itself looks at. What a module holds stands in its dictionary, which is looked at;
#: to ask the module itself would bring objects to life that CPython 3.12 has freed and keeps for later (`_asyncio`).
_LEFT_OUT = (FrameType, ModuleType)


def pinned(mark: bytes, least: int = 1024) -> list[str]:
    """The holders of strings with at least so many bytes that contain the mark; none is what a test wants to see."""
    gc.collect()
    found = []
    shared = {id(socket_tunnel._buffer), id(socket_tunnel._view)}
    for holder in gc.get_objects():
        if issubclass(type(holder), _LEFT_OUT) or holder is found:
            continue
        for way, held in _reach(holder):
            if len(held) >= least and id(held) not in shared and mark in _octets(held):
                found.append(f"{type(holder).__module__}.{type(holder).__name__}{way}: {len(held)} bytes")
    return found


def _reach(holder: object) -> Iterator[tuple[str, bytes | bytearray | memoryview | str]]:
    """Strings that it refers to itself, or through containers that the collector does not track."""
    for held in gc.get_referents(holder):
        if isinstance(held, bytes | bytearray | memoryview | str):
            yield "", held
        elif isinstance(held, tuple | dict) and not gc.is_tracked(held):
            for way, more in _reach(held):
                yield f" > {type(held).__name__}{way}", more


def _octets(held: bytes | bytearray | memoryview | str) -> bytes:
    return held.encode("utf-8", "replace") if isinstance(held, str) else bytes(held)
