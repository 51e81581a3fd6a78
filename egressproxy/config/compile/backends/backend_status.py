"""The status of Backends, used or not: usability, insecure settings and settings without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import (
    BACKEND_KINDS,
    AnyBackend,
    DestinationBackend,
    backend_refs,
    stream_carriers,
)
from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.backends.pods import selector_text
from egressproxy.config.compile.backends.published_forms import PortForm, destination_summary, notes, port_option_errors
from egressproxy.config.compile.dns_section import dns_notes
from egressproxy.config.compile.extensions.extension_faults import ExtensionFaults
from egressproxy.config.compile.interface import Reference, Status, kind_of
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.compile.source_addresses import missing_sources
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.model.published_object import Key

#: Reasons about the Backend itself; other reasons are about referenced objects.
_OF_BACKENDS = frozenset({"UnsupportedValue", "TlsNotConfigured"})
#: Gateway API has this reason for references (RouteReasonUnsupportedProtocol); such a backend is unusable.
_NOT_ACCEPTED = _OF_BACKENDS | {"UnsupportedProtocol"}


def backend_statuses(
    resources: ResourceSet,
    backends: BackendCompiler,
    faults: Mapping[Key, ExtensionFaults],
    generations: Mapping[Key, int],
    why_unusable: Callable[[str], str] = lambda _address: "",
) -> dict[Key, Status]:
    """The status of every Backend, used or not: so every load error is found. `faults` are of extensions, by object.
    `why_unusable`: as of Defaults.
    """
    statuses: dict[Key, Status] = {}
    carriers = stream_carriers(resources, backends.target_key)
    for backend in chain.from_iterable(resources.of(kind) for kind in BACKEND_KINDS):
        conditions = Conditions(generations[backend.key])
        _set_conditions(conditions, backends, backend, faults)
        _add_notes(conditions, backends.tls_policies, backend, has_requests=backend.key not in carriers)
        for missing in (
            missing_sources(backend.spec.source_address, why_unusable) if isinstance(backend, Backend) else ()
        ):
            conditions.report("Degraded", "SourceAddressNotUsable", missing)
        statuses[backend.key] = {"conditions": conditions.to_list()}
    return statuses


def _set_conditions(
    conditions: Conditions, backends: BackendCompiler, backend: AnyBackend, faults: Mapping[Key, ExtensionFaults]
) -> None:
    """Accepted, ResolvedRefs and Degraded: of each port, the parent and the extensions."""
    read_as = summary(backend, backends.tls_policies)
    message = f"the backend can be used{': ' if read_as else ''}{read_as}"
    if backends.is_ambiguous(backend):
        message += f"; another has its name: references mean this one by group {backend.GROUP}, kind {backend.KIND}"
    conditions.set("Accepted", True, "Accepted", message)
    conditions.set("ResolvedRefs", True, "ResolvedRefs", "every reference is resolved")
    failed = 0
    if not isinstance(backend, XBackend) and backend.spec.destination.failover is not None:
        _set_endpoints(conditions, backends, backend)
        return
    ports: Sequence[int | None] = [None]
    if not isinstance(backend, XBackend) and len(backend.spec.destination.ports) > 1:
        ports = [port.value for port in backend.spec.destination.ports]
    for port in ports:
        try:
            backends.resolve_port(backend, port)
        except UnresolvedRef as unresolved:
            failed += 1
            _set_unresolved(unresolved, conditions)
    if isinstance(backend, Backend):  # report the rest, too, if one part is unusable
        for problem in backends.parents.problems([backend]).values():
            _set_unresolved(problem.copy("spec.parent"), conditions)
    if not isinstance(backend, XBackend):
        backends.own_extensions(backend)
    faults[backend.key].set_conditions(conditions)
    if 0 < failed < len(ports):
        conditions.report("Degraded", "PortsNotUsable", f"{failed} of {len(ports)} ports cannot be used")


def _set_endpoints(conditions: Conditions, backends: BackendCompiler, backend: DestinationBackend) -> None:
    """Set the conditions of a Failover, which is usable while one of its endpoints is."""
    problems = backends.endpoint_problems(backend)
    for problem in problems:
        conditions.fail("ResolvedRefs", problem.reason, f"{problem.field}: {problem.with_hint}")
    failover = backend.spec.destination.failover
    assert failover is not None
    total = len(failover.endpoints)
    if len(problems) == total:
        conditions.fail("Accepted", "UnsupportedValue", "none of its endpoints can be used")
    elif problems:
        conditions.report("Degraded", "EndpointsNotUsable", f"{len(problems)} of {total} endpoints cannot be used")
    if not any(endpoint.weight for endpoint in failover.endpoints):
        conditions.fail("Accepted", "UnsupportedValue", "every endpoint has weight 0")


def _add_notes(
    conditions: Conditions, tls_policies: BackendTlsPolicies, backend: AnyBackend, *, has_requests: bool
) -> None:
    wrong = "" if isinstance(backend, XBackend) else "; ".join(port_option_errors(backend.spec))
    if wrong:
        conditions.report("Degraded", "UnsupportedProtocolOptions", wrong)
    forms = tls_policies.forms(backend)
    insecure = _insecure_reason(backend, forms, has_requests)
    if insecure:
        conditions.set("Insecure", True, "NotVerified", insecure)
    for note in _selector_notes(backend, forms) if isinstance(backend, XBackend) else _backend_notes(backend, forms):
        conditions.add_note("Accepted", note)


def _set_unresolved(unresolved: UnresolvedRef, conditions: Conditions) -> None:
    for each in (unresolved, *unresolved.others):
        message = f"{each.field}: {each.with_hint}" if each.field else each.with_hint
        if each.reason in _NOT_ACCEPTED:
            conditions.fail("Accepted", each.reason, message)
        if each.reason not in _OF_BACKENDS:
            conditions.fail("ResolvedRefs", each.reason, message)


def summary(backend: AnyBackend, tls_policies: BackendTlsPolicies) -> str:
    """A summary of a Backend of any form, for people."""
    if not isinstance(backend, XBackend):
        return destination_summary(backend.spec, tls_policies.forms(backend))
    spec = backend.spec
    selector = spec.endpoint_selector
    if spec.external_hostname is not None:
        host = spec.external_hostname.hostname
    elif selector is not None and selector.match_labels is not None and not selector.is_of_draft:
        host = f"Pods with {selector_text(selector.match_labels)}"
    else:
        return f"type {spec.type}, which is not served"
    (form,) = tls_policies.forms(backend)
    return f"{host}:{form.number} ({form.protocol}, {form.how})"


def _insecure_reason(backend: AnyBackend, forms: Sequence[PortForm], has_requests: bool) -> str:
    """The reason why a backend is insecure; "" for a secure one. `has_requests`: not streams alone."""
    if isinstance(backend, XBackend):
        is_external = backend.spec.external_hostname is not None
    else:
        is_external = backend.spec.destination.type == "Fqdn"
    reasons = []
    is_plain = any(form.tls is not None and form.tls.mode == "None" and form.protocol != "TCP" for form in forms)
    if is_external and is_plain and has_requests:
        reasons.append("requests go in plain text")
    if any(form.tls is not None and form.tls.is_unverified for form in forms):
        reasons.append("the server's certificate is not verified (insecureSkipVerify)")
    policies = (form.tls.policy for form in forms if form.tls is not None and form.tls.policy is not None)
    weak = (f"{policy.spec.validation.weakness} ({policy})" for policy in policies if policy.spec.validation.weakness)
    reasons += dict.fromkeys(weak)
    return "; ".join(reasons)


def _selector_notes(backend: XBackend, forms: Sequence[PortForm]) -> Iterator[str]:
    tls = forms[0].tls
    if backend.spec.endpoint_selector is not None and tls is not None and tls.mode != "None" and not tls.sni:
        yield "a certificate has to carry the address of its Pod: tls.validation.hostname would name another."


def _backend_notes(backend: DestinationBackend, forms: Sequence[PortForm]) -> Iterator[str]:
    yield from notes(backend.spec, forms)
    destination = backend.spec.destination
    if isinstance(backend, Backend) and backend.spec.resolver is not None:
        yield from dns_notes(backend.spec.resolver, "resolver")
        if destination.type in ("Ip", "Service"):
            yield f"resolver does nothing for type {destination.type}: no name is resolved."
    if destination.type == "Dynamic" and len(destination.ports) > 1:
        yield "a Dynamic destination takes the port from the request; of ports one entry counts."


def same_name_notes(source: Resource, backends: BackendCompiler) -> Iterator[tuple[str, str]]:
    """For each reference to an ambiguous name: its field, and the object it means."""
    for field_path, ref in _references(source) if backends.same_names else ():
        meant = backends.target_key(source, ref)
        named = backends.same_names.get(meant[2:], ())
        if meant in named:  # else a Service, or no object
            others = [key for key in named if key != meant]
            has = "has that name, too, and is another" if len(others) == 1 else "have that name, too, and are others"
            listed = ", ".join(sorted(map(kind_of, others)))
            yield field_path, f"this is {kind_of(meant)} {meant[2]}/{meant[3]}; {listed} {has}"


def _references(source: Resource) -> Iterator[tuple[str, Reference]]:
    if isinstance(source, Backend | EgressPolicy):
        if source.spec.parent is not None and source.spec.parent.name:
            yield "spec.parent", source.spec.parent
        for index, target in enumerate(source.spec.target_refs if isinstance(source, EgressPolicy) else ()):
            yield f"spec.targetRefs[{index}]", target
    else:
        yield from backend_refs(source)
