"""Notices: what an operator should hear of, counted where it happens, until somebody takes it to the Events.

A flood costs next to nothing: what is told again is found by what its exchange holds already, and counted. Text is made
once for each notice, of what our own errors say: names of objects, the destination, what to add. What a filter of
others says, and a request's path, fields or body, are never in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import time
from typing import Final, NamedTuple, Protocol

from egressproxy.errors import GatewayError, Reason

__all__ = [
    "MAX_MESSAGE",
    "MAX_SIMILAR",
    "NOTICES_S",
    "EventType",
    "InvolvedObject",
    "Notice",
    "Notices",
    "Refusal",
    "event_reason",
    "new_notice",
]

#: How long notices are collected before they are taken: a flood is told of once in that time.
NOTICES_S: Final = 1.0
#: events.k8s.io/v1 Event.note: 1 kB at most.
MAX_MESSAGE: Final = 1024
#: Messages that are told apart for one reason at one object, as in the correlator of client-go; then they are counted
#: together.
MAX_SIMILAR: Final = 10
#: Places and reasons that are told apart until the notices are taken; what is beyond is in the metrics alone.
MAX_GROUPS: Final = 1000

#: What to do where the error does not say.
REMEDIES: Final = {
    Reason.REQUEST_RATE: "raise the limit in limits.requests, or let the client wait as Retry-After says",
    Reason.CONCURRENCY: "raise the limit in limits.concurrency, or let the client wait as Retry-After says",
    Reason.BODY_TOO_LARGE: "raise limits.maxBodyBytes, or the filter's maxBufferBytes",
    Reason.TUNNEL_LIMIT: "raise limits.tunnels",
    Reason.CONNECTION_LIMIT: "raise limits.connections or limits.connectionsPerClient, or see who opens so many",
    Reason.QUEUE_FULL: "see who asks for so much at one time, and whether the backend answers",
    Reason.QUEUE_TIMEOUT: "see who holds so many connections of the backend, and whether it answers",
    Reason.CLIENT_CERTIFICATE: "give the client one by an authority of spec.tls.frontend of the Gateway",
    Reason.NOT_TLS: "let the client speak TLS from the first byte",
    Reason.SNI_MISMATCH: "let the client name the host that it connects to",
    Reason.METHOD_NOT_ALLOWED: "point the client at a listener that serves this method",
    Reason.LOOP_DETECTED: "see that no route or backend leads back to this gateway",
    Reason.FILTER_REJECTED: "what the filter said is in the answer that the client got",
    Reason.INTERNAL: "the log has the error: please report it",
}


class EventType:
    """Event.type."""

    NORMAL: Final = "Normal"
    WARNING: Final = "Warning"


class InvolvedObject(NamedTuple):
    """An object: its kind and name. `namespace` is "" for a cluster-scoped kind.

    The kind of one that is not of our group, where ours has the kind, too, has its group behind it:
    "Backend.gateway.networking.k8s.io".
    """

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, kind: str, full_name: str) -> InvolvedObject:
        """`full_name` is "namespace/name"."""
        namespace, _, name = full_name.rpartition("/")
        return cls(kind, namespace, name)

    @classmethod
    def read(cls, text: str) -> InvolvedObject | None:
        """Of "Kind namespace/name", the form of a rule or source; None for "-" and the like."""
        kind, _, full_name = text.partition(" ")
        return cls.of(kind, full_name) if full_name else None

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(slots=True)
class Notice:
    """One thing that happened at one object, so and so often since the notices were taken. Times are seconds since the
    epoch. `is_combined`: there were others of this reason at this object, and `message` is one of them.
    """

    severity: str
    reason: str  # one word, UpperCamelCase
    action: str  # what was done about it, one word
    regarding: InvolvedObject
    related: InvolvedObject | None
    message: str
    is_combined: bool = False
    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


class Refusal(NamedTuple):
    """What is refused without an error; see GatewayError."""

    reason: Reason
    message: str
    rule: str = "-"
    remedy: str = ""
    is_quotable: bool = True


class CountedAt(Protocol):
    """The part of `metrics.Series` that says where something happened: gateway, route, backend, …"""

    @property
    def labels(self) -> tuple[str, str, str, str, str, str, str]: ...


class FailingFilter(Protocol):
    """The part of a filter's counters that says which one it is; `source` is "Kind namespace/name"."""

    name: str
    type: str
    phase: str
    source: str


class Notices:
    """Those of one process, since they were taken. `wake` is called when there are some again."""

    __slots__ = ("_groups", "_others", "wake")

    def __init__(self) -> None:
        self._groups: dict[tuple[object, str, str], dict[str, Notice]] = {}
        self._others: list[Notice] = []
        self.wake: Callable[[], None] = _nobody

    def refused(self, series: CountedAt, error: GatewayError | Refusal, route_kind: str = "") -> None:
        """Policy, a limit or a filter refused an exchange, or it met a fault of ours.

        `series` is where the exchange is counted, `route_kind` the kind of its route, "" where it has none.
        """
        key = (series.labels[:3], error.reason.value, error.rule)  # whatever the entry that has let it pass
        message = error.message if error.is_quotable else ""
        if not self._is_counted(key, message):
            self._begin(key, message, _refusal(series.labels, error, message, route_kind))

    def failed(self, filter_: FailingFilter, how: str, *, is_open: bool) -> None:
        """A filter failed: `how`, in a word of ours or the type of its error. `is_open`: the exchange went on without
        it.
        """
        key = (filter_, how, "open" if is_open else "")
        if not self._is_counted(key, "") and (source := InvolvedObject.read(filter_.source)) is not None:
            self._begin(key, "", _failure(source, filter_, how, is_open=is_open))

    def add(self, notices: Iterable[Notice]) -> None:
        """Those of another process."""
        was_empty = self.is_empty
        self._others += notices
        if was_empty and self._others:
            self.wake()

    def take(self) -> list[Notice]:
        """What there is; from now on it is counted anew."""
        groups, self._groups = self._groups, {}
        others, self._others = self._others, []
        return [*others, *(notice for group in groups.values() for notice in group.values())]

    @property
    def is_empty(self) -> bool:
        return not self._groups and not self._others

    def _is_counted(self, key: tuple[object, str, str], message: str) -> bool:
        """Count it where it is known; also true where there is no room for another."""
        group = self._groups.get(key)
        if group is None:
            return len(self._groups) >= MAX_GROUPS
        notice = group.get(message) or group.get(_ALL_OTHERS)
        if notice is None:
            return False
        notice.count += 1
        notice.last_s = time()
        return True

    def _begin(self, key: tuple[object, str, str], message: str, notice: Notice) -> None:
        was_empty = self.is_empty
        group = self._groups.setdefault(key, {})
        if len(group) >= MAX_SIMILAR:
            message = _ALL_OTHERS
            notice.is_combined = True
        group[message] = notice
        if was_empty:
            self.wake()

    def __repr__(self) -> str:
        return f"Notices({len(self._groups)} kinds, {len(self._others)} of others)"


#: Where the notices of a group are counted that would be one too many.
_ALL_OTHERS: Final = "\0"


def _nobody() -> None:
    """Nobody waits for notices."""


def _refusal(labels: Sequence[str], error: GatewayError | Refusal, message: str, route_kind: str) -> Notice:
    gateway, route = labels[0], labels[1]
    where = InvolvedObject.of("Gateway", gateway)
    rule = InvolvedObject.read(error.rule)
    remedy = error.remedy if error.is_quotable else ""
    remedy = remedy or REMEDIES.get(error.reason, "")
    if not message:
        message = f"{rule or 'a filter'} refused a request ({error.reason.value})"
    regarding = where
    if route != "-" and route_kind:
        regarding = InvolvedObject.of(route_kind, route)
        rule = where if rule in (None, regarding) else rule  # an object is not related to itself
    return new_notice(event_reason(error.reason), "Deny", regarding, _sentence(message, remedy), related=rule)


def _failure(source: InvolvedObject, filter_: FailingFilter, how: str, *, is_open: bool) -> Notice:
    outcome = "what it was to see goes on without it (failOpen)" if is_open else "what it was to see is refused (502)"
    message = f"filter {filter_.name} ({filter_.type}) failed in phase {filter_.phase}: {how}; {outcome}"
    remedy = "the access log has the place in its file" if not is_open else ""
    return new_notice(event_reason(Reason.FILTER_FAILED), "RunFilter", source, _sentence(message, remedy))


def new_notice(
    reason: str, action: str, regarding: InvolvedObject, message: str, *, related: InvolvedObject | None = None,
    severity: str = EventType.WARNING,
) -> Notice:  # fmt: skip
    """Something that happened just now, once."""
    now = time()
    return Notice(severity, reason, action, regarding, related, message[:MAX_MESSAGE], False, 1, now, now)


def _sentence(message: str, remedy: str) -> str:
    return f"{message}: {remedy}" if remedy else message


def event_reason(reason: Reason) -> str:
    """The word of metrics and logs in Event.reason's form: `sni_mismatch` is SniMismatch."""
    return "".join(part.capitalize() for part in reason.value.split("_"))
