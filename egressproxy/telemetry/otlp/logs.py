"""The access log as OTLP: lines wait as they are written, and a thread makes log records of them.

Source: opentelemetry-proto, logs/v1/logs.proto and collector/logs/v1/logs_service.proto.
"""

from __future__ import annotations

import json
from binascii import unhexlify
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from struct import Struct, error
from typing import Any, ClassVar, Final

from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.telemetry.otlp.messages import Envelope
from egressproxy.telemetry.protobuf import any_value, key_of, number, sized, utf8
from egressproxy.telemetry.tracing.exporter import BatchExporter

_EVENT: Final = sized(12, b"egressproxy.access")

#: SeverityNumber and its name.
_INFO, _WARN, _ERROR = (9, b"INFO"), (13, b"WARN"), (17, b"ERROR")
_TIMES: Final = Struct("<cQcQ").pack
_TIME, _OBSERVED, _FLAGS = b"\x09", b"\x59", Struct("<cI").pack
_BODY: Final = ("method", "authority", "path", "status")
#: Members of a line that have fields of their own in a record.
_APART: Final = frozenset(("time", "trace_id"))
#: Members that differ from exchange to exchange, or may be long.
_OF_ONE: Final = frozenset(("client", "path", "request_id", "x_request_id", "detail"))


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A line as JSON, and the ids of its trace and span in hexadecimal digits; b"" without a trace."""

    line: str
    trace_id: bytes = b""
    span_id: bytes = b""
    is_sampled: bool = False
    count: ClassVar[int] = 1

    @property
    def size(self) -> int:
        return len(self.line)


class LogExporter(BatchExporter[LoggedLine]):
    """The LineExporter of a process."""

    __slots__ = ()

    def put_line(self, line: str, trace: ExchangeTrace | None) -> None:
        """As of LineExporter. What has no room is dropped."""
        ids = () if trace is None else (*trace.ids, trace.sampled_ids is not None)
        self.put(LoggedLine(line, *ids))


class LogEncoder:
    """Encodes lines for one resource."""

    __slots__ = ("_envelope",)

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    def request(self, batch: Sequence[LoggedLine]) -> tuple[bytes, int]:
        """An ExportLogsServiceRequest with a record for each line, and how many there are."""
        return self._envelope.request(map(_record, batch)), len(batch)


def _record(logged: LoggedLine) -> bytes:
    try:
        record = _of_fields(json.loads(logged.line))
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, error):  # a filter may log what it likes
        record = number(2, _INFO[0]) + sized(5, any_value(logged.line))
    if not logged.trace_id:
        return record
    ids = sized(9, unhexlify(logged.trace_id)) + sized(10, unhexlify(logged.span_id))
    return record + ids + _FLAGS(b"\x45", logged.is_sampled)


def _of_fields(fields: dict[str, Any]) -> bytes:
    began = round(datetime.fromisoformat(fields["time"]).timestamp() * 1000) * 1_000_000
    ended = began + round(fields["duration_ms"] * 1000) * 1000
    severity, called = _severity(fields["status"], fields["reason"])
    body = " ".join([str(fields[name]) for name in _BODY])
    return b"".join((
        _TIMES(_TIME, began, _OBSERVED, ended), _EVENT, number(2, severity), sized(3, called),
        sized(5, any_value(body)),
        *[
            _shared(name, value) if name not in _OF_ONE and type(value) is str else _attribute(name, value)
            for name, value in fields.items()
            if name not in _APART
        ],
    ))  # fmt: skip


def _attribute(name: str, value: Any) -> bytes:
    key = key_of(name)
    if type(value) is str:
        data = utf8(value.encode("utf-8", "replace"))
        size = len(data) + 4
        if size + len(key) < 128:  # nearly all: each length is one byte
            return b"\x32%c%b\x12%c\x0a%c%b" % (size + len(key), key, size - 2, size - 4, data)
    return sized(6, key + sized(2, any_value(value)))


@lru_cache(maxsize=4096)
def _shared(name: str, value: str) -> bytes:
    """As `_attribute`, of a value that many exchanges have."""
    return _attribute(name, value)


def _severity(status: int, reason: str) -> tuple[int, bytes]:
    if status >= 500 or not status:
        return _ERROR
    return _INFO if reason == "-" else _WARN
