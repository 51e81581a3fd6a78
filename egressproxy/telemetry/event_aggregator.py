"""EventAggregator: notices for operators, counted in each process until they are taken to the Events.

A flood is cheap: a repeated notice is found by values that its exchange holds already, and counted. The text is made
once for each notice from our own errors: names of objects, the destination, what to add. It never contains the words of
a user's filter, nor a request's path, fields or body.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Final, NamedTuple

from egressproxy.errors import GatewayError, Reason
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.telemetry.series import Series

#: How long notices are collected before they are taken.
NOTICES_S: Final = 1.0
#: events.k8s.io/v1 Event.note: 1 kB at most.
MAX_MESSAGE: Final = 1024
#: The most messages for one reason at one object, as in the correlator of client-go; further ones are counted together.
MAX_SIMILAR: Final = 10
#: The most places and reasons between two takes; further ones are only in the metrics.
MAX_GROUPS: Final = 1000
#: The most reasons of one filter: each is a label in metrics.
MAX_REASONS: Final = 20
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]{1,63}")

#: Upper bounds of the durations of filters, in seconds.
FILTER_BUCKETS_S: Final = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)

#: The remedy where the error has none.
REMEDIES: Final = {
    Reason.REQUEST_RATE: "raise the limit in limits.requests, or let the client wait as Retry-After says",
    Reason.TOKEN_RATE: "raise the limit in limits.tokens, or let the client wait as Retry-After says",
    Reason.BYTE_RATE: "raise the limit in limits.bytes, or let the client wait as Retry-After says",
    Reason.COST_LIMIT: "raise the limit in limits.cost, or let the client wait for the next day or month",
    Reason.CONCURRENCY: "raise the limit in limits.concurrency, or let the client wait as Retry-After says",
    Reason.BODY_TOO_LARGE: "raise maxBodyBytes or maxBufferedBytes of limits or of the filter, or forwardBody.maxSize",
    Reason.TUNNEL_LIMIT: "raise limits.tunnels",
    Reason.CONNECTION_LIMIT: "raise limits.connections or limits.connectionsPerClient, or find the client with many",
    Reason.QUEUE_FULL: "find the client with many requests at once, and check that the backend answers",
    Reason.QUEUE_TIMEOUT: "find the client that holds many connections, and check that the backend answers",
    Reason.CIRCUIT_OPEN: "raise the limit in traffic.circuitBreaker, and check that the backend answers",
    Reason.OVERLOADED: "see egress_requests_shed_total for why; raise --max-requests or --max-memory, or add replicas",
    Reason.CLIENT_CERTIFICATE: "give the client a certificate of an authority in spec.tls.frontend of the Gateway",
    Reason.INTERCEPTION_REFUSED: "give the client the CA (`egressproxy ca trust`), or take the host out of `intercept`",
    Reason.NOT_TLS: "let the client speak TLS from the first byte",
    Reason.SNI_MISMATCH: "let the client name the host that it connects to",
    Reason.METHOD_NOT_ALLOWED: "point the client at a listener that serves this method",
    Reason.LOOP_DETECTED: "check that no route or backend leads back to this gateway",
    Reason.REGION_DENIED: "add the region to `regions` of the policy, or use a backend that stands in one of those",
    Reason.MODEL_DENIED: "the message in the response names the model or the bound; see the filter's config",
    Reason.CONTENT_DENIED: "the message in the response names what was found, and where; see the filter's config",
    Reason.ACCESS_DENIED: "`egressproxy explain` names the rules; allow it in a rule of the policy",
    Reason.FILTER_REJECTED: "the filter's message is in the response to the client",
    Reason.INTERNAL: "the log has the error; please report it",
}


class EventType:
    """Event.type (events.k8s.io/v1)."""

    NORMAL: Final = "Normal"
    WARNING: Final = "Warning"


class InvolvedObject(NamedTuple):
    """An object: kind and name; `namespace` "" for a cluster-scoped kind. Where our group has the kind, that of another
    one has its group behind it: "Backend.gateway.networking.k8s.io".
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
        """Parse "Kind namespace/name", the form of a rule or source; None for "-" and other text."""
        kind, _, full_name = text.partition(" ")
        return cls.of(kind, full_name) if full_name else None

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(slots=True)
class Notice:
    """What happened at one object, and how often since the last take; times in seconds since the epoch. `is_combined`:
    `message` is one of several of this reason that are counted together.
    """

    severity: str
    reason: str  # one word, UpperCamelCase
    action: str  # Event.action: one word
    regarding: InvolvedObject
    related: InvolvedObject | None
    message: str
    is_combined: bool = False
    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    is_of_exchange: bool = False  # the access log has a line of it, too


class Refusal(NamedTuple):
    """A denial without an error; see GatewayError. Without `is_of_exchange` the access log has no line of it."""

    reason: Reason
    message: str
    rule: str = "-"
    remedy: str = ""
    is_quotable: bool = True
    is_of_exchange: bool = False


@dataclass(slots=True, eq=False)
class FilterStats:
    """Counters of one filter in one phase, read by the metrics collector.

    `source` is the object that declares it, "Kind namespace/name"; `notices` get every failure. `runs` counts
    calls that have ended, `answered` local responses, `rejected` refusals (Rejected, LimitExceeded, Denied …), `failed`
    failures and timeouts, `timed_out` the timeouts alone. No call is in one of the others and not yet in `runs`: the
    rest of `runs` has passed, and must not become fewer.
    """

    name: str
    type: str
    phase: str
    scope: str
    source: str
    notices: EventAggregator | None = None
    runs: int = 0
    rejected: int = 0
    answered: int = 0
    failed: int = 0
    timed_out: int = 0
    out_of_service: int = 0  # runs in which it was not called: see ErrorBudget
    sampled: int = 0  # `runs` when a sample of them was begun
    buckets: list[int] = field(default_factory=lambda: [0] * (len(FILTER_BUCKETS_S) + 1))  # of durations
    sum_s: float = 0.0

    def took(self, seconds: float) -> None:
        """Record the duration of a measured run."""
        self.buckets[bisect_left(FILTER_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def fail(self, how: str, *, is_open: bool, is_counted: bool = False) -> None:
        """Count a failure. `how` is one word; `is_open`: the exchange goes on without the filter; `is_counted`: of a
        run that is in `runs`.
        """
        if not is_counted:
            self.runs += 1
        self.failed += 1
        if self.notices is not None:
            self.notices.failed(self, how, is_open=is_open)


class EventAggregator:
    """The notices of one process since the last take. `wake` is called for the first one."""

    __slots__ = ("_groups", "_others", "wake")

    def __init__(self) -> None:
        self._groups: dict[tuple[object, str, str], dict[object, Notice]] = {}
        self._others: list[Notice] = []
        self.wake: Callable[[], None] = lambda: None

    def refused(
        self, series: Series, error: GatewayError | Refusal, route_kind: str = "", client: CallerIdentity = ANONYMOUS
    ) -> None:
        """An exchange was denied, or the gateway failed. `series` counts it, `route_kind` is "" without a route."""
        key = (series.labels[:3], error.reason.value, error.rule)  # not by the entry that allowed it
        message = error.message if error.is_quotable else ""
        who = (client.namespace, client.service_account, client.name)
        known_by = message if client is ANONYMOUS else (message, who)
        if not self._is_counted(key, known_by):
            self._begin(key, known_by, _refusal(series.labels, error, message, route_kind, client))

    def failed(self, filter_: FilterStats, how: str, *, is_open: bool) -> None:
        """A filter failed; `how`: a word of ours, or the error's type. `is_open`: the exchange went on without it."""
        key = (filter_, how, "open" if is_open else "")
        if not self._is_counted(key, "") and (source := InvolvedObject.read(filter_.source)) is not None:
            self._begin(key, "", _failure(source, filter_, how, is_open=is_open))

    def note_filter(self, source: str, name: str, reason: str, message: str, severity: str) -> None:
        """Record a filter's own notice; `source` is the declaring object, `name` its extension there."""
        regarding = InvolvedObject.read(source)
        key = (source, reason, name)
        if regarding is not None and not self._is_counted(key, message):
            text = f"filter {name}: {message}"
            self._begin(key, message, new_notice(reason, "RunFilter", regarding, text, severity=severity))

    def changed(
        self, action: str, regarding: InvolvedObject, reason: str, message: str, severity: str = EventType.WARNING
    ) -> None:
        """Record a change of an object's state; `action` and `reason` are one word each."""
        key = (regarding, reason, "")
        if not self._is_counted(key, message):
            self._begin(key, message, new_notice(reason, action, regarding, message, severity=severity))

    def add(self, notices: Iterable[Notice]) -> None:
        """Add the notices of another process."""
        was_empty = self.is_empty
        self._others += notices
        if was_empty and self._others:
            self.wake()

    def take(self) -> list[Notice]:
        groups, self._groups = self._groups, {}
        others, self._others = self._others, []
        return [*others, *(notice for group in groups.values() for notice in group.values())]

    @property
    def is_empty(self) -> bool:
        return not self._groups and not self._others

    def _is_counted(self, key: tuple[object, str, str], message: object) -> bool:
        """Count a known notice. Also true if there is no room for a new one."""
        group = self._groups.get(key)
        if group is None:
            return len(self._groups) >= MAX_GROUPS
        notice = group.get(message) or group.get(_ALL_OTHERS)
        if notice is None:
            return False
        notice.count += 1
        notice.last_s = time()
        return True

    def _begin(self, key: tuple[object, str, str], message: object, notice: Notice) -> None:
        was_empty = self.is_empty
        group = self._groups.setdefault(key, {})
        if len(group) >= MAX_SIMILAR:
            message = _ALL_OTHERS
            notice.is_combined = True
        group[message] = notice
        if was_empty:
            self.wake()


class FilterNotices:
    """The Events of one filter. Repeated ones are counted together."""

    __slots__ = ("_name", "_notices", "_reasons", "_source")

    def __init__(self, notices: EventAggregator, name: str, source: str) -> None:
        self._notices = notices
        self._name = name
        self._source = source
        self._reasons: set[str] = set()

    def warning(self, reason: str, message: str) -> None:
        """Report a problem for an operator. `reason` is one UpperCamelCase word, of a few for this filter; `message`
        names objects and numbers, never a secret or content of a request or response. Raises ValueError
        for a reason that is no such word, or the filter's twenty-first.
        """
        self._tell(reason, message, EventType.WARNING)

    def normal(self, reason: str, message: str) -> None:
        """Report a recovery. Arguments and errors as in `warning`."""
        self._tell(reason, message, EventType.NORMAL)

    def _tell(self, reason: str, message: str, severity: str) -> None:
        if reason not in self._reasons:
            if not _REASON.fullmatch(reason):
                raise ValueError(f"{reason!r} is no reason of an Event: one UpperCamelCase word is")
            if len(self._reasons) >= MAX_REASONS:
                raise ValueError(f"reason {reason}: a filter has {MAX_REASONS} reasons at most")
            self._reasons.add(reason)
        self._notices.note_filter(self._source, self._name, reason, message, severity)


#: The key of the notices that are counted together.
_ALL_OTHERS: Final = "\0"


def _refusal(
    labels: Sequence[str], error: GatewayError | Refusal, message: str, route_kind: str, client: CallerIdentity
) -> Notice:
    gateway, route = labels[0], labels[1]
    where = InvolvedObject.of("Gateway", gateway)
    rule = InvolvedObject.read(error.rule)
    is_own = not isinstance(error, Refusal) and error.has_own_remedy
    remedy = error.remedy if error.is_quotable and not is_own else ""
    remedy = remedy or REMEDIES.get(error.reason, "")
    if not message:
        message = f"{rule or 'a filter'} refused a request ({error.reason.value})"
    if client is not ANONYMOUS:
        message = f"{message} (client {_name(client)})"
    regarding = where
    if route != "-" and route_kind:
        regarding = InvolvedObject.of(route_kind, route)
        rule = where if rule in (None, regarding) else rule  # an object is not related to itself
    notice = new_notice(event_reason(error.reason), "Deny", regarding, _sentence(message, remedy), related=rule)
    notice.is_of_exchange = not isinstance(error, Refusal) or error.is_of_exchange
    return notice


def _failure(source: InvolvedObject, filter_: FilterStats, how: str, *, is_open: bool) -> Notice:
    outcome = "exchanges go on without it (failOpen)" if is_open else "exchanges are refused (502)"
    message = f"filter {filter_.name} ({filter_.type}) failed in phase {filter_.phase}: {how}; {outcome}"
    remedy = "the access log has its file and line" if not is_open else ""
    return new_notice(event_reason(Reason.FILTER_FAILED), "RunFilter", source, _sentence(message, remedy))


def new_notice(
    reason: str, action: str, regarding: InvolvedObject, message: str, *, related: InvolvedObject | None = None,
    severity: str = EventType.WARNING,
) -> Notice:  # fmt: skip
    """A notice of something that happened once, now."""
    now = time()
    return Notice(severity, reason, action, regarding, related, message[:MAX_MESSAGE], False, 1, now, now)


def _name(client: CallerIdentity) -> str:
    """Namespace and service account, or the name of who has none."""
    return f"{client.namespace}/{client.service_account}" if client.service_account != "-" else client.name


def _sentence(message: str, remedy: str) -> str:
    return message if remedy in message else f"{message}: {remedy}"  # some messages end with theirs


def event_reason(reason: Reason) -> str:
    """The word of metrics and logs in Event.reason's form: `sni_mismatch` is SniMismatch."""
    return "".join(part.capitalize() for part in reason.value.split("_"))
