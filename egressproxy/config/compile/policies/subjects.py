"""Which policies with `subjects` may hold for one client at the same time. Each such set is a variant of a listener.

A client has one namespace and one service account, so that subjects which name these exclude each other: as many sets
as there are. Groups and claims do not exclude each other, and the sets double with each of them, so there is a bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from egressproxy.config.resources.policy import EgressPolicy, Subject
from egressproxy.ir.gateway import ListenerIR, SubjectIR
from egressproxy.model.exchange import namespace_in
from egressproxy.model.published_object import Key

#: The most variants of one listener for what groups and claims combine to.
MAX_COMBINED = 256

#: For clients that fit no subjects.
NOBODY: frozenset[Key] = frozenset()

_Conditions = frozenset[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ClientSets:
    """`sets` has the keys of the policies, for each set but the empty one. `at_most` is how many entries of subjects
    with groups or claims may fit one client: another client is refused. None: all of them.
    """

    sets: tuple[frozenset[Key], ...]
    at_most: int | None


def subject_ir(subject: Subject, own_domain: str) -> SubjectIR:
    """One entry of `subjects`, for the data plane. `own_domain` is the listener's own trust domain."""
    claim = (subject.claim.name, subject.claim.value) if subject.claim is not None else None
    namespace, account = _place_of(subject, own_domain)
    return SubjectIR(namespace, account, subject.group or "", claim)


def _place_of(subject: Subject, own_domain: str) -> tuple[str, str]:
    """The namespace, as CallerIdentity has it, and the service account; "" for what it does not say."""
    namespace = namespace_in(subject.trust_domain or "", subject.namespace or "", own_domain)
    return namespace, subject.service_account or ""


def claims_of(policies: Iterable[EgressPolicy]) -> tuple[str, ...]:
    """The names of the claims that subjects of these policies ask for."""
    subjects = (subject for policy in policies for subject in policy.spec.subjects)
    return tuple(sorted({subject.claim.name for subject in subjects if subject.claim is not None}))


def closed_to_clients(listener: ListenerIR, variant: ListenerIR) -> Iterator[str]:
    """What this variant of a listener answers with an error, and the listener itself does not: a sentence for each."""
    known = set(_closed(listener))
    for route, backend in dict.fromkeys(each for each in _closed(variant) if each not in known):
        what = f"some requests of {route}" if route else "destinations that no route matches"
        yield f"listener {listener.name} answers {what} with an error: {backend}."


def _closed(listener: ListenerIR) -> Iterator[tuple[str, str]]:
    """Kind and name of the route, "" for none, and the error of each backend that cannot be used."""
    if listener.default_backend is not None and listener.default_backend.backend is None:
        yield "", listener.default_backend.error
    routes = ((f"{each.kind} {each.name}", rule.backends) for each in listener.http_routes for rule in each.rules)
    streams = ((f"{each.kind} {each.name}", each.backends) for each in (*listener.tls_routes, *listener.tcp_routes))
    for route, backends in chain(routes, streams):
        yield from ((route, each.error) for each in backends if each.backend is None)


def has_conditions(subject: Subject) -> bool:
    """Whether it asks for a group or a claim."""
    return subject.group is not None or subject.claim is not None


def client_sets(policies: Iterable[EgressPolicy], own_domain: str) -> ClientSets:
    """Every set of these policies that may hold for one client, as far as MAX_COMBINED allows. `own_domain` is the
    listener's own trust domain.
    """
    by_place: dict[tuple[str, str], list[tuple[Key, _Conditions]]] = defaultdict(list)
    for policy in policies:
        for subject in policy.spec.subjects:
            by_place[_place_of(subject, own_domain)].append((policy.key, _conditions(subject)))
    places = dict.fromkeys((("", ""), *((namespace, "") for namespace, _ in by_place), *by_place))
    held = {place: tuple(_held_at(place, by_place)) for place in places}
    sets = dict.fromkeys(_set(entries, frozenset()) for entries in held.values())
    at_most, unions = 0, {place: {_Conditions()} for place in places}
    while True:
        more = {place: _one_more(unions[place], held[place]) for place in places}
        if more == unions:
            return ClientSets(_known(sets), None)
        if sum(map(len, more.values())) - len(places) > MAX_COMBINED:
            return ClientSets(_known(sets), at_most)
        at_most, unions = at_most + 1, more
        sets |= dict.fromkeys(_set(held[place], each) for place in places for each in unions[place])


def _conditions(subject: Subject) -> _Conditions:
    found = [("group", subject.group)] if subject.group is not None else []
    claims = [("claim", subject.claim.name, subject.claim.value)] if subject.claim is not None else []
    return frozenset((*found, *claims))


def _held_at(
    place: tuple[str, str], by_place: Mapping[tuple[str, str], Sequence[tuple[Key, _Conditions]]]
) -> Iterator[tuple[Key, _Conditions]]:
    """What may hold for the clients of a place: that of no namespace, of the namespace, and of the account."""
    for wider in dict.fromkeys((("", ""), (place[0], ""), place)):
        yield from by_place.get(wider, ())


def _one_more(unions: Collection[_Conditions], entries: Sequence[tuple[Key, _Conditions]]) -> set[_Conditions]:
    """What clients may have, if one entry more fits them than before."""
    conditional = dict.fromkeys(conditions for _, conditions in entries if conditions)
    made = set(unions)
    for each in conditional:
        made.update(union | each for union in unions)
        if len(made) > 2 * MAX_COMBINED:
            break  # too many already
    return made


def _set(entries: Iterable[tuple[Key, _Conditions]], has: _Conditions) -> frozenset[Key]:
    return frozenset(key for key, conditions in entries if conditions <= has)


def _known(sets: Iterable[frozenset[Key]]) -> tuple[frozenset[Key], ...]:
    return tuple(each for each in sets if each)
