"""ChainWriter: writes records into the files of one chain, in a thread of its own.

Each process has a chain: the first of 0, 1, … with a free lock. A new process continues an earlier process's chain. A
record that cannot be written (a full disk) stays queued and is retried; meanwhile `why_not` gives the reason, and the
filter refuses requests. A record that a crash has truncated is removed from the file, and the chain records the number
of removed bytes.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

from egressproxy import __version__
from egressproxy.model.secret import SecretBytes
from egressproxy.net.file_lock import try_lock
from egressproxy.operators.audit.record_chain import (
    HMAC_SHA256,
    SHA256,
    BadLine,
    Link,
    chains_in,
    file_name,
    for_its_owner,
    made_line,
    read_head,
    read_line,
    write_head,
)

log = logging.getLogger(__name__)

#: The most chains in one folder, more than a machine has workers.
MAX_CHAINS: Final = 1024
#: The interval of retries, and of syncs in mode "Interval", in seconds.
RETRY_S: Final = 1.0
SYNC_S: Final = 1.0
#: Records in one write.
BATCH: Final = 256
#: The most seconds for which `close` waits for the disk.
CLOSE_S: Final = 5.0


#: The time of fsync(2): after each write, once a second, or never.
Sync = Literal["Always", "Interval", "Never"]


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """The settings of a record. `rotate_bytes`, `rotate_s`: the limits of a file; 0: no limit."""

    key: SecretBytes | None = None
    sync: Sync = "Interval"
    rotate_bytes: int = 0
    rotate_s: float = 0.0
    max_waiting: int = 10_000

    @property
    def algorithm(self) -> str:
        return SHA256 if self.key is None else HMAC_SHA256


def stamp(seconds: float) -> str:
    """A time (seconds since 1970) in RFC 3339 format, UTC, to the millisecond."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds % 1 * 1000):03}Z"


class ChainWriter:
    """The writer of one folder in this process. `chain` is "" before `start`. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain = ""
        self.lost = 0  # records dropped because the queue was full
        self.written = 0
        self._told_lost = 0
        self._why_not = ""
        self._records: deque[tuple[ChainSettings, Mapping[str, Any]]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._lock: IO[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._settings = ChainSettings()
        self._link = Link()
        self._number = 0
        self._size = 0
        self._opened_at = 0.0
        self._synced_at = 0.0
        self._is_dirty = False
        self._opening: dict[str, Any] = {}  # the pending first record of the file
        self._thread: threading.Thread | None = None

    def start(self, settings: ChainSettings) -> None:
        """Take a chain and continue it. Raises OSError; the caller may then try again."""
        with self._wake:
            if self._thread is not None:
                return
            try:
                self._take_chain()
                self._settings = settings
                self._resume()
            except OSError:
                self._let_go()
                raise
            self._thread = threading.Thread(target=self._run, daemon=True, name=f"audit {self.chain}")
            self._thread.start()
            atexit.register(self.close)

    def why_not(self, settings: ChainSettings) -> str:
        """The reason why records cannot be written now; "" if they can."""
        if self._why_not:
            return self._why_not
        waiting = len(self._records)
        return f"{waiting} records wait to be written" if waiting >= settings.max_waiting else ""

    def put(self, settings: ChainSettings, record: Mapping[str, Any]) -> bool:
        """Queue a record. Returns false, and counts the record as lost, if the queue has twice its limit."""
        with self._wake:
            if self._thread is None or len(self._records) >= 2 * settings.max_waiting:
                self.lost += 1
                return False
            self._records.append((settings, record))
            self._wake.notify()
            return True

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_S)

    # --- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._records and not self._is_closing:
                    self._wake.wait(SYNC_S if self._is_dirty or self._why_not else None)
                batch = [self._records[n] for n in range(min(BATCH, len(self._records)))]
                is_over = self._is_closing and not batch
            try:
                if batch:
                    self._write(batch)
                elif self._why_not:  # try a write: no records arrive while the filter refuses requests
                    self._begin_file()
                    self._say_head()
                self._sync(is_over)
                self._why_not = ""
            except OSError as error:
                if not self._why_not:
                    log.error("audit: %s cannot be written: %s", self.folder, error.strerror or error)
                self._why_not = f"the audit log cannot be written: {error.strerror or error}"
                if self._is_closing:
                    is_over = True
                else:
                    time.sleep(RETRY_S)
            if is_over:
                self._let_go()
                return

    def _write(self, batch: list[tuple[ChainSettings, Mapping[str, Any]]]) -> None:
        """Write these first records of the queue, and remove the written ones. Raises OSError."""
        for settings, record in batch:
            self._begin_file()
            if settings != self._settings or self._is_over(settings):
                self._rotate(settings)
            lost, self._told_lost = self.lost - self._told_lost, self.lost
            if lost:
                self._append({"time": stamp(time.time()), "kind": "gap", "lost": lost})
            self._append(record)
            with self._wake:
                self._records.popleft()
            self.written += 1
        assert self._file is not None
        self._file.flush()
        self._is_dirty = True
        if self._settings.sync == "Always":
            os.fsync(self._file.fileno())
        self._say_head()

    def _append(self, values: Mapping[str, Any]) -> None:
        """Write one record. Raises OSError; the file then has no part of the record."""
        assert self._file is not None
        try:
            line, link = made_line(self.chain, self._link, values, self._settings.key)
        except Exception as error:  # a failed redaction must not end the chain or its thread
            log.exception("internal error: an audit record cannot be made as it is")
            fields = {name: values[name] for name in ("time", "kind", "request_id") if name in values}
            fields["error"] = type(error).__name__
            line, link = made_line(self.chain, self._link, fields, self._settings.key)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            self._file.seek(self._size)
            raise
        self._link = link
        self._size += len(line)

    def _sync(self, is_over: bool) -> None:
        now = time.monotonic()
        is_due = self._settings.sync == "Interval" and now - self._synced_at >= SYNC_S
        if self._is_dirty and self._file is not None and (is_due or is_over):
            if self._settings.sync != "Never":
                os.fsync(self._file.fileno())
            self._synced_at = now
            self._is_dirty = False
        elif self._settings.sync != "Interval":
            self._is_dirty = False

    def _say_head(self) -> None:
        key, is_synced = self._settings.key, self._settings.sync == "Always"
        write_head(self.folder, self.chain, self._link, stamp(time.time()), key, sync=is_synced)

    # --- files -----------------------------------------------------------------------------------------------------
    def _is_over(self, settings: ChainSettings) -> bool:
        age = time.time() - self._opened_at
        return 0 < settings.rotate_bytes <= self._size or 0 < settings.rotate_s <= age

    def _rotate(self, settings: ChainSettings) -> None:
        """Begin another file, whose first record has the hash of the last. Raises OSError."""
        if self._file is not None:
            self._file.flush()
            if self._settings.sync != "Never":
                os.fsync(self._file.fileno())
        self._open(self._number + 1, settings, {})

    def _open(self, number: int, settings: ChainSettings, more: Mapping[str, Any]) -> None:
        path = self.folder / file_name(self.chain, number)
        # Unbuffered: after `write` the kernel has the data, completely or in part.
        file = open(path, "xb", buffering=0, opener=for_its_owner)  # noqa: SIM115 (it stays open)
        if self._file is not None:
            self._file.close()
        self._file, self._number, self._size, self._opened_at = file, number, 0, time.time()
        self._settings = settings
        header = {"file": number, "algorithm": settings.algorithm, "version": __version__, **more}
        self._opening = {"time": stamp(self._opened_at), "kind": "open", **header}
        self._begin_file()

    def _begin_file(self) -> None:
        """Write the first record of the file, if it has none: the disk may have been full. Raises OSError."""
        if self._opening:
            self._append(self._opening)
            self._opening = {}
            self._say_head()

    def _take_chain(self) -> None:
        """Lock the first free chain. Raises OSError."""
        for number in range(MAX_CHAINS):
            file = open(self.folder / f"audit-{number}.lock", "ab", opener=for_its_owner)  # noqa: SIM115 (held)
            if not try_lock(file.fileno()):
                file.close()
                continue
            self._lock, self.chain = file, str(number)
            return
        raise OSError(errno.EAGAIN, f"{MAX_CHAINS} processes write to this folder")

    def _resume(self) -> None:
        """Continue the chain after its last record, in a new file. Raises OSError."""
        files = chains_in(self.folder).get(self.chain, [])
        more: dict[str, Any] = {}
        self._link, self._number = Link(), files[-1][0] if files else 0
        head = None
        try:
            head = read_head(self.folder, self.chain, self._settings.key)
        except BadLine as error:
            log.error("audit: the head of chain %s in %s: %s", self.chain, self.folder, error)
            more["head"] = "unreadable"
        else:
            if head is None and files:
                log.error("audit: chain %s in %s has records, and no head", self.chain, self.folder)
                more["head"] = "missing"
        for _, path in reversed(files):  # the last file may have no complete record
            last, cut = _last_line(path)
            if cut:
                more["cut_bytes"] = more.get("cut_bytes", 0) + cut
                log.warning("audit: %s ended within a record: %d bytes are taken out", path, cut)
            if last is None:
                continue
            try:
                values, digest = read_line(last, self._settings.key)
                self._link = Link(values["seq"], digest)
            except BadLine:
                self._link = _told_link(last)  # another key, or a forgery: verification shows which
            break
        if head is not None and head.seq > self._link.seq:
            more["missing"] = head.seq - self._link.seq
            log.error("audit: chain %s in %s lacks its last %d records", self.chain, self.folder, more["missing"])
        self._open(self._number + 1, self._settings, more)

    def _let_go(self) -> None:
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None


_writers: dict[Path, ChainWriter] = {}


def writer_of(folder: str) -> ChainWriter:
    """The writer of this folder, shared by all filters of the process. It lives as long as the process: exchanges in
    flight still write records after a reload has removed their filter.
    """
    path = Path(os.path.realpath(folder))
    return _writers.setdefault(path, ChainWriter(path))


def _last_line(path: Path) -> tuple[bytes | None, int]:
    """The last complete line of a file, or None, and the number of bytes that were cut off after it."""
    with open(path, "r+b", opener=for_its_owner) as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        cut = len(data) - end
        if cut:
            file.truncate(end)
    whole = data[:end].splitlines(keepends=True)
    return (whole[-1] if whole else None), cut


def _told_link(line: bytes) -> Link:
    """The link that a line states, without a check of its hash."""
    try:
        values = json.loads(line)
        return Link(int(values["seq"]), str(values["hash"]))
    except (ValueError, KeyError, TypeError):
        return Link()
