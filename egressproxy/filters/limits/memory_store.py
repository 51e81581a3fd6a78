"""MemoryStore: limits that are counted in the memory of this machine's processes."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from time import monotonic
from typing import Protocol

from egressproxy.filters.limits.rules import Reservation


class QuotaStore(Protocol):
    """Where limits are counted."""

    def take(self, takes: Sequence[Reservation]) -> Reservation | Awaitable[Reservation | None] | None:
        """Take all of these, or nothing. Returns the one that does not fit, with the longest wait; None: all do."""

    def settle(self, take: Reservation, difference: float) -> None:
        """Count that much more than was taken; less, where it is negative."""

    def peek(self, takes: Sequence[Reservation]) -> None:
        """Say what is left of these now, as far as this process knows. Takes nothing."""

    def begin(self) -> None:
        """A configuration that has these limits is in service, perhaps not for the first time."""

    def close(self) -> None:
        """End what it does in the background."""


class MemoryStore:
    """Implements QuotaStore; nothing waits."""

    def take(self, takes: Sequence[Reservation]) -> Reservation | None:
        now = monotonic()
        first = takes[0]
        table = first.rule.table
        with table.lock:
            if len(takes) > 1:
                return _take_all(takes, now)
            first.wait_s = first.rule.window.take(table.cells, table.find_text(first.text, now), first.amount, now)
        return first if first.wait_s > 0.0 else None

    def settle(self, take: Reservation, difference: float) -> None:
        """As of QuotaStore. What belongs to a window that has passed is not counted in the next one."""
        now = monotonic()
        rule = take.rule
        if take.period and rule.window.period(now) != take.period:
            return
        cells = rule.table.cells
        with rule.table.lock:
            at = rule.table.find_text(take.text, now)
            cells[at], cells[at + 1] = rule.window.with_more(cells[at], cells[at + 1], difference, now)

    def peek(self, takes: Sequence[Reservation]) -> None:
        now = monotonic()
        for take in takes:
            until, used = take.rule.table.peek(take.key, now)
            take.left, take.reset_s = take.rule.window.left(until, used, now)

    def begin(self) -> None:
        """As of QuotaStore: there is nothing."""

    def close(self) -> None:
        """As of QuotaStore: there is nothing."""


def _take_all(takes: Sequence[Reservation], now: float) -> Reservation | None:
    refusing: Reservation | None = None
    undo = []
    for take in takes:
        table = take.rule.table
        cells, at = table.cells, table.find_text(take.text, now)
        undo.append((cells, at, cells[at], cells[at + 1]))
        take.wait_s = wait = take.rule.window.take(cells, at, take.amount, now)
        if wait > 0.0 and (refusing is None or wait > refusing.wait_s):
            refusing = take
    if refusing is not None:
        for cells, at, until, used in reversed(undo):
            cells[at], cells[at + 1] = until, used
    return refusing
