"""The bound of the process."""

from __future__ import annotations

import resource
import sys

import pytest

from egressproxy.net.descriptors import descriptors


@pytest.mark.parametrize(("limit", "said"), [(1024, 1024), (resource.RLIM_INFINITY, sys.maxsize)])
def test_the_soft_limit_of_the_process_is_what_counts(monkeypatch: pytest.MonkeyPatch, limit: int, said: int):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, 4096))
    assert descriptors() == said
