"""What a supervisor and its workers say to each other: plain values; `encode` and `decode` are their form in a channel.

Both ends are processes of ours with the same code, since `net.process` starts no other; all the same, reading makes
nothing but messages and what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

from egressproxy.errors import NotAnswered
from egressproxy.gateway.identity.killed_identities import KillChange
from egressproxy.gateway.overload.process_limits import NO_LIMITS, ProcessLimits
from egressproxy.ir.backend import EndpointAddress
from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from egressproxy.processes.pickling import ADDRESSES, classes, dumps, loads
from egressproxy.processes.workers.data_plane import ConfigRefused, Configuration, Guarded, RouteChanges
from egressproxy.run_options import FilterListener
from egressproxy.telemetry.counts import Counts, MetricFamily, MetricKind
from egressproxy.telemetry.event_aggregator import InvolvedObject, Notice
from egressproxy.telemetry.series import Series

# --- requests


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message. Its descriptors are the FileLock of the access log, the SharedCounters and the FileLock of
    standard error.

    `pseudonym` is the gateway's name in Via, `session_key` signs the tokens of session persistence, `zone` is where
    the gateway runs: they are the same for all workers of a run.
    """

    worker: int
    workers: int
    access_log: str | None
    log_level: str
    pseudonym: bytes
    session_key: bytes = field(repr=False)
    log_format: str = "text"
    zone: str = ""
    limits: ProcessLimits = NO_LIMITS
    filters: FilterListener | None = None  # serve filters to Envoy there, and bind no listener
    tls_key_log: Path | None = None  # a file for the secrets of TLS connections
    access_log_format: str = "json"
    debug_filters: bool = False  # log failures of filters with the text of their exceptions


@dataclass(frozen=True, slots=True)
class Build:
    """Make this ready beside what is in service."""

    configuration: Configuration


class Command(Enum):
    """What a worker does without another word. The first two are requests, the others have no reply."""

    SWAP = "swap"  # put into service what was built last
    COLLECT = "collect"  # tell what was counted: answered by one Counted or more, and by no Answered
    FORGET = "forget"  # what was built last is not wanted
    REOPEN_ACCESS_LOG = "reopen"  # SIGHUP has come
    END_CONNECTIONS = "end connections"  # each with its exchange; new ones are accepted, and served
    HURRY = "hurry"  # while it drains: cut what is left without waiting any longer


@dataclass(frozen=True, slots=True)
class Query:
    """What `worker.Worker.answer` is asked. Arguments are plain values or classes of `_FIND`."""

    name: str
    arguments: tuple[Any, ...] = field(default=(), repr=False)  # headers may be credentials


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, drain, answer with the number of connections that were cut, and end: as of Fleet."""

    timeout_s: float
    elsewhere: tuple[tuple[str, int], ...] = ()
    idle_s: float = 0.0


Request = Begin | Build | Command | Query | Drain


@dataclass(frozen=True, slots=True)
class NumberedRequest:
    """A request, and the number of its reply. What a worker asks is a Question to all workers."""

    number: int
    request: Request


# --- messages to a worker that have no reply


@dataclass(frozen=True, slots=True)
class Listen:
    """With one descriptor: the listening socket of this place, which the next SWAP needs."""

    address: str
    port: int


# --- replies, and what a worker tells


@dataclass(frozen=True, slots=True)
class Reply:
    """`value`: what is asked for (to a worker: by all workers), None: it is done, or why it is refused."""

    number: int
    value: bytes | int | tuple[bytes, ...] | ConfigRefused | NotAnswered | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CountsReply:
    """A part of the answer to COLLECT; its series are those of no other part."""

    number: int
    part: Counts
    is_last: bool


@dataclass(frozen=True, slots=True)
class EventReport:
    """What is to be told in Events, since this was said last; nobody has asked."""

    notices: tuple[Notice, ...]


Message = NumberedRequest | Command | Listen | Reply | CountsReply | EventReport

_FIND: Final = classes(
    (
        *get_args(Message),
        *get_args(Request),
        Configuration,
        RouteChanges,
        CachePurge,
        HoldDecision,
        HoldPage,
        KillChange,
        ProcessLimits,
        FilterListener,
        Path,
        ConfigRefused,
        Guarded,
        NotAnswered,
        Counts,
        MetricFamily,
        MetricKind,
        Series,
        Notice,
        InvolvedObject,
        EndpointAddress,
        *ADDRESSES,
    )
)


def encode(message: Message) -> bytes:
    return dumps(message)


def decode(frame: bytes) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return loads(frame, _FIND, "part of a message")
