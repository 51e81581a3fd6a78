"""What a supervisor and its workers say to each other. Plain values; `frame` and `read` are their form in a channel.

Both ends are processes of ours with the same code; all the same, reading makes nothing but messages and what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, get_args

from egressproxy.model.pickling import classes, dumps, loads
from egressproxy.telemetry import metrics
from egressproxy.telemetry.metrics import Counts
from egressproxy.telemetry.notices import InvolvedObject, Notice

__all__ = [
    "Answered",
    "Asked",
    "Begin",
    "Begun",
    "Build",
    "Built",
    "Counted",
    "CountsAsked",
    "Drain",
    "Drained",
    "Forget",
    "Hurry",
    "Listen",
    "Message",
    "NotBegun",
    "NotBuilt",
    "Noticed",
    "ReopenAccessLog",
    "Serving",
    "Swap",
    "decode",
    "encode",
]

# --- to a worker


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message; the worker replies with Begun or NotBegun. Its descriptors are the FileLock of the access log,
    the SharedCounters and the FileLock of standard error.

    `pseudonym` is the gateway's name in Via, `session_key` signs the tokens of session persistence: both are the same
    for all workers of a run.
    """

    worker: int
    workers: int
    access_log: str | None
    log_level: str
    pseudonym: bytes
    session_key: bytes = field(repr=False)
    log_format: str = "text"


@dataclass(frozen=True, slots=True)
class Build:
    """Make this ready beside what is in service: answered by Built or NotBuilt. See `fleet.Configuration`."""

    octets: bytes = field(repr=False)
    generation: int
    own: tuple[tuple[str, int], ...]
    is_guarded: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """What was built last is not wanted."""


@dataclass(frozen=True, slots=True)
class Listen:
    """With one descriptor: the listening socket of this place, which the next Swap needs."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Swap:
    """Put into service what was built last: answered by Serving."""


@dataclass(frozen=True, slots=True)
class CountsAsked:
    number: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about what is in service: answered by Answered. `what` is "explain" or "decisions"."""

    number: int
    what: str
    pairs: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # headers may be credentials


@dataclass(frozen=True, slots=True)
class ReopenAccessLog:
    pass


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop accepting, drain, answer Drained, and end."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class Hurry:
    """While it drains: cut what is left without waiting any longer."""


# --- from a worker


@dataclass(frozen=True, slots=True)
class Begun:
    pass


@dataclass(frozen=True, slots=True)
class NotBegun:
    why: str


@dataclass(frozen=True, slots=True)
class Built:
    pass


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """`is_guarded`: it could be served, but would allow what was denied lately."""

    why: str
    is_guarded: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    pass


@dataclass(frozen=True, slots=True)
class Counted:
    """A part of the answer to CountsAsked; its series are those of no other part."""

    number: int
    part: Counts
    is_last: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """JSON; or why there is none."""

    number: int
    octets: bytes = field(repr=False)
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Noticed:
    """What is to be told in Events, since this was said last; nobody has asked."""

    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Drained:
    """The last message. `cut`: connections that had to be closed at the end of the time."""

    cut: int


Message = (
    Begin | Build | Forget | Listen | Swap | CountsAsked | Asked | ReopenAccessLog | Drain | Hurry
    | Begun | NotBegun | Built | NotBuilt | Serving | Counted | Answered | Noticed | Drained
)  # fmt: skip


_FIND: Final = classes(
    (
        *get_args(Message),
        metrics.Counts,
        metrics.Histogram,
        metrics.MetricKind,
        metrics.Reading,
        metrics.Series,
        Notice,
        InvolvedObject,
    )
)


def encode(message: Message) -> bytes:
    """For `decode`."""
    return dumps(message)


def decode(octets: bytes) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return loads(octets, _FIND, "part of a message")
