"""What the admin server shows. The application implements it; nothing here can change anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from egressproxy.telemetry.metrics import Metrics

__all__ = ["AdminState", "Published", "PublishedObject"]


class PublishedObject(Protocol):
    """The part of `config.resources.Resource` that is shown. `namespace` is "" for a cluster-scoped kind."""

    @property
    def group(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    def to_manifest(self) -> dict[str, Any]:
        """A copy in Kubernetes' shape, without status."""


#: An object, its metadata.generation, and its status (None where it has none).
Published = tuple[PublishedObject, int, Mapping[str, Any] | None]


class AdminState(Protocol):
    """Asked on the event loop, for every request anew."""

    @property
    def metrics(self) -> Metrics: ...

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape and its content type; `accept` is the scraper's Accept field."""

    def why_not_ready(self) -> str:
        """ "" while every listener is bound and traffic is welcome; else a sentence for people."""

    def objects(self) -> Iterable[Published]:
        """The configuration in service. May be iterated in a thread."""
