"""KilledIdentities: the clients that an operator has put out of service. Values, which the admin API reads and workers
carry out.

A service account is the same client in each form that names it: as a certificate says it (spiffe://…/ns/NS/sa/NAME, in
any trust domain) and as Kubernetes does (system:serviceaccount:NS:NAME). One that is killed in one form is in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.model.exchange import CallerIdentity
from egressproxy.model.parameters import read_parameters

__all__ = ["MAX_KILLED", "KillChange", "KilledIdentities", "KilledIdentity", "NotKilled"]

#: Identities that may be killed at one time, and the bytes of one's name and of what is said of it.
MAX_KILLED: Final = 10_000
MAX_NAME_BYTES: Final = 2048
MAX_WHY_BYTES: Final = 512
_ACCOUNT: Final = re.compile(
    r"(?:spiffe://[^/]+/ns/(?P<a>[^/]+)/sa/(?P<b>[^/]+)|system:serviceaccount:(?P<c>[^:/]+):(?P<d>[^:/]+))"
)
_PARAMETERS: Final = ("kill", "restore", "why")


class NotKilled(LookupError):
    """Somebody is to be restored who is not out of service."""


@dataclass(frozen=True, slots=True)
class KilledIdentity:
    """`name` is that of CallerIdentity, `why` what the operator says, `since` in seconds since 1970."""

    name: str
    why: str = ""
    since: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError, a sentence, for what is no name of an identity, or cannot be shown."""
        if not self.name or self.name == "-":
            raise ValueError("the identity has no name; the access log has those of clients as identity")
        if len(self.name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise ValueError(f"the name of the identity is longer than {MAX_NAME_BYTES} bytes")
        if len(self.why.encode("utf-8", "replace")) > MAX_WHY_BYTES:
            raise ValueError(f"why is longer than {MAX_WHY_BYTES} bytes")
        if not (self.name + self.why).isprintable():
            raise ValueError("the name of the identity, or why, has a character that cannot be printed")


@dataclass(frozen=True, slots=True)
class KillChange:
    """Kill this identity, or restore it (`kills` False)."""

    name: str
    kills: bool
    why: str = ""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> KillChange:
        """The parameters of a request: `kill` (with `why`) or `restore`. Raises ValueError, a sentence."""
        found = read_parameters(pairs, _PARAMETERS)
        if ("kill" in found) == ("restore" in found):
            raise ValueError("say which identity: kill=NAME or restore=NAME, one of both")
        asked = KilledIdentity(found.get("kill", found.get("restore", "")), found.get("why", ""))
        return cls(asked.name, "kill" in found, asked.why)


class KilledIdentities:
    """Those that are killed at this moment; false where nobody is."""

    __slots__ = ("_accounts", "_names", "every")

    def __init__(self, every: tuple[KilledIdentity, ...] = ()) -> None:
        self.every = every
        self._names = frozenset(each.name for each in every)
        self._accounts = frozenset(account for each in every if (account := _account(each.name)) is not None)

    def __bool__(self) -> bool:
        return bool(self.every)

    def has(self, identity: CallerIdentity) -> bool:
        """Whether this client is killed."""
        return identity.name in self._names or (identity.namespace, identity.service_account) in self._accounts

    def refuse(self, identity: CallerIdentity) -> None:
        """Raises Denied (403) where this client is killed."""
        if self.has(identity):
            raise Denied(
                Reason.IDENTITY_KILLED,
                f"an operator has put the identity {identity.name} out of service",
                remedy="ask the operator, who sees why with `egressproxy kill-switch list` and ends it with `restore`",
            )

    def changed(self, change: KillChange, now: float) -> KilledIdentities:
        """With this change, made `now` (seconds since 1970). Raises ValueError where there are MAX_KILLED already, and
        NotKilled where nobody is to be restored.
        """
        account = _account(change.name)
        kept = tuple(
            each
            for each in self.every
            if each.name != change.name and (account is None or _account(each.name) != account)
        )
        if not change.kills:
            if len(kept) == len(self.every):
                raise NotKilled(f"nobody is out of service under the name {change.name}: nothing is restored")
            return KilledIdentities(kept)
        if len(kept) >= MAX_KILLED:
            raise ValueError(f"{MAX_KILLED} identities are killed already: restore some, or deny them in a policy")
        return KilledIdentities((*kept, KilledIdentity(change.name, change.why, now)))

    def __repr__(self) -> str:
        return f"KilledIdentities({len(self.every)})"


def _account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that is named so; None for another name."""
    found = _ACCOUNT.fullmatch(name)
    return None if found is None else (found["a"] or found["c"], found["b"] or found["d"])
