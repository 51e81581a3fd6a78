"""CallerStore: what is kept of each caller, one file for each, in a folder that all workers share.

A file is readable by the gateway's user alone (mode 0600), and encrypted where there is a key. The name of a file is a
digest of the owner and of the caller's name, which the file repeats: no entry is ever read for another caller, or by a
filter that another object declares.
Changes are made under a lock of the caller, which holds between processes: a refresh token that rotates is used once.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from egressproxy.filters.credentials.refresher import FetchError
from egressproxy.model.secret import SecretBytes
from egressproxy.net.durable_file import replace_file
from egressproxy.net.file_lock import try_lock

#: The longest file, in bytes.
MAX_FILE: Final = 1024 * 1024
#: How long to wait for the lock of a caller, in seconds, and between two attempts.
LOCK_S: Final = 30.0
PAUSE_S: Final = 0.02

#: By what a change of a file is seen: inode, time of change, size.
Stamp = tuple[int, int, int]


class CallerStore:
    """The entries of one owner in one folder."""

    __slots__ = ("_folder", "_key", "_owner")

    def __init__(self, folder: str, owner: str, key: SecretBytes | None) -> None:
        """`owner`: what the tokens are for, and by whom; `key`: any secret text; None: files are not encrypted."""
        self._folder = Path(folder)
        self._owner = owner
        self._key = (
            SecretBytes(sha256(b"egressproxy mcp tokens\0" + key.reveal()).digest()) if key is not None else None
        )

    def stamp(self, caller: str) -> Stamp | None:
        """None: nothing is kept of this caller."""
        try:
            found = os.stat(self._path(caller))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def read(self, caller: str) -> dict[str, Any]:
        """The entry of this caller; {} without one. Raises FetchError where there is one that cannot be read."""
        path = self._path(caller)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                about = os.fstat(descriptor)
                data = file.read(MAX_FILE + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise FetchError(f"stateFolder: {path} cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077 or about.st_uid != os.geteuid():
            raise FetchError(f"stateFolder: {path} is not a file of mode 0600 of the gateway's user")
        try:
            entry = json.loads(self._decrypted(path.name, data))
        except (ValueError, RecursionError):
            raise FetchError(f"stateFolder: {path} cannot be read with this encryptionKeyRef: remove it") from None
        if not isinstance(entry, dict) or entry.get("caller") != caller or entry.get("owner") != self._owner:
            raise FetchError(f"stateFolder: {path} is of another caller: remove it")
        return entry

    async def write(self, caller: str, entry: dict[str, Any]) -> None:
        """Replace the entry of this caller in one step; its lock is held. Raises FetchError."""
        await asyncio.to_thread(self._write, caller, entry)  # the disk may be slow

    def _write(self, caller: str, entry: dict[str, Any]) -> None:
        path = self._path(caller)
        data = json.dumps({**entry, "caller": caller, "owner": self._owner}).encode()
        try:
            replace_file(path, self._encrypted(path.name, data))
        except OSError as error:
            raise FetchError(f"stateFolder: {path} cannot be written ({error.strerror})") from None

    @asynccontextmanager
    async def locked(self, caller: str) -> AsyncIterator[None]:
        """The right to change this caller's entry: of one task of one process at a time. Raises FetchError."""
        path = self._path(caller).with_suffix(".lock")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_mode & 0o022:
                raise FetchError(f"stateFolder: others may write into {self._folder}: chmod go-w it")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FetchError(f"stateFolder: {path} cannot be opened ({error.strerror})") from None
        try:
            await _wait_for(descriptor)
            yield
        finally:
            os.close(descriptor)  # which ends the lock

    def _path(self, caller: str) -> Path:
        digest = sha256(b"%b\0%b" % (self._owner.encode(), caller.encode("utf-8", "surrogateescape")))
        return self._folder / f"{digest.hexdigest()}.token"

    def _encrypted(self, name: str, data: bytes) -> bytes:
        if self._key is None:
            return data
        from egressproxy.model.sealing import seal  # few processes need it

        return seal(self._key.reveal(), data, name.encode())

    def _decrypted(self, name: str, data: bytes) -> bytes:
        """Raises ValueError."""
        if self._key is None:
            return data
        from egressproxy.model.sealing import unseal

        return unseal(self._key.reveal(), data, name.encode())


async def _wait_for(descriptor: int) -> None:
    """Take this lock. Raises FetchError."""
    until = asyncio.get_running_loop().time() + LOCK_S
    try:
        while not try_lock(descriptor):
            if asyncio.get_running_loop().time() > until:
                raise FetchError("stateFolder: another request of this caller does not end")
            await asyncio.sleep(PAUSE_S)
    except OSError as error:
        raise FetchError(f"stateFolder: its files cannot be locked ({error.strerror})") from None
