"""The access log: one JSON object per line for every exchange and tunnel. Writing never blocks the loop.

`record` makes the line and appends it to a list. A batch goes to a thread every 100 ms or at 256 KiB; only that thread
touches the file. If it cannot write (an unread pipe, a full disk), lines wait up to a bound, then new ones are dropped
and counted. Queries are never logged, since they may contain keys.

A line is made with one format operation, which costs a third of json.dumps. The result is used only if the values from
outside have no quotation mark and no backslash, and are printable; any other line is made by json.dumps, and so is the
part that many lines share, once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from egressproxy.errors import Reason
from egressproxy.model.attempt_trail import AttemptTrail
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import LOGGED, Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.grpc_status import GRPC_NAMES
from egressproxy.model.per_client_quota import PerClientQuota, client_of, most_of
from egressproxy.telemetry.log_writer import LogWriter
from egressproxy.telemetry.series import Series, decided_by, logged_status

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 0.1
BATCH_BYTES: Final = 256 * 1024  # waking the thread costs as much as formatting a hundred lines
#: How many bytes may wait for a slow reader: some 16,000 lines of 500 bytes.
MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
#: More denials than this in one second, or three quarters of them for one client, are a flood: the rest of that second
#: is counted and not logged.
MAX_DENIALS_PER_S: Final = 5000
#: How long `close` waits for a slow reader.
CLOSE_TIMEOUT_S: Final = 2.0
#: Longer text is cut: a client must not be able to fill a disk with one request.
MAX_TEXT: Final = 8192

#: How many shared parts of lines are kept: more than nearly every configuration has routes and identities.
MAX_SHARED_PARTS: Final = 16_384
#: What the log calls the fields of a CallerIdentity that stand there only where they are known, in their order.
_IDENTITY_KEYS: Final = ("origin_client", "origin_gateway", "identity", "identity_source")
#: `is_tunnel`, gateway, listener, route, backend, the key of the identity, and the series, which has the policy.
_PartKey = tuple[bool, str, str, str, str, str, Series | None]
_OK: Final = Reason.OK
#: Envoy's response flags for our reasons, so that dashboards made for Envoy's access log read ours. Reasons without a
#: flag in Envoy (a denial by policy, an operator's mistake) have none: `reason` is better than a flag that nearly fits.
#: Source: Envoy, access logging, %RESPONSE_FLAGS%.
_REASONS: Final[dict[str, tuple[Reason, ...]]] = {
    "RL": (  # rate limited
        Reason.REQUEST_RATE, Reason.NEW_NAMES, Reason.TOKEN_RATE, Reason.BYTE_RATE, Reason.COST_LIMIT,
    ),
    "UO": (  # upstream overflow: a circuit breaker's kind of limit
        Reason.CONCURRENCY, Reason.TUNNEL_LIMIT, Reason.CONNECTION_LIMIT, Reason.QUEUE_FULL,
        Reason.QUEUE_TIMEOUT, Reason.CIRCUIT_OPEN,
    ),
    "OM": (Reason.OVERLOADED,),  # overload manager
    "DPE": (  # downstream protocol error
        Reason.BAD_REQUEST_LINE, Reason.NOT_SOCKS, Reason.NOT_REDIRECTED, Reason.BAD_VERSION, Reason.BAD_HOST,
        Reason.BAD_TARGET, Reason.BAD_FIELD, Reason.BAD_FRAMING, Reason.UNKNOWN_CODING, Reason.MCP_VERSION,
        Reason.CONTENT_CODING, Reason.HEAD_TOO_LARGE, Reason.TARGET_TOO_LONG,
    ),
    "DC": (Reason.CLIENT_GONE,),  # downstream connection termination
    "SI": (Reason.CLIENT_TIMEOUT,),  # stream idle timeout
    "NR": (Reason.NO_ROUTE, Reason.MISDIRECTED),  # no route
    "NC": (Reason.BACKEND_INVALID, Reason.UNKNOWN_EXTENSION, Reason.FILTER_UNUSABLE),  # no cluster
    "UAEX": (  # refused by an authorisation step
        Reason.FILTER_REJECTED, Reason.ACCESS_DENIED, Reason.CONTENT_DENIED, Reason.MODEL_DENIED, Reason.REGION_DENIED,
        Reason.EXT_AUTH_DENIED, Reason.EXT_AUTH_ERROR,
    ),
    "DF": (  # DNS resolution failed
        Reason.DNS_NXDOMAIN, Reason.DNS_NO_ADDRESS, Reason.DNS_SERVFAIL, Reason.DNS_TIMEOUT,
        Reason.DNS_NOT_AUTHENTIC, Reason.DNS_ERROR,
    ),
    "UH": (Reason.NO_ENDPOINT, Reason.NO_HEALTHY_ENDPOINT),  # no healthy upstream
    "UF": (  # upstream connection failure
        Reason.CONNECT_REFUSED, Reason.CONNECT_TIMEOUT, Reason.CONNECT_FAILED, Reason.PARENT_REFUSED,
        Reason.PARENT_AUTH, Reason.TLS_CERTIFICATE, Reason.TLS_PROTOCOL, Reason.TLS_TIMEOUT,
    ),
    "UR": (Reason.UPSTREAM_RESET,),  # upstream remote reset
    "UC": (Reason.UPSTREAM_CLOSED, Reason.UPSTREAM_INCOMPLETE),  # upstream connection termination
    "UPE": (Reason.BAD_RESPONSE,),  # upstream protocol error
    "UT": (Reason.RESPONSE_TIMEOUT,),  # upstream request timeout
    "DT": (Reason.REQUEST_TIMEOUT,),  # duration timeout
}  # fmt: skip
FLAGS: Final[dict[Reason, str]] = {reason: flag for flag, reasons in _REASONS.items() for reason in reasons}
#: The thousandths of a number, as it is written.
_THOUSANDTHS: Final = [f".{number:03}" for number in range(1000)]
_METHODS: Final = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "-")
}


class Batches(Protocol):
    """Where lines go, many at a time (`telemetry.log_writer`)."""

    dropped: int
    written: int

    def put(self, chunk: bytes, lines: int) -> None:
        """Take these bytes, which are so many lines. Never blocks."""

    def reopen(self) -> None:
        """Open the path again."""

    def close(self, timeout_s: float) -> None:
        """Take no more, and wait at most so long until all is written."""


class LineExporter(Protocol):
    """What takes lines to a collector, too (`telemetry.otlp.logs`)."""

    def put_line(self, line: str, trace: ExchangeTrace | None) -> None:
        """Take this line; `trace` is that of its exchange if there is one. Never blocks."""


class AccessLog:
    """Writes to `target`: None or "-" is standard output, "off" nothing, an int a file descriptor, text a path;
    anything else is given the batches.

    `turn` is entered around each write, for processes that share a target; `log_format`: as of LogWriter. Raises
    OSError where the path cannot be opened. All methods belong to the loop's thread. Call `close` at the end: it writes
    the waiting lines.
    """

    __slots__ = (
        "_denials", "_denials_second", "_lines", "_logged", "_millisecond", "_moment", "_shared_parts", "_size",
        "_stamps", "_timer", "_writer", "exporter", "suppressed", "tap",
    )  # fmt: skip

    def __init__(
        self,
        target: str | int | Batches | None = None,
        *,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        max_denials_per_s: int = MAX_DENIALS_PER_S,
        turn: AbstractContextManager[object] | None = None,
        log_format: str = "json",
    ) -> None:
        self._writer: Batches | None = None
        if target is None or isinstance(target, str | int):
            if target != "off":
                self._writer = LogWriter(target, max_waiting_bytes, turn or nullcontext(), log_format)
        else:
            self._writer = target
        self.exporter: LineExporter | None = None
        self.tap: Callable[[bytes, int], None] | None = None  # is given what is written, with the number of lines
        self._lines: list[str] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stamps: dict[int, str] = {}
        self._millisecond = -1  # of the last line, and how it is written
        self._moment = ""
        self._shared_parts: dict[_PartKey, str] = {}
        self._denials_second = -1
        self._denials = 0
        self._logged = PerClientQuota(max_denials_per_s, most_of(max_denials_per_s))  # of them, in this second
        self.suppressed = 0  # lines of a flood of denials that were not logged

    @property
    def dropped(self) -> int:
        return self._writer.dropped if self._writer else 0

    @property
    def written(self) -> int:
        return self._writer.written if self._writer else 0

    def record(self, exchange: Exchange) -> None:
        """Log a finished exchange. Never blocks."""
        if self._writer is None and self.exporter is None and self.tap is None:
            return
        state = exchange.state
        is_plain = exchange.reason is _OK and not exchange.would_deny and not exchange.detail
        if is_plain and (not state or LOGGED not in state):
            line = self._plain(exchange)
        elif exchange.denied and self._is_flood(exchange):
            return
        else:
            line = self._explained(exchange)
        if self.exporter is not None:
            self.exporter.put_line(line, exchange.trace)
            if self._writer is None and self.tap is None:
                return
        lines = self._lines
        if not lines:
            self._arm()
        lines.append(line)
        self._size += len(line)
        if self._size >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            chunk = "".join(self._lines).encode("utf-8", "backslashreplace")
            if self._writer is not None:
                self._writer.put(chunk, len(self._lines))
            if self.tap is not None:
                self.tap(chunk, len(self._lines))
            self._lines.clear()
            self._size = 0

    def reopen(self) -> None:
        """Open the path again when all lines so far are written (rotation by rename). Other targets stay open."""
        self.flush()
        if self._writer is not None:
            self._writer.reopen()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write all lines. Waits at most `timeout_s` for a slow reader."""
        self.flush()
        if self._writer is not None:
            self._writer.close(timeout_s)

    def _arm(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # without a loop there is no timer: the caller of `record` flushes
            return
        self._timer = loop.call_later(FLUSH_INTERVAL_S, self._flush_later)

    def _flush_later(self) -> None:
        self._timer = None
        self.flush()

    def _is_flood(self, exchange: Exchange) -> bool:
        second = int(exchange.ended_at)
        if second != self._denials_second:
            if self._denials > self._logged.total:
                logger.warning(
                    "access log: %d denials in one second, %d of them not logged; egress_denied_total counts them all",
                    self._denials,
                    self._denials - self._logged.total,
                )
            self._denials_second = second
            self._denials = 0
            self._logged = PerClientQuota(self._logged.limit, self._logged.share)
        self._denials += 1
        if self._logged.take(client_of(exchange)):
            return False
        self.suppressed += 1
        return True

    def _plain(self, exchange: Exchange) -> str:
        """The line of an exchange that ended well: its times, the part shared by many lines, and its own values. No
        format rules (`:.3f`): compiled code joins texts and numbers, and looks up anything else.
        """
        millisecond = int((exchange.started_wall or time.time()) * 1000)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            second = millisecond // 1000
            stamp = self._stamps.get(second) or self._stamp(second)
            self._moment = f'{{"time":"{stamp}{_THOUSANDTHS[millisecond % 1000]}Z",'
        key = (
            exchange.is_tunnel,
            exchange.gateway,
            exchange.listener,
            exchange.route,
            exchange.backend,
            exchange.identity.key,
            exchange.series,
        )
        shared = self._shared_parts.get(key) or self._shared_part(key, exchange.identity)
        method = _METHODS.get(exchange.method)
        authority = exchange.authority
        where = authority.text if authority is not None else "-"
        path = exchange.path.decode("latin-1")
        request_id = exchange.request_id or "-"
        microseconds = int((exchange.ended_at - exchange.started_at) * 1_000_000 + 0.5)
        upstream = exchange.upstream or "-"
        others = f"{exchange.client}{where}{path}{upstream}{request_id}"  # what is not ours
        rest = (
            f'"client":"{exchange.client}","method":"{method}","authority":"{where}","path":"{path}","status":{exchange.status},'
            f'"reason":"-","flags":"-","upstream":"{upstream}","bytes_in":{exchange.bytes_in},'
            f'"bytes_out":{exchange.bytes_out},"duration_ms":{microseconds // 1000}{_THOUSANDTHS[microseconds % 1000]},'
            f'"request_id":"{request_id}"}}\n'
        )
        if (
            '"' not in others
            and "\\" not in others
            and "?" not in path
            and path.isprintable()
            and method is not None
            and request_id.isprintable()
            and len(path) <= MAX_TEXT
        ):
            if exchange.grpc_status >= 0:
                rest = f'{rest[:-2]},"grpc_status":"{GRPC_NAMES[exchange.grpc_status]}"}}\n'
            trace: ExchangeTrace | None = exchange.trace
            if trace is not None:
                return f"{self._moment}{shared}{rest[:-2]},{trace.log_text}}}\n"
            return self._moment + shared + rest
        return self._explained(exchange)

    def _shared_part(self, key: _PartKey, identity: CallerIdentity) -> str:
        """The shared part of a line: names of the configuration, and the client's identity."""
        if len(self._shared_parts) >= MAX_SHARED_PARTS:
            self._shared_parts.clear()
        is_tunnel, *where, _, series = key
        keys = ("gateway", "listener", "route", "backend")
        kind = "tunnel" if is_tunnel else "request"
        fields = {"kind": kind, **dict(zip(keys, where, strict=True)), **_identity(identity), **_decision(series)}
        shared = self._shared_parts[key] = _dumps(fields)[1:-2] + ","
        return shared

    def _explained(self, exchange: Exchange) -> str:
        values = self._values(exchange)
        if exchange.grpc_status >= 0:
            values["grpc_status"] = GRPC_NAMES[exchange.grpc_status]
        trace: ExchangeTrace | None = exchange.trace
        if trace is not None:
            values |= json.loads(f"{{{trace.log_text}}}")
        values |= _decision(exchange.series)
        if exchange.rule != "-":
            values["rule"] = exchange.rule
        if exchange.detail:
            values["detail"] = exchange.detail[:MAX_TEXT]
        if exchange.attempts > 1:
            values["attempts"] = exchange.attempts
        trail = AttemptTrail.of(exchange)
        if trail is not None and (exchange.attempts > 1 or len(trail) > 1):  # some may have been passed over
            values["attempts_detail"] = trail.values
        logged = exchange.state.get(LOGGED)
        if logged is not None:
            values |= logged
        if exchange.would_deny:
            values["would_deny"] = [reason.value for reason in exchange.would_deny]
        return _dumps(values)

    def _values(self, exchange: Exchange) -> dict[str, Any]:
        """The keys have the order of `_plain`."""
        wall = exchange.started_wall or time.time()
        second = int(wall)
        return {
            "time": f"{self._stamp(second)}.{int((wall - second) * 1000):03}Z",
            "kind": exchange.kind,
            "gateway": exchange.gateway,
            "listener": exchange.listener,
            "route": exchange.route,
            "backend": exchange.backend,
            **_identity(exchange.identity),
            "client": exchange.client,
            "method": exchange.method.decode("latin-1")[:MAX_TEXT],
            "authority": "-" if exchange.authority is None else str(exchange.authority),
            "path": exchange.path.partition(b"?")[0].decode("latin-1")[:MAX_TEXT],
            "status": logged_status(exchange),
            "reason": exchange.reason.value,
            "flags": FLAGS.get(exchange.reason, "-"),
            "upstream": exchange.upstream or "-",
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
            "duration_ms": round((exchange.ended_at - exchange.started_at) * 1000, 3),
            "request_id": exchange.request_id or "-",
        }

    def _stamp(self, second: int) -> str:
        found = self._stamps.get(second)
        if found is None:
            if len(self._stamps) > 256:  # seconds in which long exchanges began
                self._stamps.clear()
            found = self._stamps[second] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return found


def _decision(series: Series | None) -> dict[str, str]:
    """The policy that allowed or denied, and its entry; nothing where a route decided."""
    policy, entry = decided_by(series)
    if (policy, entry) == ("-", "-"):
        return {}
    fields = {"policy": policy, "entry": entry}
    return fields if policy == "-" else {**fields, "rule": f"EgressPolicy {policy}"}


def _dumps(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def _identity(identity: CallerIdentity) -> dict[str, str]:
    """Who the client is, what has told it, and where it is the client of another gateway, of which one. Groups and
    claims stay out: they are for policies, and may be personal.
    """
    fields = {"namespace": identity.namespace, "service_account": identity.service_account}
    if identity is not ANONYMOUS:
        more = identity.origin_client, identity.origin_gateway, identity.name, identity.source
        fields |= {key: value for key, value in zip(_IDENTITY_KEYS, more, strict=True) if value != "-"}
    return fields
