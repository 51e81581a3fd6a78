"""What the process that loads says of a write: the configuration with it and what to keep, or why it is refused."""

from __future__ import annotations

import pickle
from dataclasses import astuple
from typing import NamedTuple

from egressproxy.loading.result import Loaded, flat, loaded_of, read_plain_answer
from egressproxy.model.api_write import WriteRefused, Written

__all__ = ["Outcome", "read_outcome", "write_outcome"]


class Outcome(NamedTuple):
    """`loaded` None: nothing changes, or it was a dry run."""

    written: Written
    loaded: Loaded | None


def write_outcome(outcome: Outcome | WriteRefused) -> bytes:
    if isinstance(outcome, WriteRefused):
        return pickle.dumps(
            ("refused", (outcome.code, outcome.reason, str(outcome), outcome.causes, outcome.name)), protocol=5
        )  # fmt: skip
    loaded = None if outcome.loaded is None else flat(outcome.loaded)
    return pickle.dumps(("written", (astuple(outcome.written), loaded)), protocol=5)


def read_outcome(data: bytes) -> Outcome:
    """Raises WriteRefused, or ValueError if this is no (whole) answer."""
    try:
        said, value = read_plain_answer(data)
        if said == "written":
            written, loaded = value
            return Outcome(Written(*written), None if loaded is None else loaded_of(loaded))
        refusal = WriteRefused(*value)
    except Exception:  # pickle raises nearly everything
        raise ValueError("no answer of a process that loads") from None
    raise refusal
