"""A bound on new names of one client below one domain."""

from __future__ import annotations

import os

import pytest

from egressproxy.errors import Reason
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.net.file_lock import memory_file
from egressproxy.net.keyed_counters import OwnCounters
from egressproxy.upstream import new_hostname_rate_limit
from egressproxy.upstream.new_hostname_rate_limit import NAMES_S, NewHostnameRateLimit, domain_of


def budget(limit: int, window_s: float) -> NewHostnameRateLimit:
    return NewHostnameRateLimit(limit, window_s, OwnCounters().keyed)


def test_the_domain_is_the_last_two_labels():
    assert [domain_of(host) for host in ("a.b.c.example", "c.example", "example")] == [
        "c.example",
        "c.example",
        "example",
    ]


def test_each_client_has_so_many_names_below_each_domain_and_they_refill():
    names = budget(3, 60.0)
    taken = [names.take("one", f"n{number}.a.example", 100.0) for number in range(4)]
    assert taken[:3] == [None] * 3
    error = taken[3]
    assert error is not None
    assert (error.status, error.reason, error.retry_after_s) == (429, Reason.NEW_NAMES, 20)
    assert "n3" not in error.message + error.remedy
    assert names.take("two", "n8.a.example", 100.0) is None
    assert names.take("one", "n9.b.example", 100.0) is None
    assert names.take("one", "n9.a.example", 119.0) is not None
    assert names.take("one", "n9.a.example", 120.1) is None
    assert names.take("one", "n10.a.example", 120.1) is not None
    for number in range(3):
        assert names.take("one", f"m{number}.a.example", 10_000.0) is None
    assert names.take("one", "m4.a.example", 10_000.0) is not None


def test_a_name_that_is_known_costs_nothing_whoever_asks_for_as_long_as_it_is_remembered():
    names = budget(1, 60.0)
    assert names.take("one", "a.example", 0.0) is None
    assert names.take("two", "a.example", 1.0) is None
    assert names.take("two", "b.a.example", 1.0) is None
    assert names.take("two", "c.a.example", 2.0) is not None
    assert names.take("one", "a.example", NAMES_S - 1.0) is None
    assert names.take("one", "x.a.example", NAMES_S - 1.0) is None
    assert names.take("one", "a.example", NAMES_S + 1.0) is not None


def test_who_finds_no_room_shares_one_count_and_no_name_is_known_for_lack_of_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(new_hostname_rate_limit, "MAX_COUNTS", 1)
    monkeypatch.setattr(new_hostname_rate_limit, "MAX_NAMES", 1)
    names = budget(1, 60.0)
    refused = [names.take(f"client {number}", f"n{number}.example", 100.0) is not None for number in range(20)]
    assert refused.count(False) < 6
    assert refused[-1]
    assert names.take("client 19", "n19.example", 100.0) is not None


def test_workers_count_together_and_a_name_of_one_is_new_to_none():
    file = memory_file("test")
    first, second = (
        NewHostnameRateLimit(2, 60.0, SharedCounters(file, 2, worker).keyed, "servers") for worker in (1, 2)
    )
    other = NewHostnameRateLimit(2, 60.0, SharedCounters(file, 2, 1).keyed, "other servers")
    os.close(file)
    assert first.take("one", "a.x.example", 100.0) is None
    assert second.take("one", "a.x.example", 100.0) is None
    assert second.take("one", "b.x.example", 100.0) is None
    assert first.take("one", "c.x.example", 100.0) is not None
    assert other.take("one", "c.x.example", 100.0) is None
