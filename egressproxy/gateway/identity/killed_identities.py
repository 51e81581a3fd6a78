"""KilledIdentities: the clients that an operator has put out of service through the admin API; workers enforce it.
A service account is one client, as a certificate names it (spiffe://…/ns/NS/sa/NAME, in any trust domain) and as
Kubernetes does (system:serviceaccount:NS:NAME): killed in one form, it is so in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.model.admin_requests import read_parameters
from egressproxy.model.caller_identity import CallerIdentity

#: The most killed identities, and the most bytes of a name and of a reason.
MAX_KILLED: Final = 10_000
MAX_NAME_BYTES: Final = 2048
MAX_WHY_BYTES: Final = 512
_ACCOUNT: Final = re.compile(
    r"(?:spiffe://[^/]+/ns/(?P<a>[^/]+)/sa/(?P<b>[^/]+)|system:serviceaccount:(?P<c>[^:/]+):(?P<d>[^:/]+))"
)
_PARAMETERS: Final = ("kill", "restore", "why")


class NotKilled(LookupError):
    """The identity to restore is not killed."""


@dataclass(frozen=True, slots=True)
class KilledIdentity:
    """`name` is that of CallerIdentity, `why` the operator's reason, `since` in seconds since 1970."""

    name: str
    why: str = ""
    since: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError, a sentence, for an invalid name, or text that cannot be printed."""
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

    def killed(self) -> KilledIdentities:
        """KilledIdentities with the identity of this change alone."""
        return KilledIdentities((KilledIdentity(self.name),) if self.kills else ())


class KilledIdentities:
    """The killed identities after `revision` changes; false if empty. A service account has one entry, the latest."""

    __slots__ = ("_accounts", "_by_name", "revision")

    def __init__(self, every: Iterable[KilledIdentity] = (), revision: int = 0) -> None:
        self.revision = revision
        self._by_name: dict[str, KilledIdentity] = {}
        self._accounts: dict[tuple[str, str], str] = {}
        for each in every:
            self._forget(each.name)
            self._add(each)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def every(self) -> tuple[KilledIdentity, ...]:
        """The killed identities, oldest first."""
        return tuple(self._by_name.values())

    def has(self, identity: CallerIdentity) -> bool:
        """Whether this client is killed."""
        namespace = identity.namespace.partition("@")[0]  # in any trust domain
        return identity.name in self._by_name or (namespace, identity.service_account) in self._accounts

    def refuse(self, identity: CallerIdentity) -> None:
        """Raises Denied (403) where this client is killed."""
        if self.has(identity):
            raise Denied(
                Reason.IDENTITY_KILLED,
                f"an operator has put the identity {identity.name} out of service",
                remedy="ask the operator, who sees why with `egressproxy kill-switch list` and ends it with `restore`",
            )

    def changed(self, change: KillChange, now: float = 0.0) -> KilledIdentities:
        """The next revision, with this change made at `now` (seconds since 1970). Raises ValueError beyond MAX_KILLED,
        and NotKilled if the identity to restore is not killed.
        """
        made = KilledIdentities(revision=self.revision + 1)
        made._by_name, made._accounts = self._by_name.copy(), self._accounts.copy()
        was_killed = made._forget(change.name)
        if not change.kills:
            if not was_killed:
                raise NotKilled(f"nobody is out of service under the name {change.name}: nothing is restored")
            return made
        if len(made) >= MAX_KILLED:
            raise ValueError(f"{MAX_KILLED} identities are killed already: restore some, or deny them in a policy")
        made._add(KilledIdentity(change.name, change.why, now))
        return made

    def _add(self, killed: KilledIdentity) -> None:
        self._by_name[killed.name] = killed
        account = _account(killed.name)
        if account is not None:
            self._accounts[account] = killed.name

    def _forget(self, name: str) -> bool:
        """Remove the name in each of its forms; returns whether an entry existed."""
        account = _account(name)
        form = name if account is None else self._accounts.pop(account, name)
        return self._by_name.pop(form, None) is not None


def _account(name: str) -> tuple[str, str] | None:
    """Namespace and name of the service account with this identity name; None for another name."""
    found = _ACCOUNT.fullmatch(name)
    return None if found is None else (found["a"] or found["c"], found["b"] or found["d"])
