"""BackendTlsPolicies: how TLS is spoken to a Service, and what their status says at each Gateway that leads there.

A policy that cannot be enforced closes its Service: nothing goes there in plain text, or to a server that is not
verified. Source: Gateway API v1 BackendTLSPolicy; GEP-713 (PolicyStatus).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from egressproxy.config.compile.backends.published_forms import TlsForm
from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status.conditions import Conditions, ReferenceConditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import BackendTlsPolicy
from egressproxy.config.resources.core import Service, ServicePort
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import ParentReference, PolicyTargetReference
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.certificate import CertificateUse
from egressproxy.model.published_object import Key

T = TypeVar("T")

#: PolicyStatus.ancestors holds at most 16 entries.
MAX_ANCESTORS = 16

_SERVICE = ("", "Service")


class BackendTlsPolicies:
    """Every BackendTLSPolicy. Of two with the same target the older holds; one that names the port goes first."""

    __slots__ = ("_by_target", "_policies", "_references", "_resources", "_trust", "_users")

    def __init__(self, resources: ResourceSet, references: References) -> None:
        self._resources = resources
        self._references = references
        self._policies = sorted(resources.of(BackendTlsPolicy), key=age_of)
        self._trust: dict[Key, tuple[str, list[UnresolvedRef]]] = {}
        #: (namespace, service, port name or "") -> the policy that holds there.
        self._by_target: dict[tuple[str, str, str], BackendTlsPolicy] = {}
        #: (namespace, service) -> the Gateways whose routes lead there.
        self._users: dict[tuple[str, str], set[Key]] = defaultdict(set)
        for policy in self._policies:
            for ref in policy.spec.target_refs:
                if (ref.group, ref.kind) == _SERVICE:
                    self._by_target.setdefault((policy.namespace, ref.name, ref.section_name or ""), policy)

    def tls(self, service: Service, entry: ServicePort) -> BackendTlsIR | None:
        """How this port is spoken to; None: no policy says it. Raises UnresolvedRef if the policy cannot hold."""
        place = (service.namespace, service.name)
        policy = self._by_target.get((*place, entry.name)) if entry.name else None
        policy = policy or self._by_target.get((*place, ""))
        if policy is None:
            return None
        pem, problems = self._trusted(policy)
        if problems and not pem:
            raise UnresolvedRef("InvalidBackend", f"{service} cannot be verified: {policy}: {problems[0].message}")
        validation = policy.spec.validation
        ca_source = self._references.names(policy, validation.ca_certificate_refs)
        return BackendTlsIR(sni=validation.hostname, ca_pem=pem, names=validation.names, ca_source=ca_source)

    def note_use(self, gateway: Key, services: Iterable[tuple[str, str]]) -> None:
        """Routes of this Gateway lead to these Services (namespace, name): it is an ancestor of their policies."""
        for service in services:
            self._users[service].add(gateway)

    def statuses(self, generations: Mapping[Key, int]) -> dict[Key, Status]:
        """An ancestor for each Gateway whose routes lead to a target; without any the targets, to show mistakes."""
        statuses: dict[Key, Status] = {}
        for policy in self._policies:
            ancestors = ReferenceConditions("ancestors", generations[policy.key])
            by_gateway: dict[Key, list[PolicyTargetReference]] = defaultdict(list)
            for ref in policy.spec.target_refs:
                if (ref.group, ref.kind) == _SERVICE:
                    for key in self._users.get((policy.namespace, ref.name), ()):
                        by_gateway[key].append(ref)
            for key in sorted(by_gateway)[:MAX_ANCESTORS]:
                ancestor = ParentReference(namespace=key[2], name=key[3])
                self._conditions_of(policy, by_gateway[key], ancestors.add(ancestor))
            for ref in () if by_gateway else policy.spec.target_refs:
                conditions = ancestors.add(ref, namespace=policy.namespace)
                self._conditions_of(policy, [ref], conditions)
                if conditions.holds("Accepted"):
                    conditions.add_note("Accepted", "No route that is served here leads to it yet.")
            statuses[policy.key] = ancestors.to_status()
        return statuses

    def _conditions_of(
        self, policy: BackendTlsPolicy, targets: list[PolicyTargetReference], conditions: Conditions
    ) -> None:
        """State what holds for these targets. One that is lost is a note as long as another holds."""
        found = [self._problem(policy, ref) for ref in targets]
        lost = [problem for problem in found if problem is not None]
        if len(lost) == len(found):
            conditions.set("Accepted", False, lost[0].reason, "; ".join(problem.with_hint for problem in lost))
        else:
            conditions.set("Accepted", True, "Accepted", "the policy is in force.")
            for problem in lost:
                conditions.add_note("Accepted", f"Not everywhere: {problem.with_hint}.")
        conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
        pem, problems = self._trusted(policy)
        if problems:
            reason = "InvalidKind" if problems[0].reason == "InvalidKind" else "InvalidCACertificateRef"
            message = "; ".join(problem.with_hint for problem in problems)
            conditions.set("ResolvedRefs", False, reason, message)
            if not pem and conditions.holds("Accepted"):
                conditions.set("Accepted", False, "NoValidCACertificate", message)
        if policy.spec.options:
            conditions.add_note("Accepted", "options are not supported and do nothing.")

    def _problem(self, policy: BackendTlsPolicy, ref: PolicyTargetReference) -> UnresolvedRef | None:
        if (ref.group, ref.kind) != _SERVICE:
            message = f"only Services can be targets, not {ref.kind}: a Backend has its own tls"
            return UnresolvedRef("TargetNotFound", message)
        service = self._resources.find(Service, policy.namespace, ref.name)
        if service is None:
            key = (*_SERVICE, policy.namespace, ref.name)
            remedy = self._references.suggestions.remedy(*key, "a policy stands beside it")
            return UnresolvedRef("TargetNotFound", f"Service {ref.name} does not exist", remedy)
        if ref.section_name and all(port.name != ref.section_name for port in service.spec.ports):
            named = ", ".join(port.name for port in service.spec.ports if port.name) or "none has a name"
            return UnresolvedRef("TargetNotFound", f"{service} has no port named {ref.section_name} (it has {named})")
        winner = self._by_target[policy.namespace, ref.name, ref.section_name or ""]
        if winner is not policy:
            return UnresolvedRef("Conflicted", f"{winner} is older and has the same target")
        return None

    def _trusted(self, policy: BackendTlsPolicy) -> tuple[str, list[UnresolvedRef]]:
        """The CA certificates of a policy, PEM ("" for the system's), and why some of them cannot be had."""
        if policy.key not in self._trust:
            refs = policy.spec.validation.ca_certificate_refs
            self._trust[policy.key] = self._references.ca_bundles(policy, refs)
        return self._trust[policy.key]


def port_tls(references: References, backend: Resource, form: TlsForm | None, field: str) -> BackendTlsIR | None:
    """TLS to a port of a backend as it is written at `field`; None for plain text. Raises UnresolvedRef."""
    if form is None or form.mode == "None":
        return None
    problems: list[UnresolvedRef] = []

    def take(place: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except UnresolvedRef as unresolved:
            problems.append(unresolved.copy(f"{field}.{place}"))
            return default

    made = BackendTlsIR(
        sni=form.sni,
        ca_pem="".join(
            take(f"{form.ca_field}[{index}]", partial(references.ca_bundle, backend, ref, key), "")
            for index, (ref, key) in enumerate(form.cas)
        ),
        names=form.names,
        ca_source=references.names(backend, [ref for ref, _ in form.cas]),
    )
    written = form.source
    if written is not None:
        made = replace(
            made,
            min_version=written.min_version,
            insecure_skip_verify=written.insecure_skip_verify,
            crl_pem="".join(
                take(f"crlRefs[{index}]", partial(references.crl, backend, ref), "")
                for index, ref in enumerate(written.crl_refs)
            ),
            pins=written.pins,
        )
    if form.client is not None and form.mode in ("Mutual", "ClientAndServer"):
        read = partial(references.key_pair, backend, form.client, CertificateUse.CLIENT, form.client_key)
        pair = take("clientCertificateRef", read, None)
        if pair is not None:
            source = references.names(backend, (form.client,))
            made = replace(made, client_certificate=pair.chain_pem, client_key=pair.key_pem, client_source=source)
    if problems:
        raise problems[0].copy(others=tuple(problems[1:]))
    return made
