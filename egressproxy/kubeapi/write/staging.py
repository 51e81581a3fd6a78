"""The folder of objects that were written through the API: one file each, put in place by a rename.

What is staged has a name that starts with a dot, which is no manifest, until the configuration with it is in service.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from egressproxy.model.state_folder import MARK
from egressproxy.net.durable_file import sync_folder

LOCK: Final = ".lock"
#: Of every file. It is YAML and can begin no Python: whatever an object says, its file is never a program.
FIRST_LINE: Final = "--- # Written through the admin API of egressproxy. This is data: nothing runs it.\n"
_STAGED: Final = ".staged-"
#: Of a file name (NAME_MAX), with room for the prefix.
MAX_NAME: Final = 230


def lock(folder: Path, held: int | None = None) -> int:
    """Make the folder where there is none, take it for this process, and drop what an earlier one left half done.
    `held` is a descriptor that holds a folder, which the process before has given: it serves if that is this folder.

    Returns a descriptor that holds it. Raises OSError, BlockingIOError where another process has it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if held is not None and os.path.samestat(os.fstat(held), os.fstat(descriptor)):
        os.close(descriptor)
        descriptor = os.dup(held)  # an flock belongs to the opening, of which both are descriptors
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / MARK).touch(0o600)
        for left in folder.glob(f"{_STAGED}*"):
            left.unlink()
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def file_of(folder: Path, group: str, kind: str, namespace: str, name: str) -> Path:
    """Where an object is kept: `httproute.gateway.networking.k8s.io_agents_models.yaml`; a long name ends in a hash."""
    kind = f"{kind.lower()}.{group}" if group else kind.lower()
    stem = "_".join(filter(None, (kind, namespace, name)))
    if len(stem) > MAX_NAME:
        stem = f"{stem[: MAX_NAME - 33]}_{blake2b(stem.encode(), digest_size=16).hexdigest()}"
    return folder / f"{stem}.yaml"


def usage(folder: Path) -> tuple[int, int]:
    """How many objects the folder has, and their bytes. Raises OSError."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return len(sizes), sum(sizes)


def stage(file: Path, text: str) -> None:
    """Write what `commit` will put in place, readable by this user alone. Raises OSError."""
    staged = _staged(file)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def commit(files: Iterable[tuple[Path, bool]]) -> dict[Path, OSError]:
    """Put staged files of one folder in place, or remove those with True. Returns what could not be kept, and why."""
    failed: dict[Path, OSError] = {}
    done: list[Path] = []
    for file, is_deleted in files:
        try:
            if is_deleted:
                file.unlink(missing_ok=True)
            else:
                os.replace(_staged(file), file)
            done.append(file)
        except OSError as error:
            failed[file] = error
    if done:
        try:
            sync_folder(done[0].parent)
        except OSError as error:
            failed |= dict.fromkeys(done, error)
    return failed


def discard(file: Path) -> None:
    """Remove what `stage` wrote for this file. Raises OSError."""
    _staged(file).unlink(missing_ok=True)


def _staged(file: Path) -> Path:
    return file.with_name(f"{_STAGED}{file.name}")
