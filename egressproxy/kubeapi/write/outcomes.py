"""Between a Writer and the process that works its writes out: what is asked for, and what it says of each write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write, WriteRefused, Written
from egressproxy.model.pickling import classes, dumps, loads
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.loader.result import LOADED, Loaded, read_values

#: Of one write; None where it has to be worked out again, after the others.
Result = Written | WriteRefused | None
_WRITES: Final = classes((FieldValidation, Verb, Write))


class Outcomes(NamedTuple):
    """`results` are those of the writes, in their order. `loaded` None: nothing changes."""

    results: Sequence[Result]
    loaded: Loaded | None


def write_writes(request: bytes, writes: Sequence[Write]) -> bytes:
    """For `read_writes`, in a process of ours. `request` is that for a loading without them."""
    return dumps((request, tuple(writes)))


def read_writes(data: bytes) -> tuple[LoadRequest, tuple[Write, ...]]:
    """What `write_writes` wrote. Raises nearly everything if this is no (whole) request."""
    request, writes = loads(data, _WRITES, "part of a write")
    return read_request(request), writes


def read_outcomes(data: bytes) -> Outcomes:
    """The Outcomes that another process of ours has written. Raises ValueError if these are none, or not whole."""
    found = read_values(data, (*LOADED, Outcomes, WriteRefused, Written))
    if isinstance(found, Outcomes):
        return found
    raise ValueError("no answer of a process that loads")
