"""Files that survive a crash of the machine: replaced as a whole, and on the disk before anybody goes on."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(file: Path, data: bytes) -> None:
    """Put a file with this content in place, readable by this user alone. Raises OSError, and has changed nothing then,
    unless the folder alone could not be synced.
    """
    beside = file.with_name(f"{file.name}.new")
    beside.unlink(missing_ok=True)  # of a process that was killed here
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(descriptor)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
