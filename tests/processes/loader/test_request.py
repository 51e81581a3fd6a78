"""What a process that loads is asked for comes as it was said, and makes nothing on the way."""

from __future__ import annotations

import pickle
import pickletools
from collections import Counter
from pathlib import Path

import pytest

from egressproxy.model.secret import SecretBytes, SecretSource
from egressproxy.processes.loader.request import LoadRequest, read_request, write_request


@pytest.mark.parametrize(
    "asked",
    [
        LoadRequest((), ("127.0.0.1",)),
        LoadRequest((Path("a/b.yaml"), Path("/c\udcff")), ("::1", "127.0.1.0/24"), b"\0memory", Path("/state")),
        LoadRequest((SecretSource(path=Path("/run/secrets")),), ()),
        LoadRequest((SecretSource("ns", "openai", "token", Path("/run/token")),), ()),
        LoadRequest((SecretSource("ns", "openai", "token", variable="TOKEN", value=SecretBytes(b"hush")),), ()),
    ],
)
def test_a_request_comes_back_as_it_was(asked: LoadRequest):
    assert read_request(write_request(asked)) == asked


def test_a_path_is_written_as_its_text():
    """What Python writes of a path differs between its versions."""
    named = {
        argument for _, argument, _ in pickletools.genops(write_request(LoadRequest((Path("a/b"),), ()))) if argument
    }
    assert {"a/b", "Path"} <= named
    assert "PosixPath" not in named


@pytest.mark.parametrize("value", [print, getattr, pickle.Unpickler, Counter("a")])
def test_what_would_make_anything_else_is_refused(value: object):
    with pytest.raises(pickle.UnpicklingError, match="no part of a request"):
        read_request(pickle.dumps((value,)))


def test_half_a_request_is_refused():
    written = write_request(LoadRequest((), ("::1",), b"memory"))
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        read_request(written[:-3])
