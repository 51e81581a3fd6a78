"""Recent decisions: as little of each as is needed to decide it again. Bounded; without queries, fields and bodies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from egressproxy.errors import Reason
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.gateway.subject_overrides import Matched
from egressproxy.model.authority import Authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import StateSlot
from egressproxy.telemetry.series import Series

#: Decisions that are kept in each process.
KEPT: Final = 1024
#: Of a path: the rest could fill memory.
MAX_PATH: Final = 1024

_Entry = tuple[float, bytes, bytes, Authority | None, bytes, str, str, CallerIdentity, Reason, str]
#: What Accounting keeps: when (wall clock), method, scheme, authority, path, gateway, listener, identity, how it ended,
#: and the request id.
Remembered = deque[_Entry]
#: What a denied client was told: message and remedy, "" where they quote the request.
REFUSAL: Final[StateSlot[tuple[str, str]]] = StateSlot("refusal")
#: What Accounting keeps of denials alone, so that other traffic does not drive them out: the entry above, the client's
#: address and port, the rule, the series, REFUSAL.
Denials = deque[tuple[_Entry, str, str, Series, tuple[str, str] | None]]


class RecentDecision(NamedTuple):
    """`time` is in seconds since 1970; `method` "-" is a stream on a TLS or TCP listener; `reason` "-" is a good end.
    Of the client: its `name`, the `policies` with subjects that hold for it now, and those of its `groups` and `claims`
    that such policies ask for. What else its token said is not told.
    """

    method: str
    scheme: str
    authority: str
    path: str
    gateway: str
    listener: str
    namespace: str
    service_account: str
    reason: str
    time: float = 0.0
    name: str = "-"
    policies: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    request_id: str = ""

    @classmethod
    def of_admin(cls, values: Mapping[str, Any]) -> RecentDecision:
        """From what /decisions tells: lists stand for tuples there. Raises TypeError."""
        fields = dict(values)
        for key in ("policies", "groups"):
            fields[key] = tuple(fields.get(key, ()))
        fields["claims"] = tuple((name, value) for name, value in fields.get("claims", ()))
        return cls(**fields)

    @classmethod
    def of_log(cls, line: Mapping[str, Any], scheme: str) -> RecentDecision:
        """From a line of the access log, which leaves the scheme out. Raises KeyError."""
        keys = ("authority", "path", "gateway", "listener", "namespace", "service_account", "reason")
        authority, path, gateway, listener, namespace, account, reason = (str(line[key]) for key in keys)
        return cls(str(line["method"]), scheme, authority, path, gateway, listener, namespace, account, reason)

    @property
    def is_cut(self) -> bool:
        """Whether the path was longer than what is kept of it."""
        return len(self.path) >= MAX_PATH


#: By gateway and listener: what subjects of its policies ask for of a client.
Subjects = Mapping[tuple[str, str], Callable[[CallerIdentity], Matched]]


def subjects_of(snapshot: Snapshot | None) -> Subjects:
    """Those of each listener that has policies with subjects."""
    listeners = [each for port in snapshot.ports.values() for each in port.listeners] if snapshot is not None else []
    return {(each.gateway, each.name): each.variants.matched for each in listeners if each.variants is not None}


def decisions(remembered: Iterable[_Entry], subjects: Subjects) -> Iterator[RecentDecision]:
    """What was remembered (a copy of it: it goes on), the latest first."""
    nobody = Matched()
    for time, method, scheme, authority, path, gateway, listener, identity, reason, known_by in reversed(
        tuple(remembered)
    ):
        asked = subjects.get((gateway, listener))
        yield RecentDecision(
            method.decode("latin-1"), scheme.decode(), str(authority) if authority is not None else "-",
            path.decode("latin-1"), gateway, listener, identity.namespace, identity.service_account, reason.value, time,
            identity.name, *(nobody if asked is None else asked(identity)), known_by,
        )  # fmt: skip
