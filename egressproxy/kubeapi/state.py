"""What the Kubernetes-shaped API shows, and whom it asks to write. `ApiService` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from egressproxy.kubeapi.write.write import Write, WriteRefused, Written
from egressproxy.model.published_object import PublishedObject


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


class ApiState(Protocol):
    """Asked on the event loop, for every request anew."""

    def sources(self) -> Sequence[ObjectSource]:
        """The same ones, in the same order, each time."""

    async def schema(self) -> bytes:
        """JSON Schema of all kinds, as `config.schema` makes it. Raises OSError where it cannot be had."""

    async def write(self, writes: Sequence[Write]) -> Sequence[Written | WriteRefused | None]:
        """Answers when the configuration with them is in service: each for itself. None has to be asked again, with the
        version that its object has then; not all of them are None.
        """
