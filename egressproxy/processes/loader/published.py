"""The configuration in service as a source of the API (`ObjectSource`): packed until somebody asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from operator import attrgetter
from time import time
from typing import Any, Final

from egressproxy.model.encoding import rfc3339
from egressproxy.model.published_object import PublishedObject
from egressproxy.processes.loader.result import shown

#: metav1.Condition.message.
MAX_MESSAGE: Final = 32768


class PublishedConfiguration:
    """The objects in service; after a rejected reload the status of each Gateway says so."""

    def __init__(self) -> None:
        self.version = 0
        self._packed = _Packed(b"", "")

    def objects(self) -> Iterable[PublishedObject]:
        """The objects as the API shows them."""
        return self._packed

    def publish(self, packed: bytes, rejection: str, reason: str = "Invalid") -> None:
        """Show `packed` objects. `rejection`: why the latest is not in service, "" if it is; `reason`: in one word."""
        was = self._packed
        since = was.since if was.rejection and rejection else rfc3339(time())
        self._show(replace(was, packed=packed, rejection=rejection, reason=reason, since=since))

    def show_catalogue(self, packed: bytes) -> None:
        """Show the catalogue of filter types, too, as `catalog_object.catalogue` makes it."""
        self._show(replace(self._packed, catalogue=packed))

    def _show(self, fresh: _Packed) -> None:
        if fresh != self._packed:
            self._packed = fresh
            self.version += 1


def digest(packed: bytes) -> str:
    """The mark of a configuration: that of all its manifests, however they are spread over files."""
    whole = blake2b(digest_size=6)
    for each in sorted(shown(packed), key=attrgetter("key")):
        whole.update(each.manifest)
    return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class _Packed:
    packed: bytes
    rejection: str
    reason: str = "Invalid"
    since: str = field(default="", compare=False)
    catalogue: bytes = b""

    def __iter__(self) -> Iterator[PublishedObject]:
        for each in chain(shown(self.packed), shown(self.catalogue)):
            if self.rejection and each.kind == "Gateway" and each.status is not None:
                yield replace(each, status=_with_rejection(each.status, self, each.generation))
            else:
                yield each


def _with_rejection(status: bytes, published: _Packed, generation: int) -> bytes:
    made: dict[str, Any] = json.loads(status)
    condition = {
        "type": "egressproxy.io/ReloadRejected",
        "status": "True",
        "reason": published.reason,
        "message": published.rejection[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": published.since,
    }
    made["conditions"] = [*made.get("conditions", ()), condition]
    return json.dumps(made).encode()
