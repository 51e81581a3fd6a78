"""Loader: keeps one process ready for the next configuration, so that a change does not wait for a start.

The process goes when nobody has asked for a while; the next one who asks pays a start then, and finds one warm the next
time. One that failed is replaced at once, and where somebody else has ended it, its request is asked once more.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from egressproxy.processes.loader.process import LoaderEnded, LoaderProcess, LoadingFailed
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig, read_answer
from egressproxy.processes.pickling import dumps

log = logging.getLogger(__name__)

#: For how long a process waits for the next request.
QUIET_S: Final = 15.0

#: Functions of the process that loads.
LOAD: Final = "egressproxy.processes.loader.answer:answer"
SCHEMA: Final = "egressproxy.config.schema:written_schema"
PROPOSALS: Final = "egressproxy.processes.loader.proposals:answer"
DIFFERENCES: Final = "egressproxy.processes.loader.differences:answer"
CATALOGUE: Final = "egressproxy.processes.loader.catalog_object:catalogue"

T = TypeVar("T")


class Loader:
    """On the event loop; requests are served in turn, `close` comes last. `first` is a process started already."""

    def __init__(self, first: LoaderProcess | None = None) -> None:
        self._process = first
        self._quiet: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._is_asking = False
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process that waits or serves a request; None where there is none."""
        return self._process.pid if self._process is not None else None

    async def load(self, request: LoadRequest) -> CompiledConfig:
        """Load and compile. To cancel this ends the process.

        Raises ConfigError with every problem, LoadingFailed, or OSError if no process can be started.
        """
        return await self.ask(LOAD, write_request(request), read_answer)

    async def schema(self) -> bytes:
        """JSON Schema of every kind. Raises OSError where it cannot be made."""
        return await self._made(SCHEMA, b"")

    async def catalogue(self, declared: bytes) -> bytes:
        """The catalogue of filter types, `declared` ones included, for `result.shown`. Raises as `schema`."""
        return await self._made(CATALOGUE, declared)

    async def proposals(self, request: LoadRequest, asked: bytes) -> list[dict[str, Any] | None]:
        """Changes that would allow what was denied, as `proposals.answer`. Raises LoadingFailed, OSError."""
        found: list[dict[str, Any] | None] = await self.ask(
            PROPOSALS, dumps((write_request(request), asked)), json.loads
        )
        return found

    async def differences(self, before: bytes, after: bytes) -> str:
        """What the second of two compressed specs has changed, as text. Raises LoadingFailed, OSError."""
        return (await self.ask(DIFFERENCES, dumps((before, after)), bytes)).decode()

    async def _made(self, function: str, request: bytes) -> bytes:
        try:
            return await asyncio.shield(self.ask(function, request, bytes))  # who asked may leave
        except LoadingFailed as error:
            raise OSError(str(error)) from None

    async def ask(self, function: str, request: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of a function's answer. Raises what it raises, LoadingFailed for ValueError, OSError."""
        async with self._turn:
            try:
                try:
                    data = await self._answer(function, request)
                except LoaderEnded as error:  # no fault of what is read: nobody would ask for it again
                    if self._is_closed:
                        raise
                    log.warning("%s; it is asked of another one", error)
                    data = await self._answer(function, request)
                return read(data)
            except ValueError:
                self._drop()
                raise LoadingFailed("the process that reads the configuration gave no whole answer") from None
            finally:
                self._rest()

    def close(self) -> None:
        """There will be no more requests; the one under way fails."""
        self._is_closed = True
        self._drop()

    async def _answer(self, function: str, request: bytes) -> bytes:
        """Raises LoadingFailed, OSError."""
        process = self._warm()
        self._is_asking = True
        try:
            return await asyncio.get_running_loop().run_in_executor(None, process.ask, function, request)
        except asyncio.CancelledError:
            self._drop()  # while it is asking
            raise
        finally:
            self._is_asking = False

    def _warm(self) -> LoaderProcess:
        """Raises OSError, a sentence."""
        self._cancel_quiet()
        if self._is_closed:
            raise OSError("the gateway ends")
        if self._process is None or not self._process.is_waiting():
            self._drop()
            try:
                self._process = LoaderProcess()
            except OSError as error:
                file = f" ({error.filename})" if error.filename else ""
                what = "the process that reads the configuration cannot be started"
                raise OSError(f"{what}: {error.strerror or error}{file}") from None
        return self._process

    def _rest(self) -> None:
        """After a request: have one wait for the next, for a while."""
        if self._is_closed:
            return
        with suppress(OSError):  # the next request starts its own, and says why it cannot
            self._warm()
            self._quiet = asyncio.get_running_loop().call_later(QUIET_S, self._drop)

    def _drop(self) -> None:
        self._cancel_quiet()
        process, self._process = self._process, None
        if process is None:
            return
        if self._is_asking:
            process.end()  # the thread that asks closes it
        else:
            process.close()

    def _cancel_quiet(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
