"""The CAs of `intercept` sections: for everybody, for some clients, and those that were made through the API.

A CA that was made through the API is a Secret of type `egressproxy.io/interception-ca` in the namespace of its policy
(`IssuedCa`). Without its key it is withdrawn: its clients are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.core import Secret
from egressproxy.config.resources.object_references import SecretObjectReference
from egressproxy.config.resources.policy import EgressPolicy, InterceptSubject
from egressproxy.ir.gateway import CertificateIR
from egressproxy.ir.policy import InterceptIR, SubjectCaIR, SubjectIR
from egressproxy.model.secret import SecretBytes

ISSUED_TYPE: Final = "egressproxy.io/interception-ca"
WITHDRAWN: Final = "it was withdrawn"


@dataclass(frozen=True, slots=True)
class IssuedCa:
    """A Secret with a CA that was made through the API, for the policy of this name. Its entries are `policy`,
    `subject` (JSON of an InterceptSubject), `tls.crt`, and `tls.key` unless it is withdrawn.
    """

    secret: Secret
    policy: str
    subject: InterceptSubject

    @property
    def is_withdrawn(self) -> bool:
        return self.secret.value("tls.key") is None

    @property
    def order(self) -> tuple[int, bool, str]:
        """The more specific subject first; of equal ones that in force before those that are withdrawn."""
        said = self.subject
        ways = (said.identity, said.service_account, said.claim or said.group, said.namespace)
        return next(at for at, each in enumerate(ways) if each), self.is_withdrawn, self.secret.name


@dataclass(frozen=True, slots=True)
class SigningCas:
    """The CAs of one policy. `spec` None: the names in `intercept` are denied, since there is no CA for them. `read`
    and `problems` are by field or Secret, for status.
    """

    spec: InterceptIR | None
    read: tuple[tuple[str, CertificateIR], ...] = ()
    problems: tuple[tuple[str, UnresolvedRef], ...] = ()


@dataclass(slots=True)
class _Reader:
    """Reads CAs for one policy."""

    references: References
    policy: EgressPolicy
    read: list[tuple[str, CertificateIR]] = field(default_factory=list)
    problems: list[tuple[str, UnresolvedRef]] = field(default_factory=list)

    def ca(self, where: str, ref: SecretObjectReference) -> CertificateIR | None:
        try:
            found = self.references.signing_ca(self.policy, ref)
        except UnresolvedRef as unresolved:
            self.problems.append((where, unresolved))
            return None
        self.read.append((where, found))
        return found

    def of_subjects(self, where: str, ref: SecretObjectReference, subjects: Iterable[InterceptSubject]) -> SubjectCaIR:
        clients = tuple(map(_client, subjects))
        name = f"{self.references.namespace_of(self.policy, ref)}/{ref.name}"
        ca = self.ca(where, ref)
        if ca is None:
            return SubjectCaIR(clients, name, why="it cannot be read")
        return SubjectCaIR(clients, name, ca.chain_pem, ca.key_pem)

    def issued(self, resources: ResourceSet) -> Iterator[SubjectCaIR]:
        for each in sorted(issued_cas(resources, self.policy, self.problems), key=lambda one: one.order):
            secret = each.secret
            if each.is_withdrawn:
                yield SubjectCaIR((_client(each.subject),), f"{secret.namespace}/{secret.name}", why=WITHDRAWN)
            else:
                ref = SecretObjectReference(group="", name=secret.name)
                yield self.of_subjects(f"Secret {secret.name}", ref, (each.subject,))


def signing_cas(references: References, resources: ResourceSet, policy: EgressPolicy) -> SigningCas:
    """The CAs of the policy's `intercept`, which it has."""
    section = policy.spec.intercept
    assert section is not None
    reader = _Reader(references, policy)
    chain_pem, key_pem = "", SecretBytes(b"")
    if section.ca_certificate_ref is not None:
        ca = reader.ca("spec.intercept.caCertificateRef", section.ca_certificate_ref)
        if ca is not None:
            chain_pem, key_pem = ca.chain_pem, ca.key_pem
    entries: list[SubjectCaIR] = []
    if section.issuing is not None:
        entries += reader.issued(resources)
    for number, entry in enumerate(section.by_subject):
        where = f"spec.intercept.bySubject[{number}].caCertificateRef"
        entries.append(reader.of_subjects(where, entry.ca_certificate_ref, entry.subjects))
    is_for_all = not entries and section.issuing is None
    spec = None
    if chain_pem or not is_for_all:
        spec = InterceptIR(section.hostnames, chain_pem, key_pem, policy.full_name, tuple(entries))
    return SigningCas(spec, tuple(reader.read), tuple(reader.problems))


def issued_cas(
    resources: ResourceSet, policy: EgressPolicy, problems: list[tuple[str, UnresolvedRef]] | None = None
) -> Iterator[IssuedCa]:
    """The CAs that were made for this policy; `problems` gets those that cannot be read."""
    for secret in resources.of(Secret):
        if secret.type != ISSUED_TYPE or secret.namespace != policy.namespace:
            continue
        named, subject = secret.value("policy"), secret.value("subject")
        if named is None or named.reveal() != policy.name.encode():
            continue
        try:
            said = InterceptSubject.model_validate_json(subject.reveal() if subject is not None else b"")
        except ValidationError:
            if problems is not None:
                message = f"Secret {secret.name}: its entry subject is no subject of intercept, in JSON"
                problems.append((f"Secret {secret.name}", UnresolvedRef("InvalidCertificate", message)))
            continue
        yield IssuedCa(secret, policy.name, said)


def _client(subject: InterceptSubject) -> SubjectIR:
    claim = (subject.claim.name, subject.claim.value) if subject.claim is not None else None
    return SubjectIR(
        subject.namespace or "", subject.service_account or "", subject.group or "", claim, subject.identity or ""
    )
