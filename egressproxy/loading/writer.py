"""Writer: takes writes to the admin API one by one, has each worked out by a process of its own, and keeps the result.

The next process is started before it is needed, as long as writes keep coming: what it imports is most of its time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from egressproxy.loading.apart import Loading, LoadingFailed
from egressproxy.loading.outcome import Outcome, read_outcome
from egressproxy.loading.result import Loaded
from egressproxy.loading.writes import staging
from egressproxy.model.api_write import Verb, Write, WriteRefused, Written

__all__ = ["Writer"]

log = logging.getLogger(__name__)

#: For how long a process waits for the next write.
SPARE_S: Final = 15.0


class Writer:
    """Belongs to the event loop; one write at a time. `open` comes first, `close` last."""

    def __init__(self, config: Sequence[Path], bind: tuple[str, ...], folder: Path) -> None:
        self._config = config
        self._bind = bind
        self._folder = folder
        self._lock: int | None = None
        self._spare: Loading | None = None
        self._spare_end: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Take the folder. Raises OSError with a sentence."""
        try:
            self._lock = staging.lock(self._folder)
        except BlockingIOError:
            raise OSError(f"--state-dir {self._folder}: another process has it; give each its own") from None
        except OSError as error:
            raise OSError(f"--state-dir {self._folder}: {error.strerror or error}") from None

    def close(self) -> None:
        self._drop_spare()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def write(self, write: Write, memory: bytes, serve: Callable[[Loaded], Awaitable[None]]) -> Written:
        """Work it out, `serve` the configuration with it, and keep it then.

        Raises WriteRefused, or what `serve` raises, and has changed nothing then.
        """
        outcome = await self._outcome(write, memory)
        if outcome.loaded is None:
            return outcome.written
        file = Path(outcome.written.file)
        try:
            await serve(outcome.loaded)
        except BaseException:
            staging.discard(file)
            raise
        try:
            await asyncio.to_thread(staging.commit, file, write.verb is Verb.DELETE)  # waits for the disk
        except OSError as error:
            log.error("%s cannot be kept: %s; what is in service will not be after a restart", file, error)
            raise WriteRefused(
                500, "InternalError", f"it is in service, but cannot be kept: {error.strerror}"
            ) from None
        return outcome.written

    async def _outcome(self, write: Write, memory: bytes) -> Outcome:
        loading = self._spare or Loading((), self._bind)
        self._spare = None
        self._drop_spare()
        try:
            data = await loading.answer(self._config, self._bind, memory, self._folder, write)
            return read_outcome(data)
        except ValueError:
            raise LoadingFailed("the process that works out writes gave no whole answer") from None
        finally:
            self._start_spare()

    def _start_spare(self) -> None:
        try:
            self._spare = Loading((), self._bind)
        except OSError:
            return  # the next write starts its own
        self._spare_end = asyncio.get_running_loop().call_later(SPARE_S, self._drop_spare)

    def _drop_spare(self) -> None:
        if self._spare_end is not None:
            self._spare_end.cancel()
            self._spare_end = None
        if self._spare is not None:
            self._spare.end()
            self._spare.wait()
            self._spare = None
