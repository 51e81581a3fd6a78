"""BlockWatch: names a filter of a user's that blocks the event loop. All requests of the worker wait meanwhile.

Each call of such a filter, and each step of an `async` one, reads the clock twice. Filters of ours are not watched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from types import CoroutineType
from typing import Any, Final

from egressproxy.telemetry.event_aggregator import FilterNotices
from egressproxy.telemetry.filter_meter import FilterMeter, FilterMetrics

#: A call that takes longer is told, in seconds.
BLOCKED_S: Final = 0.1


class BlockWatch:
    """That of one filter, the extension `name` in the object `scope`."""

    __slots__ = ("_counter", "_notices", "_scope")

    def __init__(self, name: str, scope: str, metrics: FilterMetrics, notices: FilterNotices) -> None:
        meter = FilterMeter(metrics, name, "egressproxy.io/BlockWatch:v1")
        self._counter = meter.counter(
            "egress_filter_blocked", "Times that a filter blocked the event loop for more than 100 ms.", ("scope",)
        )
        self._counter.add(0, scope)
        self._scope = scope
        self._notices = notices

    def watched(self, method: Callable[..., object]) -> Callable[..., object]:
        """The method, timed; and the steps of the coroutine that it returns."""

        def call(*given: object) -> object:
            began = monotonic()
            try:
                result = method(*given)
            finally:
                if monotonic() - began > BLOCKED_S:
                    self.blocked(method)
            return _Steps(self, method, result) if type(result) is CoroutineType else result

        return call

    def blocked(self, method: Callable[..., object]) -> None:
        """Tell that this method has blocked. The words are always the same: repeated Events are counted together."""
        self._counter.add(1, self._scope)
        code = getattr(method, "__code__", None)
        where = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code is not None else ""
        self._notices.warning(
            "FilterBlocks",
            f"`{getattr(method, '__name__', 'a method')}`{where} blocked the event loop for more than"
            f" {BLOCKED_S * 1000:.0f} ms, in which every request waits: write `async def`, await what waits, and run"
            " what computes or blocks with `await asyncio.to_thread(…)`",
        )


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed, but for those that are cancelled."""

    __slots__ = ("_coroutine", "_method", "_watch")

    def __init__(self, watch: BlockWatch, method: Callable[..., object], coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._method = method
        self._watch = watch

    def send(self, value: Any) -> Any:
        began = monotonic()
        try:
            return self._coroutine.send(value)
        finally:
            if monotonic() - began > BLOCKED_S:
                self._watch.blocked(self._method)

    def throw(self, *raised: Any) -> Any:
        return self._coroutine.throw(*raised)

    def close(self) -> None:
        self._coroutine.close()

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def __await__(self) -> Generator[Any, Any, Any]:
        return self
