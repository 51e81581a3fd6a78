"""What the process that loads is asked for, as octets: plain values, in any version of Python."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from egressproxy.model.pickling import dumps, loads
from egressproxy.model.secret_source import ConfigSource, plain_source, source_of

__all__ = ["STATUS", "LoadRequest", "read_request", "write_request"]

#: How the copy ended that served a request: its exit status, or the number of the signal, negative.
STATUS: Final = struct.Struct("!i")


class LoadRequest(NamedTuple):
    """What is to be loaded. `memory` is that of the configuration in service, empty at the first start; `state` is the
    folder of what was written through the API.
    """

    paths: tuple[ConfigSource, ...]
    bind: tuple[str, ...]
    memory: bytes = b""
    state: Path | None = None


def write_request(
    paths: Sequence[ConfigSource], bind: tuple[str, ...], memory: bytes = b"", state: Path | None = None
) -> bytes:
    """For `read_request`, in a process of ours."""
    folder = None if state is None else os.fspath(state)
    return dumps((tuple(map(plain_source, paths)), bind, memory, folder))


def read_request(data: bytes) -> LoadRequest:
    """Raises nearly everything if this is no (whole) request."""
    paths, bind, memory, folder = loads(data)
    return LoadRequest(tuple(map(source_of, paths)), bind, memory, None if folder is None else Path(folder))
