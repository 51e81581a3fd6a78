"""KillSwitch: the clients that an operator has put out of service. It survives reloads and workers, and with a file
also the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from egressproxy.errors import NotAnswered
from egressproxy.model.kill_switch import KillChange, KilledIdentities
from egressproxy.model.work import Work
from egressproxy.net.cooperative import in_turns
from egressproxy.processes.workers.data_plane import ConfigRefused, DataPlane
from egressproxy.processes.workers.killed_file import NAME, read_killed, write_killed
from egressproxy.telemetry.metrics import Metrics

log = logging.getLogger("egressproxy")

#: The most identities that the log names at the start; otherwise only their number.
_NAMED: Final = 5


class KillSwitch:
    """One per run; `data_plane` enforces it. `folder`: our own folder for its file; None: not stored."""

    def __init__(self, data_plane: DataPlane, metrics: Metrics, folder: Path | None = None) -> None:
        self._data_plane = data_plane
        self._file = folder / NAME if folder is not None else None
        self._killed = KilledIdentities()
        self.turn = asyncio.Lock()  # held during a change
        self.listeners: list[Callable[[KillChange], None]] = []  # called after a change
        self._successor = 0  # the pid of the successor
        self._changes: set[asyncio.Task[int]] = set()
        metrics.add_gauge(
            "egress_identities_killed", "Identities that an operator has put out of service.",
            lambda: len(self._killed),
        )  # fmt: skip

    @property
    def killed(self) -> KilledIdentities:
        return self._killed

    async def start(self, killed: KilledIdentities = KilledIdentities()) -> None:  # noqa: B008 (immutable)
        """Apply the identities in the file and the predecessor's `killed` ones, before any client is served. Raises
        ConfigRefused.
        """
        try:
            self._killed = await self._kept()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ConfigRefused(
                f"--state-dir: {self._file} does not say who is out of service ({why}), so nobody is served: put a copy"
                " of it back, or delete it, and nobody is out of service then"
            ) from None
        if new := [each for each in killed.every if each not in self._killed.every]:
            self._killed = KilledIdentities((*self._killed.every, *new), revision=1)
            await self._keep(self._killed, "they are out of service until the process ends, and were not written")
        if not self._killed:
            return
        try:
            await self._data_plane.kill(self._killed)
        except NotAnswered as error:
            raise ConfigRefused(str(error)) from None
        names = ", ".join(repr(each.name) for each in self._killed.every[:_NAMED])
        more = f" and {len(self._killed) - _NAMED} more" if len(self._killed) > _NAMED else ""
        who = "the process before" if self._file is None else self._file
        log.warning("kill switch: out of service, as %s says: %s%s", who, names, more)

    async def _kept(self) -> KilledIdentities:
        """Raises OSError, ValueError."""
        return KilledIdentities() if self._file is None else await asyncio.to_thread(read_killed, self._file)

    def leave(self, successor: int) -> None:
        """Leave the file to the successor, which handles changes from now on."""
        self._successor, self._file = successor, None

    async def follow(self, change: KillChange) -> None:
        """Apply a change from the predecessor or successor."""
        async with self.turn:
            with suppress(LookupError, ValueError, NotAnswered):  # NotKilled: never killed here
                self._killed = self._killed.changed(change, time.time())
                await self._data_plane.kill(self._killed, change)
            with suppress(OSError):  # logged already
                await self._keep(self._killed, "it is so until the process ends, and was not written")
            for tell in self.listeners:
                tell(change)

    async def answer(self, change: KillChange | None) -> bytes:
        """Apply a change, if any, and return the state as JSON: `killed`, the number of exchanges `cut`, and whether it
        is `kept` over a restart of the process.

        Raises ValueError beyond the limit, NotKilled if the identity to restore is not killed. Raises
        errors.NotAnswered if some workers have not answered: the change holds for the others and for replacements.
        Raises OSError, a sentence, if the file cannot be written: a kill holds nevertheless.
        """
        cut = 0
        if change is not None:
            doing = asyncio.create_task(self._change(change))  # the client may leave meanwhile
            self._changes.add(doing)
            doing.add_done_callback(self._changes.discard)
            cut = await asyncio.shield(doing)
        return await in_turns(_state_json(self._killed, cut, is_kept=self._file is not None))

    async def _change(self, change: KillChange) -> int:
        """Apply a change; returns the number of exchanges cut."""
        async with self.turn:
            if self._successor:
                raise NotAnswered(f"process {self._successor} serves in this one's place: ask again, which asks it")
            after = self._killed.changed(change, time.time())
            cut = 0
            if change.kills:
                self._killed = after
                try:
                    cut = await self._data_plane.kill(after, change)
                finally:
                    await self._keep(after, "it is out of service until the process ends, and was not written")
            else:
                await self._keep(after, "it stays out of service, since that cannot be written")
                self._killed = after
                await self._data_plane.kill(after, change)
            if change.kills:
                log.warning("kill switch: the identity %r is out of service; exchanges cut: %d", change.name, cut)
            else:
                log.warning("kill switch: the identity %r is in service again", change.name)
            for tell in self.listeners:
                tell(change)
            return cut

    async def _keep(self, killed: KilledIdentities, otherwise: str) -> None:
        """Write the file. Raises OSError with a sentence about the state `otherwise`."""
        if self._file is None:
            return
        try:
            await asyncio.to_thread(write_killed, self._file, killed)
        except OSError as error:
            message = f"{otherwise}: {self._file}: {error.strerror or error}"
            log.error("kill switch: %s", message)
            raise OSError(message) from None


def _state_json(killed: KilledIdentities, cut: int, *, is_kept: bool) -> Work[bytes]:
    """The state as JSON, as cooperative work, since there may be thousands of entries."""
    names = []
    for each in killed.every:
        names.append(json.dumps({"identity": each.name, "why": each.why, "since": each.since}))
        yield None
    return f'{{"killed": [{", ".join(names)}], "cut": {cut}, "kept": {json.dumps(is_kept)}}}'.encode()
