"""The messages between the gateway and the process that asks the API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.published_object import Key
from egressproxy.processes.pickling import ADDRESSES, classes, dumps, loads
from egressproxy.processes.workers.data_plane import EndpointUpdates
from egressproxy.run_options import ClusterOptions
from egressproxy.telemetry.event_aggregator import InvolvedObject, Notice


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message, to the process. `state_dir` is the folder that keeps the last good objects, if any."""

    options: ClusterOptions
    state_dir: Path | None
    log_level: str
    log_format: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for the objects of a configuration, once all are read. `referenced` are those to read by reference.

    With `takes_saved` the answer is what was kept on disk if the API server does not answer. With `is_of_routes` it
    has only the objects that changed HTTPRoutes need.
    """

    number: int
    referenced: tuple[Key, ...]
    takes_saved: bool = False
    is_of_routes: bool = False


@dataclass(frozen=True, slots=True)
class Objects:
    """The answer to Ask `number`: manifests, for `config.reading.cluster_objects`.

    `routes` are the HTTPRoutes (namespace/name) that have changed since objects were given as a whole: no others are
    here. `is_late`: the API server did not answer; but for HTTPRoutes it is what was given last.
    """

    number: int
    packed: bytes = field(repr=False)  # with the values of Secrets
    routes: tuple[str, ...] | None = None
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class InService:
    """`shown` are all objects in service with their status (`result.shown`). `rejection` is why the objects that were
    given last are not among them, "" if they are; `reason` says it in one word.
    """

    shown: bytes = field(repr=False)
    rejection: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """Events, as `telemetry.events.Events.all` gives them."""

    events: tuple[tuple[int, Notice], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Leading:
    """This gateway has the Lease of objects without a namespace from now on, and wants a `Catalogue` to write."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The catalogue of filter types, as `catalog_object.catalogue` makes it."""

    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Changed:
    """The objects have changed since they were given."""


@dataclass(frozen=True, slots=True)
class ChangedRoutes:
    """HTTPRoutes have changed since the objects were given, and nothing else but addresses of Services."""


@dataclass(frozen=True, slots=True)
class RoutesInService:
    """The routes that were given last, in an answer about changed routes, are in service."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses of these Services have changed since the objects were given, and nothing else."""

    updates: EndpointUpdates


@dataclass(frozen=True, slots=True)
class Figures:
    """For metrics, and `trial` (JSON) of the status that policies on trial have in the cluster, by their full names.
    `problems` are what cannot be read or written, as sentences.
    """

    watches: int = 0
    watch_restarts: int = 0
    problems: tuple[str, ...] = ()
    trials: tuple[tuple[str, bytes], ...] = ()


Message = (
    Begin | Ask | Objects | InService | RoutesInService | Seen | Leading | Catalogue | Changed | ChangedRoutes
    | Endpoints | Figures
)  # fmt: skip

_FIND: Final = classes((*get_args(Message), ClusterOptions, Path, Notice, InvolvedObject, EndpointAddress, *ADDRESSES))


def encode(message: Message) -> bytes:
    return dumps(message)


def decode(frame: bytes) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return loads(frame, _FIND, "part of a message")
