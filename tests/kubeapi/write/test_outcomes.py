"""Writes come to the process that works them out as they were said, and make nothing on the way."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import pytest

from egressproxy.kubeapi.write.outcomes import read_writes, write_writes
from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write
from egressproxy.processes.loader.request import LoadRequest, write_request

WRITE = Write(
    Verb.APPLY,
    "g",
    "v1",
    "Kind",
    "kinds",
    "ns",
    "n",
    b"{}",
    "kubectl",
    "7",
    is_forced=True,
    field_validation=FieldValidation.STRICT,
)
REQUEST = write_request((), ("::1",), b"memory", Path("/state"))


def test_writes_come_back_as_they_were():
    request, writes = read_writes(write_writes(REQUEST, [WRITE, WRITE]))
    assert request == LoadRequest((), ("::1",), b"memory", Path("/state"))
    assert writes == (WRITE, WRITE)


def test_they_are_plain_values_alone():
    """No class is named in it: what Python writes of an enum differs between its versions."""
    names = {operation.name for operation, _, _ in pickletools.genops(write_writes(REQUEST, [WRITE]))}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "INST", "OBJ"}


@pytest.mark.parametrize("value", [print, getattr, Path("a")])
def test_what_would_make_an_object_is_refused(value: object):
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        read_writes(pickle.dumps((REQUEST, [value])))


def test_half_a_request_is_refused():
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        read_writes(write_writes(REQUEST, [WRITE])[:-3])
