"""The interface between the path of a request and `telemetry/tracing`, which only a Gateway that traces imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from egressproxy.model.exchange import Exchange
from egressproxy.model.message import RequestHead

Attributes = tuple[tuple[str, str], ...]


class ExchangeTrace(Protocol):
    """The trace of an exchange whose spans are recorded."""

    __slots__ = ()

    @property
    def log_text(self) -> str:
        """Members of JSON for the access log: `trace_id`, and the client's `x_request_id` if there is one."""

    @property
    def ids(self) -> tuple[bytes, bytes]:
        """The trace and the span of the exchange, in hexadecimal digits."""

    @property
    def sampled_ids(self) -> tuple[bytes, bytes] | None:
        """As `ids`; None where the trace may yet be left out."""

    def below(self, parent_id: bytes) -> ExchangeTrace:
        """The trace of an exchange within this one, below the span of an attempt. It is recorded as this one is."""

    def start_attempt(self, exchange: Exchange) -> bytes:
        """The id of the span of an attempt that begins now."""

    def end_attempt(self, exchange: Exchange, span_id: bytes, began: float, reason: str) -> None:
        """The attempt of this span ends without an answer, for this reason. `began`: monotonic seconds."""

    def answer_attempt(self, exchange: Exchange, span_id: bytes, began: float, seconds: float) -> None:
        """The attempt of this span has an answer, so many seconds after it began. It ends with the exchange."""

    def add_wait(self, exchange: Exchange, name: str, began: float, attributes: Attributes = ()) -> None:
        """Record what the exchange has waited for until now, as a child span of its attempt if one is being made.
        `began`: monotonic seconds. With `attributes`, waits in a row that have the same become one.
        """

    def add_attributes(self, attributes: Mapping[str, str | float]) -> None:
        """Add attributes to the span of the exchange."""

    def end(self, exchange: Exchange) -> None:
        """The exchange is accounted for: hand its spans to the exporter, unless they are not for it."""


class Tracer(Protocol):
    """What traces the exchanges of one listener."""

    __slots__ = ()

    def start(self, exchange: Exchange, head: RequestHead | None) -> None:
        """Read the context of the client's request, and write the one that goes on. None: there is no request."""


class Exporter(Protocol):
    """What takes spans, or log records, to a collector. A protocol: interpreted classes cannot extend compiled ones."""

    __slots__ = ()

    async def drain(self, timeout_s: float) -> None:
        """Export what is recorded. Returns after `timeout_s` seconds at the latest."""


def add_wait(exchange: Exchange, name: str, began: float) -> None:
    """As `ExchangeTrace.add_wait`, where the trace of `exchange` is recorded."""
    trace: ExchangeTrace | None = exchange.trace
    if trace is not None:
        trace.add_wait(exchange, name, began)
