"""TLS to backends: as they say it, or BackendTLSPolicies, whose status at each Gateway that leads there is made here.

What a Backend says itself goes before any policy. A policy that cannot be enforced closes its target: nothing goes
there in plain text, or to a server that is not verified. Source: Gateway API v1 BackendTLSPolicy; GEP-713
(PolicyStatus).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from egressproxy.config.compile.backends.backend_references import (
    BACKEND_KINDS,
    KNOWN_KINDS,
    AnyBackend,
    DestinationBackend,
    object_key,
)
from egressproxy.config.compile.backends.published_forms import (
    PortForm,
    TlsForm,
    check_roots,
    port_forms,
    x_backend_form,
)
from egressproxy.config.compile.interface import Status, age_of
from egressproxy.config.compile.references import References, UnresolvedRef, resolve_each
from egressproxy.config.compile.status.conditions import Conditions, ReferenceConditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import BackendTlsPolicy
from egressproxy.config.resources.core import Service, ServicePort
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.object_references import ParentReference, PolicyTargetReference
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.backend import BackendTlsIR
from egressproxy.model.certificate import CertificateUse
from egressproxy.model.published_object import Key

T = TypeVar("T")

#: A policy that accepts certificates which say less than that the server is the server.
INSECURE = "egressproxy.io/Insecure"
#: PolicyStatus.ancestors holds at most 16 entries.
MAX_ANCESTORS = 16


class BackendTlsPolicies:
    """Every BackendTLSPolicy. Of two with the same target the older holds; one that names the port goes first."""

    __slots__ = ("_by_target", "_policies", "_references", "_resources", "_trust", "users")

    def __init__(self, resources: ResourceSet, references: References) -> None:
        self._resources = resources
        self._references = references
        self._policies = sorted(resources.of(BackendTlsPolicy), key=age_of)
        self._trust: dict[Key, tuple[tuple[str, str], list[UnresolvedRef]]] = {}
        #: By target, and the name of its port or "": the policy that holds there.
        self._by_target: dict[tuple[Key, str], BackendTlsPolicy] = {}
        #: By target: the Gateways whose routes lead there.
        self.users: dict[Key, set[Key]] = defaultdict(set)
        for policy in self._policies:
            for ref in policy.spec.target_refs:
                self._by_target.setdefault(self._target_of(policy, ref), policy)

    def of_service(self, service: Service, entry: ServicePort) -> BackendTlsIR | None:
        """How this port is spoken to; None: no policy says it. Raises UnresolvedRef if the policy cannot hold."""
        policy = self._of(service.key, entry.name or "")
        return None if policy is None else self._verified(policy, service)

    def forms(self, backend: AnyBackend) -> tuple[PortForm, ...]:
        """The ports of a backend, each with its TLS: that of a policy where the backend itself has none written."""
        forms = self._ports(backend)
        if not forms and not isinstance(backend, XBackend) and backend.spec.destination.type == "Dynamic":
            forms = (PortForm(0, "HTTP", None, is_written=False),)
        found = (form if form.is_written else self._with_policy(backend, form) for form in forms)
        return tuple(form for form in found if form.number or form.tls is not None)

    def of_port(self, backend: AnyBackend, form: PortForm, field: str) -> BackendTlsIR | None:
        """TLS to a port of a backend as it is written at `field`; None for plain text. Raises UnresolvedRef."""
        tls = form.tls
        if tls is not None and tls.policy is not None:
            return self._verified(tls.policy, backend)
        return None if tls is None or tls.mode == "None" else _port_tls(self._references, backend, tls, field)

    def of_failover(self, backend: DestinationBackend) -> BackendTlsPolicy | None:
        """A policy that names a Failover, which has no connections of its own."""
        return next((policy for (target, _), policy in self._by_target.items() if target == backend.key), None)

    def note_use(self, gateway: Key, targets: Iterable[Key]) -> None:
        """Routes of this Gateway lead to these Services and Backends: it is an ancestor of their policies."""
        for target in targets:
            self.users[target].add(gateway)

    def statuses(self, generations: Mapping[Key, int]) -> dict[Key, Status]:
        """An ancestor for each Gateway whose routes lead to a target; without any the targets, to show mistakes."""
        statuses: dict[Key, Status] = {}
        for policy in self._policies:
            ancestors = ReferenceConditions("ancestors", generations[policy.key])
            by_gateway: dict[Key, list[PolicyTargetReference]] = defaultdict(list)
            for ref in policy.spec.target_refs:
                for key in self.users.get(object_key(self._resources, ref, policy.namespace), ()):
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

    def _target_of(self, policy: BackendTlsPolicy, ref: PolicyTargetReference) -> tuple[Key, str]:
        """The target, and its port: by name, or by number where it has no name."""
        key = object_key(self._resources, ref, policy.namespace)
        section = ref.section_name or ""
        found = self._resources.get(*key)
        if section and isinstance(found, BACKEND_KINDS):
            section = next(
                (_section(form) for form in self._ports(found) if section in (form.name, str(form.number))), section
            )
        return key, section

    def _of(self, target: Key, section: str) -> BackendTlsPolicy | None:
        by_target = self._by_target
        return (by_target.get((target, section)) if section else None) or by_target.get((target, ""))

    def _with_policy(self, backend: AnyBackend, form: PortForm) -> PortForm:
        policy = self._of(backend.key, _section(form))
        if policy is None:
            return form
        return replace(form, tls=TlsForm("Simple", policy.spec.validation.hostname, policy=policy))

    def _ports(self, backend: AnyBackend) -> tuple[PortForm, ...]:
        return (x_backend_form(backend.spec),) if isinstance(backend, XBackend) else port_forms(backend.spec)

    def _verified(self, policy: BackendTlsPolicy, target: Resource) -> BackendTlsIR:
        """What a policy says of its target. Raises UnresolvedRef if it cannot hold."""
        (pem, trusted), problems = self._trusted(policy)
        validation = policy.spec.validation
        if problems and not pem and not (trusted and validation.well_known_ca_certificates):
            raise UnresolvedRef("InvalidBackend", f"{target} cannot be verified: {policy}: {problems[0].message}")
        refs = (*validation.ca_certificate_refs, *validation.trusted_certificates)
        return BackendTlsIR(
            sni=validation.hostname,
            ca_pem=pem,
            names=validation.names,
            insecure_skip_verify=validation.mode == "InsecureSkipVerification",
            trusted_pem=trusted,
            skip_names=validation.mode == "InsecureSkipOnlySANVerification",
            allow_expired=validation.mode == "InsecureAllowExpired",
            ca_source=self._references.names(policy, refs),
        )

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
            elsewhere = [problem.with_hint for problem in lost]
            elsewhere += [self._own_tls(policy, ref)[0] for ref, why in zip(targets, found, strict=True) if not why]
            for sentence in filter(None, elsewhere):
                conditions.add_note("Accepted", f"Not everywhere: {sentence}.")
        conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
        (pem, _), problems = self._trusted(policy)
        if problems and problems[0].reason == "UnsupportedValue":
            conditions.set("Accepted", False, "Invalid", problems[0].with_hint)
        elif problems:
            reason = "InvalidKind" if problems[0].reason == "InvalidKind" else "InvalidCACertificateRef"
            message = "; ".join(problem.with_hint for problem in problems)
            conditions.set("ResolvedRefs", False, reason, message)
            if not pem and conditions.holds("Accepted"):
                conditions.set("Accepted", False, "NoValidCACertificate", message)
        weakness = policy.spec.validation.weakness
        if weakness:
            mode = policy.spec.validation.mode
            conditions.set(INSECURE, True, "NotVerified", f"{weakness} (validation.mode {mode})")
        if policy.spec.options:
            conditions.add_note("Accepted", "options are not supported and do nothing.")

    def _problem(self, policy: BackendTlsPolicy, ref: PolicyTargetReference) -> UnresolvedRef | None:
        """Why the policy does not hold at this target."""
        if (ref.group, ref.kind) not in KNOWN_KINDS:
            return UnresolvedRef("TargetNotFound", f"only Services and Backends can be targets, not {ref.kind}")
        key, section = self._target_of(policy, ref)
        target = self._resources.get(*key)
        if target is None:
            remedy = self._references.suggestions.remedy(*key, "a policy stands beside it", KNOWN_KINDS)
            return UnresolvedRef("TargetNotFound", f"{ref.kind} {ref.name} does not exist", remedy)
        if isinstance(target, Service):
            names = [port.name for port in target.spec.ports if port.name]
        else:
            assert isinstance(target, AnyBackend)
            if not isinstance(target, XBackend) and target.spec.destination.failover is not None:
                why = f"{target} is of type Failover, which stays closed: TLS belongs to its endpoints"
                return UnresolvedRef("Invalid", why, "name them in targetRefs")
            names = list(map(_section, self._ports(target)))
        if section and section not in names:
            named = ", ".join(names) or "none has a name"
            return UnresolvedRef("TargetNotFound", f"{target} has no port named {section} (it has {named})")
        winner = self._by_target[key, section]
        if winner is not policy:
            return UnresolvedRef("Conflicted", f"{winner} is older and has the same target")
        own, is_all = self._own_tls(policy, ref)
        return UnresolvedRef("Conflicted", own, "remove it there, or the target here") if is_all else None

    def _own_tls(self, policy: BackendTlsPolicy, ref: PolicyTargetReference) -> tuple[str, bool]:
        """What a Backend says itself of the ports that are meant, in words; and whether it does of all of them."""
        key, section = self._target_of(policy, ref)
        target = self._resources.get(*key)
        forms = self._ports(target) if isinstance(target, AnyBackend) else ()
        meant = [form for form in forms if section in ("", _section(form))]
        written = [form for form in meant if form.is_written and form.tls is not None]
        ports = ", ".join(f"{form.number or 'any'} ({form.how})" for form in written)
        return f"{target} has tls of its own for port {ports}, which holds" if written else "", written == meant != []

    def _trusted(self, policy: BackendTlsPolicy) -> tuple[tuple[str, str], list[UnresolvedRef]]:
        """The CA certificates of a policy, PEM ("" for the system's), its trusted certificates, as in BackendTlsIR, and
        why some of them cannot be had.
        """
        if policy.key not in self._trust:
            validation = policy.spec.validation
            try:
                check_roots(validation)
                pem, problems = self._references.ca_bundles(policy, validation.ca_certificate_refs)
                read = partial(self._references.server_certificates, policy)
                trusted, others = resolve_each(read, validation.trusted_certificates)
                problems += others
                servers = "".join(trusted)
                if not pem and validation.well_known_ca_certificates is None:
                    pem = servers
                self._trust[policy.key] = (pem, servers), problems
            except UnresolvedRef as unresolved:
                self._trust[policy.key] = ("", ""), [unresolved]
        return self._trust[policy.key]


def _section(form: PortForm) -> str:
    """What `sectionName` calls a port: its name, or its number."""
    return form.name or str(form.number)


def _port_tls(references: References, backend: Resource, form: TlsForm, field: str) -> BackendTlsIR:
    """As it is written. Raises UnresolvedRef."""
    problems: list[UnresolvedRef] = []

    def take(name: str, read: Callable[[], T], default: T) -> T:
        try:
            return read()
        except UnresolvedRef as unresolved:
            problems.append(unresolved.copy(f"{field}.{name}"))
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
