"""Numbers that several processes share. Two tallies of one file are what two processes have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from egressproxy.filters import shared_counters as module
from egressproxy.filters.shared_counters import Row, SharedCounters
from egressproxy.net.file_lock import memory_file, opened_anew
from egressproxy.net.keyed_counters import SHARED, SHARED_KEYS, KeyedCounters

ROOT = Path(__file__).resolve().parents[2]
A, B, C, D = b"a" * 16, b"b" * 16, b"c" * 16, b"d" * 16


@pytest.fixture
def pair() -> tuple[SharedCounters, SharedCounters]:
    descriptor = memory_file("test")
    return SharedCounters(descriptor, 2, 1), SharedCounters(descriptor, 2, 2)


def test_a_row_is_the_same_for_all_who_ask_in_whatever_order(pair: tuple[SharedCounters, SharedCounters]):
    first, second = pair
    rows = {key: first.row(key) for key in (A, B)}
    for key in (C, B, A):
        rows[key] = second.row(key)
    first.row(A).full_at[0] = 1.5
    first.row(B).full_at[0] = 2.5
    first.row(C).full_at[0] = 3.5
    assert [rows[key].full_at[0] for key in (A, B, C)] == [1.5, 2.5, 3.5]


def test_each_counts_what_it_holds_and_sees_what_all_hold(pair: tuple[SharedCounters, SharedCounters]):
    mine, others = pair[0].row(A), pair[1].row(A)
    mine.held[mine.mine] += 3
    others.held[others.mine] += 4
    assert sum(mine.held) == sum(others.held) == 7


def test_what_a_worker_held_is_free_when_it_has_ended(pair: tuple[SharedCounters, SharedCounters]):
    mine, others = pair[0].row(A), pair[1].row(A)
    mine.held[mine.mine] = 3
    others.held[others.mine] = 4
    others.full_at[0] = 9.0
    pair[0].forget(2)
    assert list(mine.held) == [3, 0]
    assert mine.full_at[0] == 9.0, "who drew it, drew it for all"


def test_where_there_is_no_room_a_limit_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_ROWS", 2)
    descriptor = memory_file("test")
    first, second = SharedCounters(descriptor, 2, 1), SharedCounters(descriptor, 2, 2)
    first.row(A), second.row(B)
    alone = first.row(C)
    alone.full_at[0] = 1.0
    assert isinstance(alone.held, list)
    assert second.row(C).full_at[0] == 0.0
    assert second.row(A).full_at[0] == 0.0


def test_without_shared_memory_two_rows_have_nothing_in_common():
    first, second = Row(), Row()
    first.full_at[0], first.held[0] = 1.0, 1
    assert (second.full_at[0], second.held[0]) == (0.0, 0)


def test_another_process_sees_the_same(pair: tuple[SharedCounters, SharedCounters]):
    mine = pair[0].row(B)
    mine.full_at[0] = 4.5
    descriptor = opened_anew(pair[0]._lock._descriptor)
    text = (
        "import sys; from egressproxy.filters.shared_counters import SharedCounters\n"
        "row = SharedCounters(int(sys.argv[1]), 2, 2).row(b'b' * 16); row.held[row.mine] = 5; print(row.full_at[0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", text, str(descriptor)], cwd=ROOT, pass_fds=(descriptor,), capture_output=True, check=True
    )  # fmt: skip
    assert said.stdout == b"4.5\n"
    assert list(mine.held) == [0, 5]


def test_a_table_is_the_same_for_all_who_ask_in_whatever_order(pair: tuple[SharedCounters, SharedCounters]):
    first, second = pair
    tables = {key: first.keyed(key, 8) for key in (A, B)}
    others = {key: second.keyed(key, 8) for key in (C, B, A)}
    for key, table in tables.items():
        at = table.find(table.key(b"k"), 1.0)
        table.cells[at], table.cells[at + 1] = 9.0, float(key[0])
    for key in (A, B):
        assert others[key].peek(others[key].key(b"k"), 1.0) == (9.0, float(key[0]))
    assert others[C].peek(others[C].key(b"k"), 1.0) == (0.0, 0.0)


def test_a_process_that_comes_later_takes_no_table_away(pair: tuple[SharedCounters, SharedCounters]):
    table = pair[0].keyed(A, 8)
    at = table.find(table.key(b"k"), 1.0)
    table.cells[at] = 9.0
    later = SharedCounters(opened_anew(pair[0]._lock._descriptor), 2, 2).keyed(A, 8)
    assert later.peek(later.key(b"k"), 1.0) == (9.0, 0.0)


def test_what_a_worker_held_in_a_table_is_free_when_it_has_ended(pair: tuple[SharedCounters, SharedCounters]):
    table = pair[0].keyed(A, 8)
    for owner in (1, 2):
        at = table.find(table.key(b"k", owner), 1.0)
        table.cells[at], table.cells[at + 1] = 9.0, 1.0
    pair[0].forget(2)
    assert table.peek(table.key(b"k", 1), 1.0) == (9.0, 1.0)
    assert table.peek(table.key(b"k", 2), 1.0) == (0.0, 0.0)


def test_where_there_is_no_room_a_limit_has_a_table_of_its_own(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SharedCounters, SharedCounters]
):
    monkeypatch.setattr(module, "MAX_TABLES", 1)
    taken = pair[0].keyed(A, 8)
    alone, other = pair[0].keyed(B, 8), pair[1].keyed(B, 8)
    alone.cells[alone.find(alone.key(b"k"), 1.0)] = 9.0
    assert other.peek(other.key(b"k"), 1.0) == (0.0, 0.0)
    del taken


def test_a_table_that_no_worker_has_gives_its_place_to_another_limit_and_not_before(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SharedCounters, SharedCounters]
):
    monkeypatch.setattr(module, "MAX_TABLES", 2)

    def spend(table: KeyedCounters) -> None:
        at = table.find(table.key(b"k"), 1.0)
        table.cells[at], table.cells[at + 1] = 9.0, 1.0

    def spent(table: KeyedCounters) -> float:
        return table.peek(table.key(b"k"), 1.0)[1]

    first, second = pair
    kept = first.keyed(A, 8)
    mine, others = first.keyed(B, 8), second.keyed(B, 8)
    spend(kept), spend(mine)
    assert spent(others) == 1.0
    del mine
    private = first.keyed(C, 8)  # the other worker has B
    spend(private)
    assert spent(second.keyed(C, 8)) == 0.0
    assert spent(first.keyed(B, 8)) == 1.0, "nobody has needed its place"
    del others, private
    moved = first.keyed(C, 8)
    assert spent(moved) == 0.0, "nothing of the limit that was there before"
    spend(moved)
    assert spent(second.keyed(C, 8)) == 1.0
    assert spent(kept) == 1.0
    del kept
    assert first.keyed(D, 1000).lock is not first._lock, "it has more keys than there was room for"
    smaller = second.keyed(D, 4)
    spend(smaller)
    assert spent(first.keyed(D, 4)) == 1.0
    del moved, smaller
    limits = [b"%016d" % number for number in range(100)]
    for limit in limits:  # as many reloads
        table = first.keyed(limit, 8)
        assert spent(table) == 0.0
        spend(table)
        assert spent(second.keyed(limit, 8)) == 1.0


def test_what_a_worker_had_that_has_ended_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[SharedCounters, SharedCounters]
):
    monkeypatch.setattr(module, "MAX_TABLES", 1)
    lost = pair[1].keyed(A, 8)
    assert pair[0].keyed(B, 8).lock is not pair[0]._lock
    pair[0].forget(2)
    assert pair[0].keyed(B, 8).lock is pair[0]._lock
    del lost


def test_limits_that_share_a_table_count_apart_and_there_may_be_thousands(pair: tuple[SharedCounters, SharedCounters]):
    limits = [b"%016d" % number for number in range(3000)]
    for number, limit in enumerate(limits):
        table = pair[number % 2].keyed(SHARED, SHARED_KEYS).of_limit(limit)
        at = table.find(table.key(b"the same"), 1.0)
        table.cells[at], table.cells[at + 1] = 9.0, float(number)
    others = [pair[1 - number % 2].keyed(SHARED, SHARED_KEYS).of_limit(limit) for number, limit in enumerate(limits)]
    assert [each.peek(each.key(b"the same"), 1.0)[1] for each in others] == list(map(float, range(3000)))
    assert pair[0].keyed(A, 8).keys == 8, "there is room for other limits"


def test_processes_that_decide_at_once_take_no_more_than_there_is(pair: tuple[SharedCounters, SharedCounters]):
    descriptor = opened_anew(pair[0]._lock._descriptor)
    text = (
        "import sys; from egressproxy.errors import LimitExceeded\n"
        "from egressproxy.filters import FilterContext\n"
        "from egressproxy.filters.limits.filter_types import RequestRateLimitConfig, request_rate_limit\n"
        "from egressproxy.filters.shared_counters import SharedCounters\n"
        "row = SharedCounters(int(sys.argv[1]), 2, int(sys.argv[2])).row(b'b' * 16)\n"
        "limit = request_rate_limit(FilterContext(RequestRateLimitConfig(20000, 1e6), {}, 'l', 's', 's', row=row))\n"
        "sys.stdin.readline(); passed = 0\n"
        "for _ in range(20000):\n"
        "    try: limit.request_headers(None); passed += 1\n"
        "    except LimitExceeded: pass\n"
        "print(passed)"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(descriptor), worker], cwd=ROOT, pass_fds=(descriptor,),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for worker in ("1", "2")
    ]  # fmt: skip
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    passed = [int(process.communicate(timeout=120)[0]) for process in both]
    assert sum(passed) == 20000
