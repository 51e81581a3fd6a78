"""What the gateway and the process that asks the API server say to each other; `encode` and `decode` are their form."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.pickling import ADDRESSES, classes, dumps, loads
from egressproxy.model.published_object import Key
from egressproxy.processes.workers.fleet import EndpointUpdates
from egressproxy.run_options import ClusterOptions
from egressproxy.telemetry.notices import InvolvedObject, Notice


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message. `state_dir` is the folder in which the last good objects are kept, if any."""

    options: ClusterOptions
    state_dir: Path | None
    log_level: str
    log_format: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Give the objects of a configuration once they are all read. `wanted` are those that are read by reference.

    With `takes_saved` those that were kept on disk are given where the API server does not answer.
    """

    number: int
    wanted: tuple[Key, ...]
    takes_saved: bool


@dataclass(frozen=True, slots=True)
class Objects:
    """The answer to Ask `number`: manifests, for `config.reading.cluster_objects`."""

    number: int
    packed: bytes = field(repr=False)  # with the values of Secrets


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
    """This gateway writes status from now on: it is given the catalogue of filter types."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The catalogue of filter types, as `catalog_object.catalogue` makes it."""

    packed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Changed:
    """What was given last is not what is there now."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Of what was given last nothing has changed but the addresses of these Services (`fleet.EndpointUpdates`)."""

    updates: EndpointUpdates


@dataclass(frozen=True, slots=True)
class Figures:
    """For metrics. `problems` are what cannot be read or written, as sentences."""

    watches: int = 0
    watch_restarts: int = 0
    problems: tuple[str, ...] = ()


Message = Begin | Ask | Objects | InService | Seen | Leading | Catalogue | Changed | Endpoints | Figures

_FIND: Final = classes((*get_args(Message), ClusterOptions, Path, Notice, InvolvedObject, EndpointAddress, *ADDRESSES))


def encode(message: Message) -> bytes:
    """For `decode`."""
    return dumps(message)


def decode(frame: bytes) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return loads(frame, _FIND, "part of a message")
