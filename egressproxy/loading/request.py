"""What a process that loads is asked for, as octets for its standard input: plain values, in any version of Python."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from egressproxy.loading.result import read_plain_value
from egressproxy.model.api_write import FieldValidation, Verb, Write

__all__ = ["Request", "read_request", "write_request"]


class Request(NamedTuple):
    """The arguments of `loading.answer.answer`."""

    paths: tuple[Path, ...]
    bind: tuple[str, ...]
    memory: bytes
    state: Path | None
    write: Write | None


def write_request(
    paths: Sequence[Path], bind: tuple[str, ...], memory: bytes, state: Path | None, write: Write | None
) -> bytes:
    """For `read_request`, in a process of ours."""
    change = None
    if write is not None:
        change = {field.name: getattr(write, field.name) for field in fields(write)}
        change |= {"verb": write.verb.value, "field_validation": write.field_validation.value}
    folder = None if state is None else os.fspath(state)
    return pickle.dumps((tuple(map(os.fspath, paths)), bind, memory, folder, change), protocol=5)


def read_request(data: bytes) -> Request:
    """Raises nearly everything if this is no (whole) request."""
    paths, bind, memory, folder, change = read_plain_value(io.BytesIO(data))
    write = None
    if change is not None:
        validation = FieldValidation(change["field_validation"])
        write = Write(**{**change, "verb": Verb(change["verb"]), "field_validation": validation})
    return Request(tuple(map(Path, paths)), bind, memory, None if folder is None else Path(folder), write)
