"""The sets of policies with `subjects` that may apply to one client. Each set is a variant of a listener.

A client has one namespace and one service account, so subjects with these exclude each other. Groups and claims do not,
and each doubles the number of sets, so there is a limit. A namespace of `foreign_policy` has a separate limit, so that
no team can use up the others' sets. `SubjectNotes` are sentences of status that apply only to clients of such policies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.resources.policy import EgressPolicy, Subject
from egressproxy.ir.gateway import ListenerIR
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import namespace_in
from egressproxy.model.published_object import Key

#: The most variants of one listener from groups and claims.
MAX_COMBINED = 256
#: The policies of clients that match no subjects.
NOBODY: frozenset[Key] = frozenset()
_Conditions = frozenset[tuple[str, ...]]
#: A namespace and a service account; "" for any.
_Place = tuple[str, str]
#: Sets of policies, and subjects of one policy, that a sentence names.
MAX_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ClientSets:
    """`sets` has the policies of each non-empty set. `at_most` is the most subjects with groups or claims that may
    match one client; a client with more is refused. None: no limit.
    """

    sets: tuple[frozenset[Key], ...]
    at_most: int | None


class SubjectNotes:
    """Collects sentences with their clients, and writes each once."""

    __slots__ = ("_notes", "_reported")

    def __init__(self) -> None:
        self._notes: dict[tuple[Conditions, str, str, str], dict[frozenset[Key], None]] = {}
        self._reported: set[tuple[Conditions, str]] = set()

    def report(self, conditions: Conditions, kind: str, reason: str, sentence: str) -> None:
        """Add a sentence about all clients to the conditions."""
        self._reported.add((conditions, sentence))
        conditions.report(kind, reason, sentence)

    def add(self, conditions: Conditions, kind: str, reason: str, sentence: str, holding: frozenset[Key]) -> None:
        """Collect a sentence about clients with these policies."""
        if (conditions, sentence) not in self._reported:
            self._notes.setdefault((conditions, kind, reason, sentence), {})[holding] = None

    def write(self, policies: Iterable[EgressPolicy]) -> None:
        """Write the collected sentences, after the compilation of all variants. `policies` are all policies."""
        known = {policy.key: policy for policy in policies} if self._notes else {}
        for (conditions, kind, reason, sentence), sets in self._notes.items():
            shown = [
                f"the subjects of {' and of '.join(_policy_text(known[key]) for key in sorted(each))}"
                for each in list(sets)[:MAX_SHOWN]
            ]
            more = f"; and for those of {len(sets) - MAX_SHOWN} other policies" if len(sets) > MAX_SHOWN else ""
            conditions.report(kind, reason, f"For {'; for '.join(shown)}{more}: {sentence}")


def subject_ir(subject: Subject, own_domain: str) -> SubjectIR:
    """One entry of `subjects`, for the data plane. `own_domain` is the listener's own trust domain."""
    claim = (subject.claim.name, subject.claim.value) if subject.claim is not None else None
    namespace, account = _account_of(subject, own_domain)
    return SubjectIR(namespace, account, subject.group or "", claim)


def claims_of(policies: Iterable[EgressPolicy]) -> tuple[str, ...]:
    """The names of the claims in subjects of these policies."""
    subjects = (subject for policy in policies for subject in policy.spec.subjects)
    return tuple(sorted({subject.claim.name for subject in subjects if subject.claim is not None}))


def closed_to_clients(listener: ListenerIR, variant: ListenerIR) -> Iterator[str]:
    """The errors of this variant of a listener that the listener itself does not have, as sentences."""
    known = set(_closed(listener))
    for route, backend in dict.fromkeys(each for each in _closed(variant) if each not in known):
        what = f"some requests of {route}" if route else "destinations that no route matches"
        yield f"listener {listener.name} answers {what} with an error: {backend}."


def has_conditions(subject: Subject) -> bool:
    return subject.group is not None or subject.claim is not None


def client_sets(policies: Iterable[EgressPolicy], own_domain: str, foreign: Container[Key] = NOBODY) -> ClientSets:
    """The sets of these policies that may apply to one client, up to MAX_COMBINED. `own_domain`: the listener's trust
    domain. `foreign` are the policies in another namespace than their target.
    """
    by_account: dict[_Place, list[tuple[Key, _Conditions]]] = defaultdict(list)
    owned = {""}
    for policy in policies:
        for subject in policy.spec.subjects:
            account = _account_of(subject, own_domain)
            by_account[account].append((policy.key, _conditions(subject)))
            if policy.key not in foreign:
                owned.add(account[0])
    accounts = dict.fromkeys((("", ""), *((namespace, "") for namespace, _ in by_account), *by_account))
    held = {account: tuple(_held_at(account, by_account)) for account in accounts}
    sets = dict.fromkeys(_set(entries, frozenset()) for entries in held.values())
    own = {account: entries for account, entries in held.items() if account[0] in owned}
    bounds = [
        _combine(own, sets),
        *(_combine({account: held[account]}, sets) for account in held if account not in own),
    ]
    return ClientSets(tuple(filter(None, sets)), min((each for each in bounds if each is not None), default=None))


def _combine(held: Mapping[_Place, Sequence[tuple[Key, _Conditions]]], sets: dict[frozenset[Key], None]) -> int | None:
    """Add the combinations of groups and claims at these places to `sets`, up to the limit. Returns `at_most` of
    ClientSets.
    """
    at_most, unions = 0, {account: {_Conditions()} for account in held}
    while True:
        more = {account: _one_more(unions[account], entries) for account, entries in held.items()}
        if more == unions:
            return None
        if sum(map(len, more.values())) - len(held) > MAX_COMBINED:
            return at_most
        at_most, unions = at_most + 1, more
        sets |= dict.fromkeys(_set(entries, each) for account, entries in held.items() for each in unions[account])


def _account_of(subject: Subject, own_domain: str) -> tuple[str, str]:
    """The namespace, as in CallerIdentity, and the service account; "" for absent ones."""
    namespace = namespace_in(subject.trust_domain or "", subject.namespace or "", own_domain)
    return namespace, subject.service_account or ""


def _closed(listener: ListenerIR) -> Iterator[tuple[str, str]]:
    """The errors of unusable backends: kind and name of the route, "" for none, and the error."""
    if listener.default_backend is not None and listener.default_backend.backend is None:
        yield "", listener.default_backend.error
    routes = ((f"{each.kind} {each.name}", rule.backends) for each in listener.http_routes for rule in each.rules)
    streams = ((f"{each.kind} {each.name}", each.backends) for each in (*listener.tls_routes, *listener.tcp_routes))
    for route, backends in chain(routes, streams):
        yield from ((route, each.error) for each in backends if each.backend is None)


def _conditions(subject: Subject) -> _Conditions:
    found = [("group", subject.group)] if subject.group is not None else []
    claims = [("claim", subject.claim.name, subject.claim.value)] if subject.claim is not None else []
    return frozenset((*found, *claims))


def _held_at(
    account: tuple[str, str], by_account: Mapping[tuple[str, str], Sequence[tuple[Key, _Conditions]]]
) -> Iterator[tuple[Key, _Conditions]]:
    """The policies that may apply to clients of a place: without namespace, of the namespace, and of the account."""
    for wider in dict.fromkeys((("", ""), (account[0], ""), account)):
        yield from by_account.get(wider, ())


def _one_more(unions: Collection[_Conditions], entries: Sequence[tuple[Key, _Conditions]]) -> set[_Conditions]:
    """The combinations after adding one more matching entry."""
    conditional = dict.fromkeys(conditions for _, conditions in entries if conditions)
    made = set(unions)
    for each in conditional:
        made.update(union | each for union in unions)
        if len(made) > 2 * MAX_COMBINED:
            break  # above the limit
    return made


def _set(entries: Iterable[tuple[Key, _Conditions]], has: _Conditions) -> frozenset[Key]:
    return frozenset(key for key, conditions in entries if conditions <= has)


def _policy_text(policy: EgressPolicy) -> str:
    subjects = policy.spec.subjects or (Subject(namespace=policy.namespace),)  # on a target of another namespace
    more = f" and {len(subjects) - MAX_SHOWN} more" if len(subjects) > MAX_SHOWN else ""
    return f"{policy} ({'; '.join(map(_subject_text, subjects[:MAX_SHOWN]))}{more})"


def _subject_text(subject: Subject) -> str:
    parts = (
        ("namespace", subject.namespace),
        ("trust domain", subject.trust_domain),
        ("service account", subject.service_account),
        ("group", subject.group),
        ("claim", f"{subject.claim.name}={subject.claim.value}" if subject.claim is not None else None),
    )
    return ", ".join(f"{name} {value}" for name, value in parts if value)
