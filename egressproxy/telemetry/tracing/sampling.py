"""Sampling: which traces are recorded. A decision depends on the trace id alone, so that all services that sample by
the same ratio agree. Source: OpenTelemetry SDK, TraceIdRatioBased.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_EVERY: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Ratio:
    """A share of all traces, from 0.0 to 1.0: those whose last 64 bits are below that share of their range."""

    share: float
    bound: bytes = field(init=False)  # the decisive digits of a trace that is taken are less than these

    def __post_init__(self) -> None:
        # "g" is greater than every digit.
        bound = round(self.share * _EVERY)
        object.__setattr__(self, "bound", b"g" if bound >= _EVERY else b"%016x" % bound)
