"""What a gateway has signed is believed once, also where another worker has believed it."""

from __future__ import annotations

import pytest

from egressproxy.gateway.identity import seen_values
from egressproxy.gateway.identity.seen_values import SharedSeenValues
from egressproxy.model.forwarded_identity import NotVerified
from egressproxy.net.keyed_counters import KeyedCounters


def test_what_one_worker_has_believed_no_other_believes(monkeypatch: pytest.MonkeyPatch):
    clock = [100.0]
    monkeypatch.setattr(seen_values, "monotonic", lambda: clock[0])
    table = KeyedCounters(64)
    one, two = (SharedSeenValues(lambda _key, _keys: table) for _ in range(2))
    one.take(1000, b"a", 1000.0)
    for worker in (one, two):
        with pytest.raises(NotVerified, match="it was shown before"):
            worker.take(1000, b"a", 1000.0)
    two.take(1000, b"b", 1000.0)
    clock[0] += seen_values._HOLDS_S + 1
    two.take(1040, b"a", 1040.0)


def test_where_there_is_no_room_each_remembers_its_own():
    table = KeyedCounters(1)
    one = SharedSeenValues(lambda _key, _keys: table)
    for number in range(200):
        one.take(1000, b"%d" % number, 1000.0)
    for number in range(200):
        with pytest.raises(NotVerified, match="it was shown before"):
            one.take(1000, b"%d" % number, 1000.0)
    assert table.crowded
