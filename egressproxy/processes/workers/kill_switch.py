"""KillSwitch: which clients an operator has put out of service. It survives reloads and workers, and with a file of its
own the process.
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

#: Identities that the log names at the start; of more their number is told.
_NAMED: Final = 5


class KillSwitch:
    """One for a run; `data_plane` carries it out. `folder`: where it is kept, which is ours alone; None: nowhere."""

    def __init__(self, data_plane: DataPlane, metrics: Metrics, folder: Path | None = None) -> None:
        self._data_plane = data_plane
        self._file = folder / NAME if folder is not None else None
        self._killed = KilledIdentities()
        self.turn = asyncio.Lock()  # held while something changes
        self.told: list[Callable[[KillChange], None]] = []  # who is told of a change that holds
        self._successor = 0  # the process that has this one's place
        self._changes: set[asyncio.Task[int]] = set()
        metrics.add_gauge(
            "egress_identities_killed", "Identities that an operator has put out of service.",
            lambda: len(self._killed),
        )  # fmt: skip

    @property
    def killed(self) -> KilledIdentities:
        """Who is out of service."""
        return self._killed

    async def start(self, killed: KilledIdentities = KilledIdentities()) -> None:  # noqa: B008 (nobody changes it)
        """Those in the file are out of service before anybody is served, and those that the process before says are
        `killed`. Raises ConfigRefused.
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
        """That process has the file, and is asked from now on."""
        self._successor, self._file = successor, None

    async def follow(self, change: KillChange) -> None:
        """What the process before or after this one says is carried out here, too."""
        async with self.turn:
            with suppress(LookupError, ValueError, NotAnswered):  # NotKilled: it was never killed here
                self._killed = self._killed.changed(change, time.time())
                await self._data_plane.kill(self._killed, change)
            with suppress(OSError):  # which was logged
                await self._keep(self._killed, "it is so until the process ends, and was not written")
            for tell in self.told:
                tell(change)

    async def answer(self, change: KillChange | None) -> bytes:
        """What holds behind this change, if it is not None, as JSON: `killed`, how many exchanges were `cut`, and
        whether it is `kept` over a restart of the process.

        Raises ValueError where there are too many, NotKilled where nobody is to be restored. errors.NotAnswered where
        not all workers have answered: the change holds all the same, for those that have and for what replaces the
        others. OSError, a sentence, where the file cannot be written: somebody who was killed is killed then.
        """
        cut = 0
        if change is not None:
            doing = asyncio.create_task(self._change(change))  # whoever asks may go meanwhile
            self._changes.add(doing)
            doing.add_done_callback(self._changes.discard)
            cut = await asyncio.shield(doing)
        return await in_turns(_told(self._killed, cut, is_kept=self._file is not None))

    async def _change(self, change: KillChange) -> int:
        """How many exchanges were cut."""
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
            for tell in self.told:
                tell(change)
            return cut

    async def _keep(self, killed: KilledIdentities, otherwise: str) -> None:
        """Raises OSError with a sentence that says what holds `otherwise`."""
        if self._file is None:
            return
        try:
            await asyncio.to_thread(write_killed, self._file, killed)
        except OSError as error:
            message = f"{otherwise}: {self._file}: {error.strerror or error}"
            log.error("kill switch: %s", message)
            raise OSError(message) from None


def _told(killed: KilledIdentities, cut: int, *, is_kept: bool) -> Work[bytes]:
    """There may be thousands, and in a process that serves alone traffic waits meanwhile."""
    names = []
    for each in killed.every:
        names.append(json.dumps({"identity": each.name, "why": each.why, "since": each.since}))
        yield None
    return f'{{"killed": [{", ".join(names)}], "cut": {cut}, "kept": {json.dumps(is_kept)}}}'.encode()
