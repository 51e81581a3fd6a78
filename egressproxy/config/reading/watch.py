"""Watches files and folders of manifests, and reports changes. Never reads their content.

Python files beside the manifests count, too, since they may be filters.

A change is a new fingerprint of these files: names, inodes, sizes and times, with symbolic links followed. So an
editor's temporary file is no change, and the swap of the `..data` link of a mounted ConfigMap is one. Events of the
operating system (inotify) trigger a comparison. A comparison every half second finds changes without events; the next
comparison reports these, so that a change with an event is not reported twice.
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
#: The interval of calls of `also` alone, in seconds.
ALONE_S = 5.0

_FILTERS = ".py"

#: The link to the files of a mounted ConfigMap or Secret, which each change replaces.
_SWAPPED = "..data"

#: (path, device, inode, size, modified in ns) of every watched file; zeros for a missing one.
_Fingerprint = tuple[tuple[str, int, int, int, int], ...]


def changes(
    sources: Sequence[ConfigSource], stop: asyncio.Event, also: Callable[[], object] = lambda: None
) -> AsyncIterator[None]:
    """Yield once for every settled change of these files and folders, counted from this call, until `stop` is set.

    A single file is watched through its folder, since a rename gives it a new inode. Missing files and folders are
    watched for; without any, only `also` is called. Changes during the consumer's work are yielded after it. Of Secrets
    in raw files every file counts. `also` is called, in any thread, for the state of other sources.
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
                # A poll may find a rename before its event, which is then no second change.
                is_held = now != last and not touched and not is_held
                if (touched or now != last) and not is_held:
                    last = now
                    yield None
                if _inodes(paths, secret_folders(secrets)) != folders:
                    break  # a folder was removed or recreated: an old watch does not see the new one


async def _looks(
    paths: Sequence[Path], raw: Sequence[Path], folders: dict[str, int], stop: asyncio.Event
) -> AsyncGenerator[bool, None]:
    """Yield at each time to compare; true if a watched file was certainly written."""
    if not folders:  # no file to watch
        if not await _is_set(stop, ALONE_S):
            yield False
        return
    is_left = False
    try:
        # `awatch` would import anyio's event loop, a megabyte.
        events = watchfiles.watch(
            # The library supports only UTF-8 names: other folders are only polled.
            *(folder for folder in folders if folder.encode(errors="ignore").decode() == folder),
            watch_filter=None,
            debounce=_PATIENCE_MS,
            step=_QUIET_MS,
            stop_event=SimpleNamespace(is_set=lambda: is_left or stop.is_set()),  # called in a thread
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
                continue  # endless writes of other files must not replace the poll
            look_at = monotonic() + _LOOK_MS / 1000
            yield any(_counts(path, paths) for path in ours)
    except (OSError, RuntimeError, UnicodeError):
        # A missing folder, no inotify available, or a name that is no text: poll.
        if not await _is_set(stop, _LOOK_MS / 1000):
            yield False
    finally:
        is_left = True  # the thread notices within _QUIET_MS


async def _is_set(stop: asyncio.Event, within_s: float) -> bool:
    try:
        await asyncio.wait_for(stop.wait(), within_s)
    except TimeoutError:
        return False
    return True


def _in_folders(paths: Iterable[Path], raw: Iterable[Path]) -> Callable[[str], bool]:
    """A predicate for events in the folders of the paths, or of the folders themselves."""
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
    """The folder to watch: the path itself, or the folder of a single file."""
    is_file = path.is_file() or (path.suffix in SUFFIXES and not path.is_dir())
    return path.parent if is_file else path


def _inodes(paths: Iterable[Path], raw: Iterable[Path]) -> dict[str, int]:
    """The folders to watch, with inodes, including the parents of manifest folders, which may be recreated."""
    found: dict[str, int] = {}
    own = [_folder(path) for path in paths]
    for folder in (*own, *(Path(os.path.abspath(each)).parent for each in own), *raw):
        with suppress(OSError):
            found[str(folder)] = folder.stat().st_ino
    return found


def _fingerprint(paths: Iterable[Path], secrets: Iterable[SecretSource]) -> _Fingerprint:
    """The fingerprint of manifests and filters, and of all files of Secrets."""
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
    """The state of the file after following links; zeros if it is missing."""
    try:
        stat = file.stat()
    except OSError:
        return str(file), 0, 0, 0, 0
    return str(file), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
