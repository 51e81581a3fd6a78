"""ClientCas: which CA signs for a client, where `intercept` has CAs of some clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from egressproxy.gateway.leaf_certificates.certificate_cache import CertificateCache, no_ca
from egressproxy.ir.policy import SubjectIR
from egressproxy.model.caller_identity import CallerIdentity

_NO_CA: Final = "there is no CA for this client"
#: A subject, the position of its entry, its CA, and why there is none.
_Entry = tuple[SubjectIR, int, CertificateCache | None, str]


class ClientCas:
    """The CAs of one `intercept`. The first entry for a client holds; without one `others`, if there is a CA for those.

    Entries are looked up by the name, namespace and service account of the client, so their number costs nothing.
    """

    __slots__ = ("_by_place", "_others", "policy")

    def __init__(
        self,
        entries: Iterable[tuple[Iterable[SubjectIR], CertificateCache | None, str]],
        others: CertificateCache | None,
        policy: str,
    ) -> None:
        """`entries`: subjects, their CA, and without one why they are refused."""
        self._by_place: dict[tuple[str, str, str], list[_Entry]] = defaultdict(list)
        for position, (subjects, cache, why) in enumerate(entries):
            for each in subjects:
                place = each.identity, each.namespace, each.service_account
                self._by_place[place].append((each, position, cache, why))
        self._by_place.default_factory = None
        self._others = others
        self.policy = policy

    def for_client(self, identity: CallerIdentity) -> CertificateCache:
        """The leaves for this client. Raises Denied where it has no CA, or it is not known whether it has one."""
        first: _Entry | None = None
        for entry in self._entries(identity):
            if first is None or entry[1] < first[1]:
                first = entry
        if first is None:
            if self._others is None:
                raise no_ca(self.policy, _NO_CA)
            return self._others
        subject, _, cache, why = first
        if subject.claim is not None and subject.claim not in identity.claims:
            raise no_ca(self.policy, f"the claim {subject.claim[0]} of this client is not told here")
        if cache is None:
            raise no_ca(self.policy, f"the CA of this client cannot be used: {why}")
        return cache

    def _entries(self, identity: CallerIdentity) -> Iterator[_Entry]:
        """Those that fit, or may fit: of a token that another gateway has read, a claim may be missing."""
        names = ("", identity.name) if identity.name != "-" else ("",)
        namespaces = ("", identity.namespace) if identity.namespace != "-" else ("",)
        accounts = ("", identity.service_account) if identity.service_account != "-" else ("",)
        for name in names:
            for namespace in namespaces:
                for account in accounts if namespace else ("",):
                    for entry in self._by_place.get((name, namespace, account), ()):
                        if _fits(entry[0], identity):
                            yield entry


def _fits(subject: SubjectIR, identity: CallerIdentity) -> bool:
    """Whether group and claim are, or may be, those of the client."""
    if subject.group and subject.group not in identity.groups:
        return False
    if subject.claim is None or subject.claim in identity.claims:
        return True
    return identity.claims_read is not None and subject.claim[0] not in identity.claims_read
