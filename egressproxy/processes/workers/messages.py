"""What a supervisor and its workers say to each other: plain values; `encode` and `decode` are their form in a channel.

Both ends are processes of ours with the same code; all the same, reading makes nothing but messages and what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from egressproxy.errors import NotAnswered
from egressproxy.model.admin_requests import CachePurge, HoldDecision, HoldPage
from egressproxy.model.kill_switch import KillChange
from egressproxy.model.pickling import classes, dumps, loads
from egressproxy.model.process_limits import NO_LIMITS, ProcessLimits
from egressproxy.processes.workers.fleet import ConfigRefused, Configuration, Guarded
from egressproxy.run_options import FilterListener
from egressproxy.telemetry.counts import Counts, FilterMetric, Histogram, MetricKind, Reading
from egressproxy.telemetry.notices import InvolvedObject, Notice
from egressproxy.telemetry.series import Series

# --- requests to a worker


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


@dataclass(frozen=True, slots=True)
class Build:
    """Make this ready beside what is in service."""

    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Swap:
    """Put into service what was built last."""


@dataclass(frozen=True, slots=True)
class Collect:
    """What was counted: answered by one Counted or more, and by no Answered."""


@dataclass(frozen=True, slots=True)
class Explain:
    """What would happen to a request (`gateway.explain`): answered with JSON."""

    pairs: tuple[tuple[str, str], ...] = field(repr=False)  # headers may be credentials


@dataclass(frozen=True, slots=True)
class LookUp:
    """Where a name leads (`gateway.explain.name_lookup`): answered with JSON."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """The recent decisions: answered with JSON."""


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches, behind this purge, if there is one: answered with JSON."""

    purge: CachePurge | None = None


@dataclass(frozen=True, slots=True)
class Holds:
    """A page of what waits for approval, behind this decision, if there is one: answered with JSON."""

    decision: HoldDecision | None
    page: HoldPage


@dataclass(frozen=True, slots=True)
class SetKilled:
    """Clients of these names are out of service, and no others: answered with the number of exchanges that were cut."""

    names: tuple[str, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Kill:
    """What is different in this revision of who is out of service: answered with the number of exchanges that were cut;
    None by a worker that does not have the revision before, and is to be sent all names.
    """

    change: KillChange
    revision: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, drain, answer with the number of connections that were cut, and end."""

    timeout_s: float


Request = Begin | Build | Swap | Collect | Explain | LookUp | Decisions | Caches | Holds | SetKilled | Kill | Drain


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the number of its reply."""

    number: int
    request: Request


# --- messages to a worker that have no reply


@dataclass(frozen=True, slots=True)
class Forget:
    """What was built last is not wanted."""


@dataclass(frozen=True, slots=True)
class Listen:
    """With one descriptor: the listening socket of this place, which the next Swap needs."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class ReopenAccessLog:
    """SIGHUP has come."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """While it drains: cut what is left without waiting any longer."""


# --- from a worker


@dataclass(frozen=True, slots=True)
class Answered:
    """`value` is what the request asks for, None where that is only that it is done, or why it is refused."""

    number: int
    value: bytes | int | ConfigRefused | NotAnswered | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Counted:
    """A part of the answer to Collect; its series are those of no other part."""

    number: int
    part: Counts
    is_last: bool


@dataclass(frozen=True, slots=True)
class Noticed:
    """What is to be told in Events, since this was said last; nobody has asked."""

    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class AskedOfAll:
    """What waits for approval in all workers, of this client: answered with AnsweredByAll."""

    number: int
    identity: str


# --- to a worker that has asked


@dataclass(frozen=True, slots=True)
class AnsweredByAll:
    """What each worker has said, as JSON; None where one of them has not."""

    number: int
    values: tuple[bytes, ...] | None = field(repr=False)


Message = Asked | Forget | Listen | ReopenAccessLog | Hurry | Answered | Counted | Noticed | AskedOfAll | AnsweredByAll

_FIND: Final = classes(
    (
        *get_args(Message),
        *get_args(Request),
        Configuration,
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
        FilterMetric,
        Histogram,
        MetricKind,
        Reading,
        Series,
        Notice,
        InvolvedObject,
    )
)


def encode(message: Message) -> bytes:
    """For `decode`."""
    return dumps(message)


def decode(frame: bytes) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return loads(frame, _FIND, "part of a message")
