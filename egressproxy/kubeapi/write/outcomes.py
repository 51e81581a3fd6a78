"""Between a Writer and the process that works its writes out: what is asked for, and what it says of each write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import Any, NamedTuple

from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write, WriteRefused, Written
from egressproxy.model.pickling import dumps, loads
from egressproxy.processes.loader.request import LoadRequest, read_request
from egressproxy.processes.loader.result import Loaded, flat, loaded_of

__all__ = ["Outcomes", "Result", "read_outcomes", "read_writes", "write_outcomes", "write_writes"]

#: Of one write; None where it has to be worked out again, after the others.
Result = Written | WriteRefused | None


class Outcomes(NamedTuple):
    """`results` are those of the writes, in their order. `loaded` None: nothing changes."""

    results: Sequence[Result]
    loaded: Loaded | None


def write_writes(request: bytes, writes: Sequence[Write]) -> bytes:
    """For `read_writes`, in a process of ours. `request` is that for a loading without them."""
    asked = []
    for write in writes:
        values = {each.name: getattr(write, each.name) for each in fields(write)}
        asked.append(values | {"verb": write.verb.value, "field_validation": write.field_validation.value})
    return dumps((request, asked))


def read_writes(data: bytes) -> tuple[LoadRequest, tuple[Write, ...]]:
    """Raises nearly everything if this is no (whole) request."""
    request, asked = loads(data)
    return read_request(request), tuple(map(_write, asked))


def _write(values: dict[str, Any]) -> Write:
    validation = FieldValidation(values["field_validation"])
    return Write(**{**values, "verb": Verb(values["verb"]), "field_validation": validation})


def write_outcomes(outcomes: Outcomes) -> bytes:
    """For `read_outcomes`, in a process of ours."""
    loaded = None if outcomes.loaded is None else flat(outcomes.loaded)
    return dumps(("outcomes", (list(map(_plain, outcomes.results)), loaded)))


def read_outcomes(data: bytes) -> Outcomes:
    """Raises ValueError if this is no (whole) answer."""
    try:
        said, (results, loaded) = loads(data)
        if said != "outcomes":
            raise ValueError
        return Outcomes(list(map(_result, results)), None if loaded is None else loaded_of(loaded))
    except Exception:  # pickle raises nearly everything
        raise ValueError("no answer of a process that loads") from None


def _plain(result: Result) -> tuple[str, Any]:
    if isinstance(result, Written):
        return "written", astuple(result)
    if result is None:
        return "later", None
    return "refused", (result.code, result.reason, str(result), result.causes, result.name)


def _result(plain: tuple[str, Any]) -> Result:
    said, values = plain
    if said == "later":
        return None
    return Written(*values) if said == "written" else WriteRefused(*values)
