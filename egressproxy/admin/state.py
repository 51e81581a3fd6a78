"""What the admin server shows. The application implements it; nothing here can change anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from egressproxy.model.api_write import Write, WriteRefused, Written
from egressproxy.telemetry.metrics import Metrics

__all__ = ["AdminState", "ObjectSource", "PublishedObject", "Unanswerable"]


class Unanswerable(Exception):
    """The message says why a question cannot be answered, and what to ask instead."""


class PublishedObject(Protocol):
    """One object as it is at some moment; immutable. `namespace` is "" for a cluster-scoped kind."""

    @property
    def group(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def generation(self) -> int:
        """metadata.generation; 0 for a kind that has none."""

    @property
    def manifest(self) -> bytes:
        """JSON in Kubernetes' shape, without status unless that is input."""

    @property
    def status(self) -> bytes | None:
        """JSON; None where it has none."""

    @property
    def created(self) -> str:
        """What to show as metadata.creationTimestamp where the manifest says none; "" for nothing.

        It is no part of what makes an object another: it stays while the object is there.
        """


class ObjectSource(Protocol):
    """Where objects come from: the configuration in service, or what was observed (Events).

    Asked on the event loop, when somebody asks the API, or watches it and `AdminServer.changed` was called. What kinds
    it has stands in `kinds`, what their columns are in `columns`. No two sources have an object of the same kind,
    namespace and name.
    """

    @property
    def version(self) -> object:
        """Equal to what it was for as long as nothing has changed."""

    def objects(self) -> Iterable[PublishedObject]:
        """All of them as they are now: iterated in a thread, later, and more than once."""


class AdminState(Protocol):
    """Asked on the event loop, for every request anew."""

    @property
    def metrics(self) -> Metrics: ...

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape and its content type; `accept` is the scraper's Accept field."""

    async def explain(self, pairs: Sequence[tuple[str, str]]) -> bytes:
        """What would become of a request, as JSON; `pairs` are its parameters. Raises Unanswerable."""

    async def reload(self, acknowledged: str) -> str:
        """Read the configuration again; gives why it is not in service then, "" where it is. `acknowledged` is the mark
        of a configuration that may allow what was denied lately, or "".
        """

    async def model(self) -> bytes:
        """What is served, as JSON: `ir.outline`."""

    async def decisions(self) -> Sequence[bytes]:
        """The recent decisions of each worker, the latest first, as JSON."""

    def why_not_ready(self) -> str:
        """ "" while every listener is bound and traffic is welcome; else a sentence for people."""

    def sources(self) -> Sequence[ObjectSource]:
        """The same ones, in the same order, each time."""

    async def write(self, writes: Sequence[Write]) -> Sequence[Written | WriteRefused | None]:
        """Answers when the configuration with them is in service: each for itself. None has to be asked again, with the
        version that its object has then; not all of them are None.
        """

    async def schema(self) -> bytes:
        """JSON Schema of all kinds, as `config.schema` makes it. Raises OSError where it cannot be had."""
