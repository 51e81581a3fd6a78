"""Recent decisions: as little of each as is needed to decide it again. Bounded; without queries, fields and bodies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from egressproxy.errors import Reason
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import CallerIdentity

__all__ = ["KEPT", "PATH", "RecentDecision", "Remembered", "decisions"]

#: Decisions that are kept in each process.
KEPT: Final = 1024
#: Of a path: the rest could fill memory.
PATH: Final = slice(1024)

_Entry = tuple[float, bytes, bytes, Authority | None, bytes, str, str, CallerIdentity, Reason]
#: What `Conductor.account` keeps: when (wall clock), method, scheme, authority, path, gateway, listener, identity, how
#: it ended.
Remembered = deque[_Entry]


class RecentDecision(NamedTuple):
    """One of them. `time` is in seconds since 1970; `method` "-" is a stream on a TLS or TCP listener; `reason` "-" is
    a good end.
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

    @classmethod
    def of_log(cls, line: Mapping[str, Any], scheme: str) -> RecentDecision:
        """From a line of the access log, which leaves the scheme out. Raises KeyError."""
        keys = ("authority", "path", "gateway", "listener", "namespace", "service_account", "reason")
        authority, path, gateway, listener, namespace, account, reason = (str(line[key]) for key in keys)
        return cls(str(line["method"]), scheme, authority, path, gateway, listener, namespace, account, reason)

    @property
    def is_cut(self) -> bool:
        """Whether the path was longer than what is kept of it."""
        return len(self.path) >= PATH.stop


def decisions(remembered: Iterable[_Entry]) -> Iterator[RecentDecision]:
    """What was remembered (a copy of it: it goes on), the latest first."""
    for time, method, scheme, authority, path, gateway, listener, identity, reason in reversed(tuple(remembered)):
        yield RecentDecision(
            method.decode("latin-1"), scheme.decode(), str(authority) if authority is not None else "-",
            path.decode("latin-1"), gateway, listener, identity.namespace, identity.service_account, reason.value, time,
        )  # fmt: skip
