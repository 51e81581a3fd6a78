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
from pathlib import Path

from egressproxy.config.manifests import SUFFIXES, manifest_files
from egressproxy.config.sources.events import Events

__all__ = ["changes"]

#: A change has settled when nothing more comes for this long …
_QUIET_S = 0.05
#: … but a folder that is written to without end is reported after this.
_PATIENCE_S = 0.3
_LOOK_S = 0.5

_FILTERS = ".py"

#: (path, device, inode, size, changed in ns) of every file that counts; zeros where there is none. The time of change
#: rather than of modification: nobody can set it back.
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
        try:
            events = Events(folders)
        except OSError:  # no such folder any more, or no watch to be had: look now and then
            events = None
        try:
            # An old watch does not see a folder that was removed and made again.
            while not stop.is_set() and _folders(paths) == folders:
                now = await asyncio.to_thread(_fingerprint, paths)
                if now != last:
                    last = now
                    yield None
                await _next_look(events)
        finally:
            if events is not None:
                events.close()


async def _next_look(events: Events | None) -> None:
    """Until it is time to look: something happened and has settled, or some time has passed."""
    if events is None:
        await asyncio.sleep(_LOOK_S)
    elif await events.wait(_LOOK_S):
        loop = asyncio.get_running_loop()
        latest = loop.time() + _PATIENCE_S
        while loop.time() < latest and await events.wait(_QUIET_S):
            pass


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
                found.append((str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime_ns))
    return tuple(found)
