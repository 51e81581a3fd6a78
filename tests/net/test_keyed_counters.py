import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.net import keyed_counters
from egressproxy.net.keyed_counters import ENTRY_BYTES, KeyedCounters, OwnCounters, table_bytes

FOREVER = 1e18


def spend(table: KeyedCounters, name: bytes, until: float, used: float, now: float = 1.0) -> int:
    at = table.find(table.key(name), now)
    table.cells[at], table.cells[at + 1] = until, used
    return at


def test_each_key_has_its_own_numbers():
    table = KeyedCounters(1000)
    for number in range(1000):
        spend(table, b"%d" % number, FOREVER, number)
    assert [table.peek(table.key(b"%d" % n), 1.0) for n in range(1000)] == [(FOREVER, n) for n in range(1000)]


def test_no_flood_of_keys_makes_a_spent_one_new():
    table = KeyedCounters(50)
    for number in range(50):
        spend(table, b"%d" % number, FOREVER, 7.0)
    for number in range(5000):
        spend(table, b"flood %d" % number, FOREVER, 1.0)
    assert {table.peek(table.key(b"%d" % n), 1.0) for n in range(50)} == {(FOREVER, 7.0)}


def test_keys_without_room_share_one_entry_until_there_is_room_again():
    table = KeyedCounters(8)
    for number in range(200):
        spend(table, b"%d" % number, 100.0, 1.0)
    places = {spend(table, b"late %d" % number, 100.0, 1.0) for number in range(9)}
    assert len(places) == 1
    (shared,) = places
    assert spend(table, b"later", 300.0, 1.0, now=200.0) != shared, "what is as new is given to others"
    spend(table, b"0", 100.0, 1.0)
    table.cells[shared + 1] = 5.0
    table.find(b"x" * 16, 99.0)
    assert table.cells[shared + 1] == 5.0


def test_what_is_as_new_has_used_nothing():
    table = KeyedCounters(8)
    spend(table, b"a", 10.0, 3.0)
    assert table.peek(table.key(b"a"), 9.0) == (10.0, 3.0)
    assert table.peek(table.key(b"a"), 10.0) == (0.0, 0.0)
    at = table.find(table.key(b"a"), 10.0)
    assert table.cells[at + 1] == 0.0


def test_what_a_worker_held_is_free_when_it_has_ended():
    table = KeyedCounters(8)
    for owner in (1, 2):
        at = table.find(table.key(b"a", owner), 1.0)
        table.cells[at], table.cells[at + 1] = FOREVER, owner
    table.forget(2)
    assert table.peek(table.key(b"a", 1), 1.0) == (FOREVER, 1.0)
    assert table.peek(table.key(b"a", 2), 1.0) == (0.0, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0.5, 20.0)), max_size=300),
)
def test_a_key_has_what_was_written_for_it_until_that_is_over(steps):
    """Against a dictionary, with more room than keys: the table loses nothing and invents nothing."""
    table, known, now = KeyedCounters(64), {}, 1.0
    for number, length in steps:
        now += 0.25
        at = table.find(table.key(b"%d" % number), now)
        until, used = known.get(number, (0.0, 0.0))
        assert table.cells[at + 1] == (used if until > now else 0.0)
        known[number] = table.cells[at], table.cells[at + 1] = now + length, float(number)


def test_memory_is_32_bytes_for_each_of_at_most_four_times_as_many_entries():
    assert table_bytes(100_000) == (262_144 + 1) * ENTRY_BYTES
    assert table_bytes(1) == 3 * ENTRY_BYTES


def test_a_limit_has_one_table_for_as_long_as_its_room_stays():
    tables = OwnCounters()
    assert tables.keyed(b"a", 8) is tables.keyed(b"a", 8) is not tables.keyed(b"b", 8)
    assert tables.keyed(b"a", 16).keys == 16


def test_tables_that_nobody_has_any_more_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keyed_counters, "LATEST", 3)
    tables = OwnCounters()
    used = tables.keyed(b"used", 8)
    at = used.find(used.key(b"k"), 1.0)
    used.cells[at] = 9.0
    for number in range(10):
        table = tables.keyed(b"%d" % number, 8)
        at = table.find(table.key(b"k"), 1.0)
        table.cells[at] = 9.0
    del table
    assert repr(tables) == "OwnCounters(4 limits)"
    assert tables.keyed(b"used", 8) is used
    for number, is_known in ((9, True), (8, True), (3, False)):
        again = tables.keyed(b"%d" % number, 8)
        assert (again.peek(again.key(b"k"), 1.0)[0] == 9.0) is is_known
    shared = tables.keyed(b"shared", 8).of_limit(b"one")
    assert all(tables.keyed(b"other %d" % number, 8) for number in range(9))
    assert tables.keyed(b"shared", 8).cells.obj is shared.cells.obj  # a limit of it has it


@given(st.lists(st.tuples(st.integers(0, 12), st.floats(0.5, 20.0)), max_size=200))
def test_what_is_remembered_of_a_key_leads_to_the_entry_that_a_search_finds(steps):
    """With less room than keys, so that entries go from key to key, beside another worker that takes them, too."""
    table = KeyedCounters(2, memory := memoryview(bytearray(table_bytes(2))), b"s" * 32)
    other = KeyedCounters(2, memory, b"s" * 32)
    table.remembers, now = True, 1.0
    for number, length in steps:
        now += 0.5
        text = b"%d" % number
        if number % 3:
            spend(other, text, now + length, float(number), now)
        else:
            at = table.find_text(text, now)
            assert at == other.find(other.key(text), now)
            table.cells[at], table.cells[at + 1] = now + length, float(number)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.5, 3.0, 20.0]), st.sampled_from([0.0, 0.5, 4.0])),
        max_size=200,
    ),
    st.integers(1, 4),
)
def test_a_table_that_remembers_has_the_same_numbers_as_one_that_searches(steps, keys):
    """Two tables of their own: where a key is, and what it has used, when it is over, when it has lost its entry."""
    quick, slow = (KeyedCounters(keys, memoryview(bytearray(table_bytes(keys))), b"s" * 32) for _ in range(2))
    quick.remembers, now = True, 1.0
    for number, length, pause in steps:
        now += pause
        text = b"%d" % number
        at, expected = quick.find_text(text, now), slow.find(slow.key(text), now)
        assert (at, quick.cells[at + 1]) == (expected, slow.cells[expected + 1])
        for table in (quick, slow):
            table.cells[at], table.cells[at + 1] = now + length, table.cells[at + 1] + 1.0
    assert bytes(quick.cells.cast("B")) == bytes(slow.cells.cast("B"))


def test_nothing_is_remembered_of_keys_that_may_be_secret_and_not_of_ever_more_keys():
    table = KeyedCounters(8)
    table.find_text(b"secret", 1.0)
    assert not table._known
    table.remembers = True
    for number in range(5000):
        table.find_text(b"%d" % number, 1.0)
        table.find_text(b"%d" % number + b"x" * 300, 1.0)
    assert 0 < len(table._known) <= 4096
    assert max(map(len, table._known)) < 300


def test_limits_that_share_a_memory_remember_a_bounded_number_of_keys_together():
    shared = KeyedCounters(1000)
    views = [shared.of_limit(b"%016d" % number) for number in range(100)]
    for view in views:
        view.remembers = True
    for number in range(10_000):
        view = views[number % 100]
        at = view.find_text(b"%d" % (number // 100), 1.0)
        view.cells[at] = 1.5
    assert len({id(view._known) for view in views}) == 1
    assert len(views[0]._known) <= 4096
    assert views[0].key(b"1") != views[1].key(b"1") != shared.key(b"1")


def test_keys_that_find_no_room_are_counted():
    counters = OwnCounters()
    views = [counters.keyed(b"a" * 16, 2).of_limit(b"%016d" % number) for number in range(9)]
    for view in views:
        spend(view, b"k", FOREVER, 1.0)
    assert counters.crowded == 9 - 4
