"""What a supervisor and its workers say to each other. Plain values; `frame` and `read` are their form in a channel.

Both ends are processes of ours with the same code; all the same, reading makes nothing but messages and what they hold.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, get_args

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
    """The first message, with the descriptors of the log's Turn, the Tally and the Turn of standard error: answered by
    Begun or NotBegun.

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


#: The classes that are made. Not whatever a module has imported: `dataclass`, for one, executes what it is given.
_KNOWN: Final = {
    (known.__module__, known.__qualname__): known
    for known in (
        *get_args(Message),
        metrics.Counts,
        metrics.Histogram,
        metrics.MetricKind,
        metrics.Reading,
        metrics.Series,
        Notice,
        InvolvedObject,
    )
}


def encode(message: Message) -> bytes:
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(message)
    return written.getvalue()


def decode(octets: bytes | bytearray | memoryview) -> Any:
    """Raises pickle.UnpicklingError, among others, where this is no message."""
    return _Unpickler(io.BytesIO(octets)).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Frozen classes by their fields: the default form goes through slow Python code when it is read. Enums by
        their values: what Python writes of them differs between its versions, 3.11.2 and 3.11.7 among them.
        """
        kind = type(value)
        if isinstance(value, Enum):
            return kind, (value.value,)
        if is_dataclass(kind):
            return kind, tuple([getattr(value, field.name) for field in fields(kind)])
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a message")
        return known
