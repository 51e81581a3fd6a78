"""MemoryStore: limits in memory that this machine's processes share."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from time import monotonic
from typing import Protocol

from egressproxy.filters.limits.rules import Reservation


class QuotaStore(Protocol):
    """The store of limits' counters."""

    def take(self, takes: Sequence[Reservation]) -> Reservation | Awaitable[Reservation | None] | None:
        """Take all reservations, or none. Returns the exceeded one with the longest wait; None: all were taken."""

    def settle(self, take: Reservation, difference: float) -> None:
        """Add `difference` to the amount taken; it may be negative."""

    def peek(self, takes: Sequence[Reservation]) -> None:
        """Fill in the remaining amounts, as far as this process knows. Takes nothing."""

    def begin(self) -> None:
        """Enter service with a configuration, perhaps again."""

    def close(self) -> None:
        """Stop background work."""


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
        """`QuotaStore.settle`; differences of an expired window are dropped."""
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
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


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
