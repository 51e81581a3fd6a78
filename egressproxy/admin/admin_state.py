"""AdminState: what the admin server asks of the application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from egressproxy.gateway.identity.killed_identities import KillChange
from egressproxy.model.certificate import Validity


class AdminState(Protocol):
    """The application's interface, called on the event loop for every request."""

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape and its content type; `accept` is the scraper's Accept field."""

    async def ask_one(self, name: str, *arguments: object) -> bytes:
        """The answer of one worker (`processes.workers.worker.QUESTIONS`), as JSON. Raises errors.NotAnswered."""

    async def ask_all(self, name: str, *arguments: object) -> Sequence[bytes]:
        """The answers of all workers, as JSON. Raises errors.NotAnswered where one of them has not answered."""

    async def reload(self, acknowledged: str) -> str:
        """Load anew; gives why it is not in service, or "". `acknowledged`: the mark of one that may allow more."""

    async def proposals(self, asked: bytes) -> Sequence[dict[str, Any] | None]:
        """For each denial that is asked about, the change that would allow it (`processes.loader.proposals`); empty
        where the configuration cannot be read.
        """

    async def summary(self) -> dict[str, Any]: ...  # of the process and its configuration
    async def history(self) -> list[dict[str, Any]]: ...  # the minutes of the last hour (`admin.history`)
    def configurations(self) -> list[dict[str, Any]]: ...  # the latest, as of `processes.configuration_log`
    def validities(self) -> Sequence[Validity]: ...  # of the certificates in service
    def generation(self) -> int: ...  # the number of the configuration in service
    async def model(self) -> bytes: ...  # what is served, as JSON: `operators.explain.outline`
    async def ask_some(self, name: str, *arguments: object) -> Sequence[bytes]:
        """The answers of those workers that answer."""

    async def kill_switch(self, change: KillChange | None) -> bytes:
        """Who is out of service then, as JSON. Raises ValueError, NotKilled, NotAnswered, OSError if it is not kept."""

    def why_not_ready(self) -> str:
        """ "" while every listener is bound and traffic is welcome; else a sentence for people."""
