"""Watches files and folders of manifests, and says when they have changed. Never reads what is in them.

The Python files beside them count, too: a filter may be in one.

Events of the operating system say when to look; what counts is the fingerprint of these files (which there are,
with inode, size and time, symbolic links followed). So a temporary file of an editor is no change, the swap of the
`..data` link of a mounted ConfigMap is one, and where events are lost or not to be had, a look every half second finds
what they would have said.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path

from watchfiles import Change, awatch

from egressproxy.config.manifests import SUFFIXES, manifest_files

__all__ = ["changes"]

#: A change has settled when nothing more comes for this long …
_QUIET_MS = 50
#: … but a folder that is written to without end is reported after this.
_PATIENCE_MS = 300
_LOOK_MS = 500

_FILTERS = ".py"

#: (path, device, inode, size, modified in ns) of every file that counts; zeros where there is none.
_Fingerprint = tuple[tuple[str, int, int, int, int], ...]


def changes(paths: Sequence[Path], stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield once for every settled change of these files and folders, counted from this call, until `stop` is set.

    A single file is watched through its folder, since replacing it by rename gives it a new inode. Files and folders
    that are not there are waited for. Changes during the consumer's work are yielded after it.
    """
    return _changes(tuple(paths), stop, _fingerprint(paths))


async def _changes(paths: Sequence[Path], stop: asyncio.Event, last: _Fingerprint) -> AsyncGenerator[None, None]:
    while not stop.is_set():
        folders = _folders(paths)
        async with aclosing(_looks(paths, folders, stop)) as looks:
            async for touched in looks:
                now = await asyncio.to_thread(_fingerprint, paths)
                if touched or now != last:
                    last = now
                    yield None
                if _folders(paths) != folders:
                    break  # one was removed or made again: an old watch does not see the new one


async def _looks(paths: Sequence[Path], folders: dict[str, int], stop: asyncio.Event) -> AsyncGenerator[bool, None]:
    """Yield whenever it is time to look; true if one that counts was certainly written to."""
    try:
        watch = awatch(
            *folders,
            watch_filter=_Filter(paths),
            debounce=_PATIENCE_MS,
            step=_QUIET_MS,
            stop_event=stop,
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            recursive=False,
        )
        async with aclosing(watch):
            async for found in watch:
                yield any(_counts(path, paths) for _, path in found)
    except (OSError, RuntimeError):  # no such folder any more, or no inotify to be had: look now and then
        try:
            await asyncio.wait_for(stop.wait(), _LOOK_MS / 1000)
        except TimeoutError:
            yield False


class _Filter:
    """Lets through what happens in the folders of the paths, and to the folders themselves."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._folders = {os.path.abspath(_folder(path)) for path in paths}

    def __call__(self, change: Change, path: str) -> bool:
        path = os.path.abspath(path)
        return path in self._folders or os.path.dirname(path) in self._folders


def _counts(path: str, paths: Sequence[Path]) -> bool:
    name = os.path.basename(path)
    if any(name == given.name and not given.is_dir() for given in paths):
        return True
    if name.startswith("."):
        return False
    return name.endswith(_FILTERS) or (name.endswith(SUFFIXES) and any(given.is_dir() for given in paths))


def _folder(path: Path) -> Path:
    """The folder whose entries matter: the path itself, or that of a single file."""
    is_file = path.is_file() or (path.suffix in SUFFIXES and not path.is_dir())
    return path.parent if is_file else path


def _folders(paths: Iterable[Path]) -> dict[str, int]:
    """What to watch, with inodes: the folders, and theirs, where a removed one will come back."""
    found: dict[str, int] = {}
    for path in paths:
        folder = _folder(path)
        for watched in (folder, Path(os.path.abspath(folder)).parent):
            try:
                found[str(watched)] = watched.stat().st_ino
            except OSError:
                continue
    return found


def _fingerprint(paths: Iterable[Path]) -> _Fingerprint:
    found: list[tuple[str, int, int, int, int]] = []
    for path in paths:
        try:
            files = manifest_files(path) if path.is_dir() else [path]
            files += sorted(beside for beside in _folder(path).glob("*" + _FILTERS) if beside.name[0] != ".")
        except OSError:
            files = [path]
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                found.append((str(file), 0, 0, 0, 0))
            else:
                found.append((str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
