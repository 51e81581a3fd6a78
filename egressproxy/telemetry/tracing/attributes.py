"""Attributes of spans, by OpenTelemetry's semantic conventions: HTTP (stable), and what is ours as `egressproxy.*`."""

from __future__ import annotations

from typing import Final

from egressproxy.errors import Reason
from egressproxy.model.grpc_status import GRPC_NAMES
from egressproxy.telemetry.tracing.span import AttemptFacts, ExchangeFacts

Attributes = dict[str, str | int]

#: The methods that have a name of their own; any other is _OTHER, since clients choose them.
_METHODS: Final = {
    name.encode(): name
    for name in ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY")
}
_NO_METHOD: Final = b"-"
_NO_REASON: Final = ("", "-")
#: Statuses of gRPC that are a server's fault: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE,
#: DATA_LOSS (conventions for gRPC).
GRPC_FAULTS: Final = frozenset((2, 4, 12, 13, 14, 15))
#: The reason of an attempt whose client has left. That of a hedged attempt which lost is told as CANCELLED.
CLIENT_GONE: Final = Reason.CLIENT_GONE.value
CANCELLED: Final = "cancelled"
#: Reasons of an answer that breaks off behind its head: an error, whatever its status.
BROKEN_OFF: Final = frozenset((
    Reason.UPSTREAM_RESET.value, Reason.UPSTREAM_CLOSED.value, Reason.UPSTREAM_INCOMPLETE.value,
    Reason.BAD_RESPONSE.value, Reason.RESPONSE_TIMEOUT.value, Reason.REQUEST_TIMEOUT.value,
))  # fmt: skip


def span_name(facts: ExchangeFacts | AttemptFacts) -> str:
    """The method, since a target is no name: there are too many of them."""
    if facts.method == _NO_METHOD:
        return "tunnel" if isinstance(facts, ExchangeFacts) and facts.is_tunnel else "HTTP"
    return _METHODS.get(facts.method, "HTTP")


def of_exchange(facts: ExchangeFacts) -> Attributes:
    """Those of a span of an exchange that many exchanges share."""
    found = _of_method(facts.method)
    if not facts.is_tunnel:
        found["url.scheme"] = facts.scheme.decode("latin-1")
    if facts.host:
        found["server.address"] = facts.host
        found["server.port"] = facts.port
    if facts.status:
        found["http.response.status_code"] = facts.status
    if facts.grpc_status >= 0:
        found["rpc.system.name"] = "grpc"
        found["rpc.response.status_code"] = GRPC_NAMES[facts.grpc_status]
    if facts.reason not in _NO_REASON:
        found["error.type"] = facts.reason
    elif facts.status >= 500:
        found["error.type"] = str(facts.status)
    elif facts.grpc_status in GRPC_FAULTS:
        found["error.type"] = GRPC_NAMES[facts.grpc_status]
    named = (
        ("gateway", facts.gateway), ("listener", facts.listener), ("route", facts.route), ("backend", facts.backend),
        ("client.namespace", facts.namespace), ("client.service_account", facts.service_account),
    )  # fmt: skip
    found |= {f"egressproxy.{name}": value for name, value in named if value not in _NO_REASON}
    return found


def of_attempt(facts: AttemptFacts) -> Attributes:
    """Those of a span of an attempt that many attempts share."""
    found = _of_method(facts.method)
    host, port = split_host(facts.host.decode("latin-1"), 443 if facts.is_secure else 80)
    if host:
        found["server.address"] = host
        found["server.port"] = port
    if facts.upstream:
        found["network.peer.address"], found["network.peer.port"] = split_host(facts.upstream, 0)
    if facts.status:
        found["http.response.status_code"] = facts.status
    if facts.reason:
        found["error.type"] = facts.reason
    elif facts.status >= 400:
        found["error.type"] = str(facts.status)
    if facts.resends:
        found["http.request.resend_count"] = facts.resends
    if facts.backend != "-":
        found["egressproxy.backend"] = facts.backend
    return found


def is_failed_exchange(facts: ExchangeFacts) -> bool:
    """Whether the span has the status Error: of a server's side, that takes a fault of ours or of the backend."""
    if facts.status == 0:
        return facts.reason not in _NO_REASON
    if facts.status >= 500 or facts.grpc_status in GRPC_FAULTS:
        return True
    return facts.reason in BROKEN_OFF and not facts.is_tunnel


def is_failed_attempt(facts: AttemptFacts) -> bool:
    """As `is_failed_exchange`, of a client's side."""
    return facts.status >= 400 or facts.reason not in ("", CANCELLED)


def split_host(text: str, default: int) -> tuple[str, int]:
    """The host, without brackets, and the port of `host`, `host:port` or `[address]:port`."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()):
        return text.strip("[]"), default
    return host.strip("[]"), int(port)


def _of_method(method: bytes) -> Attributes:
    if method == _NO_METHOD:
        return {}
    known = _METHODS.get(method)
    if known is not None:
        return {"http.request.method": known}
    return {"http.request.method": "_OTHER", "http.request.method_original": method.decode("latin-1")}
