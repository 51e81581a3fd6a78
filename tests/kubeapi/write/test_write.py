"""Writes come to the process that works them out as they were said, and make nothing on the way."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.kubeapi.write.write import (
    FieldValidation,
    Outcomes,
    Verb,
    Write,
    WriteRefused,
    Written,
    read_outcomes,
    read_writes,
    write_writes,
)
from egressproxy.model.certificate import CertificateUse, Validity
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig, ListenerAddress
from egressproxy.processes.pickling import dumps

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
REQUEST = write_request(LoadRequest((), ("::1",), b"memory", Path("/state")))


def test_writes_come_back_as_they_were():
    request, writes = read_writes(write_writes(REQUEST, [WRITE, WRITE]))
    assert request == LoadRequest((), ("::1",), b"memory", Path("/state"))
    assert writes == (WRITE, WRITE)


@pytest.mark.parametrize("value", [print, getattr, Path("a")])
def test_what_would_make_anything_else_is_refused(value: object):
    with pytest.raises(pickle.UnpicklingError, match="no part of a write"):
        read_writes(pickle.dumps((REQUEST, [value])))


def test_what_became_of_writes_comes_back_as_it_was():
    causes = [("FieldValueInvalid", "it is wrong", "spec.x")]
    refused = WriteRefused(422, "Invalid", "it is invalid", causes, "n")
    written = Written("n", "uid", b"{}", is_new=True, file="/state/n.yaml", warnings=("beware",))
    validity = Validity(CertificateUse.CA, "ConfigMap", "ns", "ca", 0.0, 1.0, 2.0)
    problem = Problem("a.yaml", 3, 5, "Gateway default/gw", "spec", "so", severity=Severity.UNSERVED)
    loaded = CompiledConfig(
        b"spec", (ListenerAddress("::1", 80, "HTTP", "l"),), findings=(problem,), validities=(validity,)
    )
    results, back = read_outcomes(dumps(Outcomes([written, refused, None], loaded)))
    assert back == loaded
    assert results[0] == written
    assert isinstance(results[1], WriteRefused)
    assert vars(results[1]) == vars(refused)
    assert str(results[1]) == str(refused)
    assert results[2] is None


@pytest.mark.parametrize("data", [b"", b"N.", dumps(("outcomes", ([], None))), pickle.dumps(print), dumps(WRITE)])
def test_anything_else_is_no_answer(data: bytes):
    with pytest.raises(ValueError, match="no answer"):
        read_outcomes(data)


def test_half_a_request_is_refused():
    with pytest.raises((pickle.UnpicklingError, EOFError)):
        read_writes(write_writes(REQUEST, [WRITE])[:-3])
