"""Events: says on the event loop that something happened in folders. Source: inotify(7), <sys/inotify.h>."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

__all__ = ["Events"]

#: Who writes without end is heard of when he closes the file: a log beside the manifests wakes nobody.
_CLOSED_WRITTEN: Final = 0x8
_CHANGED_ATTRIBUTES: Final = 0x4
_MOVED_FROM, _MOVED_TO, _CREATED, _DELETED, _DELETED_SELF, _MOVED_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_MASK: Final = (
    _CLOSED_WRITTEN | _CHANGED_ATTRIBUTES | _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED | _DELETED_SELF | _MOVED_SELF
)
_READ_BYTES: Final = 64 * 1024


class Events:
    """Of the entries of these folders, and of the folders themselves, from the constructor to `close`.

    Raises OSError where the kernel has no watch left, or a folder is gone.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._happened = asyncio.Event()
        try:
            for folder in folders:
                _checked(libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK))
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        except BaseException:
            os.close(self._descriptor)
            raise

    async def wait(self, seconds: float) -> bool:
        """Whether something happened since the last call that said so, or does within this time."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), seconds)
        happened = self._happened.is_set()
        self._happened.clear()
        return happened

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        """What it was does not matter: the files are looked at."""
        with suppress(BlockingIOError):
            while os.read(self._descriptor, _READ_BYTES):
                self._happened.set()


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
