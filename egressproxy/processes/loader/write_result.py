"""What the process that loads says of writes: the configuration with them and what to keep, or why one is refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from egressproxy.model.api_write import WriteRefused, Written
from egressproxy.processes.loader.result import Loaded, flat, loaded_of, read_plain_answer

__all__ = ["Outcomes", "Result", "read_outcomes", "write_outcomes"]

#: Of one write; None where it has to be worked out again, after the others.
Result = Written | WriteRefused | None


class Outcomes(NamedTuple):
    """`results` are those of the writes, in their order. `loaded` None: nothing changes."""

    results: Sequence[Result]
    loaded: Loaded | None


def write_outcomes(outcomes: Outcomes) -> bytes:
    loaded = None if outcomes.loaded is None else flat(outcomes.loaded)
    return pickle.dumps(("outcomes", (list(map(_plain, outcomes.results)), loaded)), protocol=5)


def read_outcomes(data: bytes) -> Outcomes:
    """Raises ValueError if this is no (whole) answer."""
    try:
        said, (results, loaded) = read_plain_answer(data)
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
