"""KillSwitch: which clients an operator has put out of service. It survives reloads and workers, not the process."""

from __future__ import annotations

import asyncio
import json
import logging
import time

from egressproxy.model.kill_switch import KillChange, KilledIdentities
from egressproxy.processes.workers.fleet import Fleet
from egressproxy.telemetry.metrics import Metrics

__all__ = ["KillSwitch"]

log = logging.getLogger("egressproxy")


class KillSwitch:
    """One for a run; `fleet` carries it out."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._killed = KilledIdentities()
        self._turn = asyncio.Lock()
        metrics.add_gauge(
            "egress_identities_killed", "Identities that an operator has put out of service.",
            lambda: len(self._killed.every),
        )  # fmt: skip

    async def answer(self, change: KillChange | None) -> bytes:
        """What holds behind this change, if it is not None, as JSON: `killed`, and how many exchanges were `cut`.

        Raises ValueError where there are too many, errors.NotAnswered where not all workers have answered: the change
        holds all the same, for those that have and for what replaces the others.
        """
        cut = 0
        async with self._turn:
            if change is not None:
                self._killed = self._killed.changed(change, time.time())
                cut = await self._fleet.kill(self._killed.every)
                what = "out of service" if change.kills else "in service again"
                log.warning("kill switch: the identity %r is %s; %d exchanges were cut", change.name, what, cut)
            every = [{"identity": each.name, "why": each.why, "since": each.since} for each in self._killed.every]
        return json.dumps({"killed": every, "cut": cut}).encode()

    def __repr__(self) -> str:
        return f"KillSwitch({self._killed})"
