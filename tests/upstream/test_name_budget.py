"""A bound on new names of one client below one domain."""

from __future__ import annotations

import pytest

from egressproxy.errors import Reason
from egressproxy.upstream import name_budget
from egressproxy.upstream.name_budget import NameBudget, domain_of


def test_the_domain_is_the_last_two_labels():
    assert [domain_of(host) for host in ("a.b.c.example", "c.example", "example")] == [
        "c.example",
        "c.example",
        "example",
    ]


def test_each_client_has_so_many_names_below_each_domain_and_they_refill():
    names = NameBudget(3, 60.0)
    taken = [names.take("one", f"n{number}.a.example", 100.0) for number in range(4)]
    assert taken[:3] == [None] * 3
    error = taken[3]
    assert error is not None
    assert (error.status, error.reason, error.retry_after_s) == (429, Reason.NEW_NAMES, 20)
    assert "n3" not in error.message + error.remedy
    assert names.take("two", "n9.a.example", 100.0) is None
    assert names.take("one", "n9.b.example", 100.0) is None
    assert names.take("one", "n9.a.example", 119.0) is not None
    assert names.take("one", "n9.a.example", 120.1) is None
    assert names.take("one", "n9.a.example", 120.1) is not None
    for _ in range(3):
        assert names.take("one", "n9.a.example", 10_000.0) is None
    assert names.take("one", "n9.a.example", 10_000.0) is not None


def test_the_counts_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(name_budget, "MAX_COUNTS", 2)
    names = NameBudget(1, 60.0)
    for client in ("one", "two", "one", "three"):
        names.take(client, "a.example", 0.0)
    assert repr(names) == "NameBudget(1 in 60 s, 2 counts)"
    assert names.take("one", "a.example", 0.0) is not None  # it was counted last but one
