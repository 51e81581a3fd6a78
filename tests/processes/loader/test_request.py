"""What a process that loads is asked for comes as it was said, and makes nothing on the way."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import pytest

from egressproxy.processes.loader.request import LoadRequest, read_request, write_request


@pytest.mark.parametrize(
    "asked",
    [
        LoadRequest((), ("127.0.0.1",)),
        LoadRequest((Path("a/b.yaml"), Path("/c\udcff")), ("::1", "127.0.1.0/24"), b"\0memory", Path("/state")),
    ],
)
def test_a_request_comes_back_as_it_was(asked: LoadRequest):
    assert read_request(write_request(*asked)) == asked


def test_it_holds_plain_values_alone():
    """No class is named in it: what Python writes of a path or an enum differs between its versions."""
    written = write_request((Path("a"),), ("::1",), b"", Path("s"))
    names = {operation.name for operation, _, _ in pickletools.genops(written)}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "INST", "OBJ"}


@pytest.mark.parametrize("value", [print, getattr, Path("a")])
def test_what_would_make_an_object_is_refused(value: object):
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        read_request(pickle.dumps((value,)))


def test_half_a_request_is_refused():
    written = write_request((), ("::1",), b"memory")
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        read_request(written[:-3])
