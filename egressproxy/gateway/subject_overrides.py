"""SubjectOverrides: a listener as it is for each client, where policies have `subjects`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from egressproxy.errors import Denied, Reason
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import CallerIdentity

T = TypeVar("T")

#: Identities whose variant is remembered, for each listener, and the characters of the key of one of them. Another is
#: decided about anew for each connection or credential.
MAX_KNOWN: Final = 4096
MAX_CHARACTERS: Final = 1024

_NUMBERS: Final = itertools.count(1)


class Matched(NamedTuple):
    """The policies that hold for a client, and the groups and claims (name, value) that it has of those in subjects."""

    policies: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()


class SubjectOverrides(Generic[T]):
    """The variants of one listener: `variants` by the policies that hold for a client, and `others` for everybody else.

    A client fits a subject by what is known of it; one that is not known fits none. `depends_on_more` says whether
    namespace and service account are not all that subjects ask for. A client of whose token another gateway has not
    told a claim that subjects ask for is refused: what is denied to that claim could not be denied to it.
    """

    __slots__ = (
        "_at", "_by_place", "_claims", "_known", "_named_claims", "_named_groups", "_number", "_numbered",
        "depends_on_more",
    )  # fmt: skip

    def __init__(
        self, subjects: Sequence[tuple[str, Sequence[SubjectIR]]], variants: Mapping[frozenset[str], T], others: T
    ) -> None:
        self._by_place: dict[tuple[str, str], list[tuple[str, SubjectIR]]] = defaultdict(list)
        for policy, entries in subjects:
            for entry in entries:
                self._by_place[entry.namespace, entry.service_account].append((policy, entry))
        self._by_place.default_factory = None
        self._claims = {entry.claim[0] for _, entries in subjects for entry in entries if entry.claim is not None}
        self._number = next(_NUMBERS)  # unique among all configurations of the process
        self._numbered = (*variants.values(), others)
        self._at = {policies: at for at, policies in enumerate(variants)}
        self._known: dict[str, int] = {}
        self._named_groups = {entry.group for _, entries in subjects for entry in entries}
        self._named_claims = {entry.claim for _, entries in subjects for entry in entries}
        conditions = ((entry.group, entry.claim) for _, entries in subjects for entry in entries)
        self.depends_on_more = any(group or claim is not None for group, claim in conditions)

    def of(self, identity: CallerIdentity) -> T:
        """What this client gets. Raises Denied (403) without a variant for it, or a claim that is asked for."""
        if identity.variants_number == self._number:
            return self._numbered[identity.variant_at]
        at = self._known.get(identity.key)
        if at is None:
            at = self._find(identity)
        identity.variants_number, identity.variant_at = self._number, at
        return self._numbered[at]

    def _find(self, identity: CallerIdentity) -> int:
        if identity.claims_read is not None and not self._claims <= set(identity.claims_read):
            raise _unknown_claims(identity, self._claims - set(identity.claims_read))
        policies = frozenset(self._policies(identity))
        at = self._at.get(policies) if policies else len(self._at)
        if at is None:
            named = ", ".join(sorted(policies))
            message = f"the policies that hold for this client together are more than are served: {named}"
            remedy = "have fewer groups and claims in the subjects of these policies; their status says how many "
            raise Denied(Reason.NO_POLICY, message, remedy=f"{remedy}are served at once")
        if len(identity.key) <= MAX_CHARACTERS:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[identity.key] = at
        return at

    def matched(self, identity: CallerIdentity) -> Matched:
        return Matched(
            tuple(sorted(set(self._policies(identity)))),
            tuple(each for each in identity.groups if each in self._named_groups),
            tuple(each for each in identity.claims if each in self._named_claims),
        )

    def _policies(self, identity: CallerIdentity) -> Iterator[str]:
        namespace, account = identity.namespace, identity.service_account
        places = [("", "")]
        if namespace != "-":
            places.append((namespace, ""))
            if account != "-":
                places.append((namespace, account))
        for place in places:
            for policy, entry in self._by_place.get(place, ()):
                if (not entry.group or entry.group in identity.groups) and (
                    entry.claim is None or entry.claim in identity.claims
                ):
                    yield policy

    def __iter__(self) -> Iterator[T]:
        return iter(self._numbered[:-1])


def _unknown_claims(identity: CallerIdentity, claims: Iterable[str]) -> Denied:
    whose = f"gateway {identity.origin_gateway}" if identity.origin_gateway != "-" else "the reader of its token"
    shown = ", ".join(sorted(claims))
    return Denied(
        Reason.NO_POLICY,
        f"policies here ask for the claim {shown}, which {whose} does not tell of this client",
        remedy="list it there, in identity.token.forwardClaims",
    )
