"""Sampling: which traces are recorded. A decision depends on the trace id alone, so that all services that sample by
the same ratio agree. Source: OpenTelemetry SDK, TraceIdRatioBased and ParentBased.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from egressproxy.telemetry.tracing.context import TraceContext

_EVERY: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Ratio:
    """A share of all traces, from 0.0 to 1.0: those whose last 64 bits are below that share of their range."""

    share: float
    _bound: str = field(init=False)

    def __post_init__(self) -> None:
        # "g" is greater than every digit.
        bound = round(self.share * _EVERY)
        object.__setattr__(self, "_bound", "g" if bound >= _EVERY else f"{bound:016x}")

    def takes(self, trace_id: str) -> bool:
        """Whether the trace of this id (32 digits) is among them."""
        return trace_id[16:] < self._bound


@dataclass(frozen=True, slots=True)
class Sampler:
    """`of_parent`: the share of the traces that a client has sampled; None: its decision does not count."""

    ratio: Ratio
    of_parent: Ratio | None = None

    def decide(self, trace_id: str, parent: TraceContext | None) -> bool:
        """Whether this trace is recorded. `parent`: the context of its client."""
        if parent is None or self.of_parent is None:
            return self.ratio.takes(trace_id)
        return parent.is_sampled and self.of_parent.takes(trace_id)
