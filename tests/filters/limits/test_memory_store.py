"""Two tables of one file are what two workers have; threads that decide at once are what many clients are."""

import threading

from egressproxy.filters.limits.memory_store import MemoryStore
from egressproxy.filters.limits.rules import QuotaRule, Reservation, key_text
from egressproxy.filters.limits.windows import window_of
from egressproxy.filters.shared_counters import SharedCounters
from egressproxy.net.file_lock import memory_file


def rule(counters, name, limit, unit):
    table = counters.keyed(name.encode().ljust(16), 100)
    return QuotaRule(name, "Requests", "Total", window_of(limit, unit), key_text(()), table, b"", "")


def test_workers_that_decide_at_once_pass_exactly_the_limit():
    descriptor, passed = memory_file("test"), []

    def work(worker):
        counters = SharedCounters(descriptor, 4, worker)
        rules = [rule(counters, "hour", 700, "Hour"), rule(counters, "day", 500, "Day")]
        store = MemoryStore()
        for number in range(1000):
            key = b"%d" % (number % 2)
            takes = [Reservation(each, key, each.window.period(1.0), 1.0) for each in rules]
            if store.take(takes) is None:
                passed.append(key)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (passed.count(b"0"), passed.count(b"1")) == (500, 500)


def test_a_settlement_for_a_window_that_has_passed_is_not_counted_in_the_next():
    counters, store = SharedCounters(memory_file("test"), 1, 1), MemoryStore()
    day = rule(counters, "day", 10, "Day")
    late = Reservation(day, b"k", b"1999-12-31", 1.0)
    store.settle(late, 10.0)
    assert store.take([Reservation(day, b"k", day.window.period(1.0), 10.0)]) is None
