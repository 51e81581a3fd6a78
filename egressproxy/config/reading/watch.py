"""Watches files and folders of manifests, and says when they have changed. Never reads what is in them.

The Python files beside them count, too: a filter may be in one.

A change is a new fingerprint of these files: their names, inodes, sizes and times, with symbolic links followed. So the
temporary file of an editor is not a change, and the swap of the `..data` link of a mounted ConfigMap is one. Events of
the operating system (inotify) say when to compare. Where there are no events, or one is lost, a comparison every half
second finds the change; it is reported by the next comparison, so that a change with an event is not reported twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import watchfiles

from egressproxy.config.reading.source_files import SUFFIXES, manifest_files, secret_folders
from egressproxy.model.secret import ConfigSource, SecretSource

#: A change has settled when nothing more comes for this long …
_QUIET_MS = 50
#: … but a folder that is written to without end is reported after this.
_PATIENCE_MS = 300
_LOOK_MS = 500
#: How often `also` alone is asked, in seconds.
ALONE_S = 5.0

_FILTERS = ".py"

#: The link to the files of a mounted ConfigMap or Secret, which is replaced where they change.
_SWAPPED = "..data"

#: (path, device, inode, size, modified in ns) of every file that counts; zeros where there is none.
_Fingerprint = tuple[tuple[str, int, int, int, int], ...]


def changes(
    sources: Sequence[ConfigSource], stop: asyncio.Event, also: Callable[[], object] = lambda: None
) -> AsyncIterator[None]:
    """Yield once for every settled change of these files and folders, counted from this call, until `stop` is set.

    A single file is watched through its folder, since replacing it by rename gives it a new inode. Files and folders
    that are not there are waited for; where there are none, `also` alone is asked now and then. Changes during the
    consumer's work are yielded after it. Of Secrets in raw files every file counts. `also` is called, in any thread,
    for what else may change.
    """
    paths = tuple(source for source in sources if isinstance(source, Path))
    secrets = tuple(source for source in sources if isinstance(source, SecretSource))

    def look() -> object:
        return _fingerprint(paths, secrets), also()

    return _changes(paths, secrets, stop, look, look())


async def _changes(
    paths: Sequence[Path],
    secrets: Sequence[SecretSource],
    stop: asyncio.Event,
    look: Callable[[], object],
    last: object,
) -> AsyncGenerator[None, None]:
    is_held = False
    while not stop.is_set():
        raw = tuple(secret_folders(secrets))
        folders = _inodes(paths, raw)
        async with aclosing(_looks(paths, raw, folders, stop)) as looks:
            async for touched in looks:
                now = await asyncio.to_thread(look)
                # A look in the moment of a rename finds it before its event does, which is no second change.
                is_held = now != last and not touched and not is_held
                if (touched or now != last) and not is_held:
                    last = now
                    yield None
                if _inodes(paths, secret_folders(secrets)) != folders:
                    break  # one was removed or made again: an old watch does not see the new one


async def _looks(
    paths: Sequence[Path], raw: Sequence[Path], folders: dict[str, int], stop: asyncio.Event
) -> AsyncGenerator[bool, None]:
    """Yield whenever it is time to look; true if one that counts was certainly written to."""
    if not folders:  # nothing is written to
        if not await _is_set(stop, ALONE_S):
            yield False
        return
    is_left = False
    try:
        # Its `awatch` would import anyio's event loop, a megabyte.
        events = watchfiles.watch(
            # The library knows names of UTF-8 alone: others have the regular look alone.
            *(folder for folder in folders if folder.encode(errors="ignore").decode() == folder),
            watch_filter=None,
            debounce=_PATIENCE_MS,
            step=_QUIET_MS,
            stop_event=SimpleNamespace(is_set=lambda: is_left or stop.is_set()),  # asked in a thread
            rust_timeout=_LOOK_MS,
            yield_on_timeout=True,
            recursive=False,
            raise_interrupt=False,
        )
        is_ours, look_at = _in_folders(paths, raw), 0.0
        while not stop.is_set():
            found = await asyncio.to_thread(next, events, None)
            if found is None:
                return
            ours = [path for _, path in found if is_ours(path)]
            if found and not ours and monotonic() < look_at:
                continue  # what is written elsewhere comes in place of the regular look, and may never end
            look_at = monotonic() + _LOOK_MS / 1000
            yield any(_counts(path, paths) for path in ours)
    except (OSError, RuntimeError, UnicodeError):
        # No such folder any more, no inotify to be had, or a name that is no text: look now and then.
        if not await _is_set(stop, _LOOK_MS / 1000):
            yield False
    finally:
        is_left = True  # the thread sees it within _QUIET_MS


async def _is_set(stop: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), within_s)
    except TimeoutError:
        return False
    return True


def _in_folders(paths: Iterable[Path], raw: Iterable[Path]) -> Callable[[str], bool]:
    """Whether something happened in the folders of the paths, or to the folders themselves."""
    own = {os.path.abspath(folder) for folder in (*map(_folder, paths), *raw)}
    return lambda path: not own.isdisjoint((os.path.abspath(path), os.path.dirname(os.path.abspath(path))))


def _counts(path: str, paths: Sequence[Path]) -> bool:
    name = os.path.basename(path)
    if name == _SWAPPED or any(name == given.name for given in paths):
        return True
    if name.startswith("."):
        return False
    return name.endswith(_FILTERS) or (name.endswith(SUFFIXES) and any(given.is_dir() for given in paths))


def _folder(path: Path) -> Path:
    """The folder whose entries matter: the path itself, or that of a single file."""
    is_file = path.is_file() or (path.suffix in SUFFIXES and not path.is_dir())
    return path.parent if is_file else path


def _inodes(paths: Iterable[Path], raw: Iterable[Path]) -> dict[str, int]:
    """What to watch, with inodes: the folders, and those above manifests, where a removed one will come back."""
    found: dict[str, int] = {}
    own = [_folder(path) for path in paths]
    for folder in (*own, *(Path(os.path.abspath(each)).parent for each in own), *raw):
        with suppress(OSError):
            found[str(folder)] = folder.stat().st_ino
    return found


def _fingerprint(paths: Iterable[Path], secrets: Iterable[SecretSource]) -> _Fingerprint:
    """Of manifests and filters; and of everything that is in the folders of Secrets, or is one's single file."""
    files: list[Path] = []
    for path in paths:
        try:
            of_path = manifest_files(path) if path.is_dir() else [path]
            files += of_path + sorted(each for each in _folder(path).glob("*" + _FILTERS) if each.name[0] != ".")
        except OSError:
            files.append(path)
    raw = {source.path for source in secrets if source.path is not None}
    for folder in secret_folders(secrets):
        if folder.is_dir() and not raw.isdisjoint((folder, *folder.parents)):
            with suppress(OSError):
                raw.update(file for file in folder.iterdir() if not file.name.startswith(".."))
    return tuple(map(_state, (*files, *sorted(raw))))


def _state(file: Path) -> tuple[str, int, int, int, int]:
    """Of what it leads to; zeros where there is nothing."""
    try:
        stat = file.stat()
    except OSError:
        return str(file), 0, 0, 0, 0
    return str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
