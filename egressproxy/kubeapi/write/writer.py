"""Writer: has the loader work out all writes that wait, puts the result into service, and keeps its files."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from egressproxy.kubeapi.write import staging
from egressproxy.kubeapi.write.write import Result, Verb, Write, WriteRefused, Written, read_outcomes, write_writes
from egressproxy.model.secret import ConfigSource
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig
from egressproxy.processes.pickling import dumps

log = logging.getLogger(__name__)

#: The function of the process that loads which works writes out.
ANSWER: Final = "egressproxy.kubeapi.write.answer:answer"
#: As `ANSWER`, of CAs for interception.
ISSUING: Final = "egressproxy.kubeapi.write.issuing:answer"
#: Puts a configuration into service. Raises WriteRefused, and has changed nothing then.
Serve = Callable[[CompiledConfig], Awaitable[None]]


class Writer:
    """Belongs to the event loop; one call at a time. `open` comes first, `close` last."""

    def __init__(
        self, loader: Loader, config: Sequence[ConfigSource], bind: tuple[str, ...], folder: Path,
        *, experimental: bool = False,
    ) -> None:  # fmt: skip
        self._loader = loader
        self._config = config
        self._bind = bind
        self._folder = folder
        self._experimental = experimental
        self._lock: int | None = None

    @property
    def lock(self) -> int | None:
        """The descriptor that holds the folder."""
        return self._lock

    def open(self, held: int | None = None) -> None:
        """Take the folder; `held` as of `staging.lock`. Raises OSError with a sentence."""
        try:
            self._lock = staging.lock(self._folder, held)
        except BlockingIOError:
            raise OSError(f"--state-dir {self._folder}: another process has it; give each its own") from None
        except OSError as error:
            raise OSError(f"--state-dir {self._folder}: {error.strerror or error}") from None

    def close(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def write(self, writes: Sequence[Write], memory: Callable[[], bytes], serve: Serve) -> list[Result]:
        """Work them out, `serve` the configuration with all that can be taken, and keep these then.

        `memory` gives that of the configuration in service. What fails for all of them is tried with one half and the
        other, down to each by itself: a bad one is no other's harm. Raises nothing but defects of `serve`, and has
        changed nothing then.
        """
        try:
            return await self._write(writes, memory(), serve)
        except (WriteRefused, LoadingFailed, OSError) as error:
            if len(writes) > 1:
                middle = len(writes) // 2
                first = await self.write(writes[:middle], memory, serve)
                return first + await self.write(writes[middle:], memory, serve)
            if isinstance(error, WriteRefused):
                return [error]
            return [WriteRefused(503, "ServiceUnavailable", str(error))]

    async def ask_issuing(self, query: tuple[object, ...]) -> dict[str, Any]:
        """What `issuing` answers. Raises LoadingFailed, OSError."""
        asked = LoadRequest(tuple(self._config), self._bind, b"", self._folder, experimental=self._experimental)
        found: dict[str, Any] = await self._loader.ask(ISSUING, dumps((write_request(asked), query)), json.loads)
        return found

    async def _write(self, writes: Sequence[Write], memory: bytes, serve: Serve) -> list[Result]:
        """Raises WriteRefused, LoadingFailed, OSError, what `serve` raises; nothing is kept then."""
        asked = LoadRequest(tuple(self._config), self._bind, memory, self._folder, experimental=self._experimental)
        request = write_request(asked)
        outcomes = await self._loader.ask(ANSWER, write_writes(request, writes), read_outcomes)
        results = list(outcomes.results)
        if outcomes.loaded is None:
            return results
        files = [Path(each.file) if isinstance(each, Written) and each.file else None for each in results]
        try:
            await serve(outcomes.loaded)
        except BaseException:
            for file in filter(None, files):
                staging.discard(file)
            raise
        kept = [(file, write.verb is Verb.DELETE) for file, write in zip(files, writes, strict=True) if file]
        failed = await asyncio.to_thread(staging.commit, kept)  # waits for the disk
        for file, error in failed.items():
            log.error("%s cannot be kept: %s; what is in service will not be after a restart", file, error)
            message = f"it is in service, but cannot be kept: {error.strerror}"
            results[files.index(file)] = WriteRefused(500, "InternalError", message)
        return results
