"""The folder of objects that were written through the API: one file each, put in place by a rename.

A staged file has a name with a leading dot, which is no manifest, until its configuration is in service.
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
#: The first line of every file: YAML that is invalid Python, so that the file of an object is never a program.
FIRST_LINE: Final = "--- # Written through the admin API of egressproxy. Data, never run as a program.\n"
_STAGED: Final = ".staged-"
#: Of a file name (NAME_MAX), with room for the prefix.
MAX_NAME: Final = 230


def lock(folder: Path, held: int | None = None) -> int:
    """Create the folder if needed, lock it for this process, and remove an earlier process's staged files. `held` is
    the predecessor's locked descriptor, which is used if it is for this folder.

    Returns the locked descriptor. Raises OSError, and BlockingIOError if another process has the lock.
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
    """The file of an object: `httproute.gateway.networking.k8s.io_agents_models.yaml`; a long name ends in a hash."""
    kind = f"{kind.lower()}.{group}" if group else kind.lower()
    stem = "_".join(filter(None, (kind, namespace, name)))
    if len(stem) > MAX_NAME:
        stem = f"{stem[: MAX_NAME - 33]}_{blake2b(stem.encode(), digest_size=16).hexdigest()}"
    return folder / f"{stem}.yaml"


def usage(folder: Path) -> tuple[int, int]:
    """The number of objects in the folder, and their bytes. Raises OSError."""
    sizes = [entry.stat().st_size for entry in os.scandir(folder) if not entry.name.startswith(".")]
    return len(sizes), sum(sizes)


def stage(file: Path, text: str) -> None:
    """Write the staged file for `commit`, readable by this user alone. Raises OSError."""
    staged = _staged(file)
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def commit(files: Iterable[tuple[Path, bool]]) -> dict[Path, OSError]:
    """Put staged files of one folder in place, or remove those with True. Returns the errors by file."""
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
    """Remove the staged file. Raises OSError."""
    _staged(file).unlink(missing_ok=True)


def _staged(file: Path) -> Path:
    return file.with_name(f"{_STAGED}{file.name}")
