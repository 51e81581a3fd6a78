"""What the process that loads is asked for, as octets: plain values, in any version of Python."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from egressproxy.model.api_write import FieldValidation, Verb, Write
from egressproxy.model.secret_source import ConfigSource, plain_source, source_of
from egressproxy.processes.loader.result import read_plain_value

__all__ = ["STATUS", "Request", "RequestKind", "read_request", "write_request"]

#: How the copy ended that served a request: its exit status, or the number of the signal, negative.
STATUS: Final = struct.Struct("!i")


class RequestKind(Enum):
    """What comes with the descriptors of a request."""

    LOAD = b"L"  # a `Request`
    SCHEMA = b"S"  # nothing: JSON Schema of every kind is asked for


class Request(NamedTuple):
    """The arguments of `processes.loader.answer.answer`. Without writes it is a loading."""

    paths: tuple[ConfigSource, ...]
    bind: tuple[str, ...]
    memory: bytes
    state: Path | None
    writes: tuple[Write, ...]


def write_request(
    paths: Sequence[ConfigSource], bind: tuple[str, ...], memory: bytes, state: Path | None, writes: Sequence[Write]
) -> bytes:
    """For `read_request`, in a process of ours."""
    folder = None if state is None else os.fspath(state)
    asked = [_plain(write) for write in writes]
    return pickle.dumps((tuple(map(plain_source, paths)), bind, memory, folder, asked), protocol=5)


def read_request(data: bytes) -> Request:
    """Raises nearly everything if this is no (whole) request."""
    paths, bind, memory, folder, asked = read_plain_value(io.BytesIO(data))
    state = None if folder is None else Path(folder)
    return Request(tuple(map(source_of, paths)), bind, memory, state, tuple(map(_write, asked)))


def _plain(write: Write) -> dict[str, Any]:
    values = {field.name: getattr(write, field.name) for field in fields(write)}
    return values | {"verb": write.verb.value, "field_validation": write.field_validation.value}


def _write(values: dict[str, Any]) -> Write:
    validation = FieldValidation(values["field_validation"])
    return Write(**{**values, "verb": Verb(values["verb"]), "field_validation": validation})
