"""What the admin server shows and has done. The application implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from egressproxy.model.kill_switch import KillChange
from egressproxy.telemetry.metrics import Metrics


class AdminState(Protocol):
    """Asked on the event loop, for every request anew."""

    @property
    def metrics(self) -> Metrics:
        """What this process counts."""

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape and its content type; `accept` is the scraper's Accept field."""

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """What would become of a request, as JSON; `pairs`: the parameters of /explain. Raises errors.NotAnswered."""

    async def look_up(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """Where a name leads, as JSON; `pairs` are the parameters of /dns. Raises errors.NotAnswered."""

    async def reload(self, acknowledged: str) -> str:
        """Read the configuration again; gives why it is not in service then, "" where it is. `acknowledged` is the mark
        of a configuration that may allow what was recently denied, or "".
        """

    async def model(self) -> bytes:
        """What is served, as JSON: `ir.outline`."""

    async def decisions(self) -> Sequence[bytes]:
        """The recent decisions of each worker, the latest first, as JSON."""

    async def caches(self, purge: CachePurge | None) -> Sequence[bytes]:
        """The caches of each worker as JSON, behind this purge. Raises errors.NotAnswered."""

    async def holds(self, decision: HoldDecision | None, page: HoldPage) -> Sequence[bytes]:
        """This page of what waits for approval in each worker, behind this decision, as JSON. Raises
        errors.NotAnswered.
        """

    async def kill_switch(self, change: KillChange | None) -> bytes:
        """Who is out of service behind this change, as JSON. Raises ValueError, NotKilled, errors.NotAnswered, and
        OSError with a sentence where it cannot be kept.
        """

    def why_not_ready(self) -> str:
        """ "" while every listener is bound and traffic is welcome; else a sentence for people."""
