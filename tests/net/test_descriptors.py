"""The bound of the process."""

from __future__ import annotations

import resource
import sys

import pytest

from egressproxy.net.descriptors import descriptors, descriptors_for_traffic


@pytest.mark.parametrize(("limit", "said"), [(1024, 1024), (resource.RLIM_INFINITY, sys.maxsize)])
def test_the_soft_limit_of_the_process_is_what_counts(monkeypatch: pytest.MonkeyPatch, limit: int, said: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, 4096))
    assert descriptors() == said


@pytest.mark.parametrize(("limit", "for_traffic"), [(1024, 960), (100, 50), (resource.RLIM_INFINITY, sys.maxsize)])
def test_some_are_kept_for_the_rest_of_the_process(monkeypatch: pytest.MonkeyPatch, limit: int, for_traffic: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, 4096))
    assert descriptors_for_traffic() == for_traffic
