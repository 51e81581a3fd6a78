"""The parents that a Backend or a policy names. A parent is a backend with a fixed destination, and must not lead back
to the object that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

from egressproxy.config.compile.backends.backend_references import ANY_DESTINATION, ResolvedBackend
from egressproxy.config.compile.backends.parent_credentials import identity_key, parent_credentials
from egressproxy.config.compile.extensions.extension_faults import must_run
from egressproxy.config.compile.interface import Reference
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.status import supported_features
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.parent import BackendParent, ParentProxyRef
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.ir.backend import BackendIR, Destination, NoProxyRule, OtherParent, Protocol
from egressproxy.model.published_object import Key

#: The most parents in a chain: each costs a CONNECT and a handshake.
MAX_PARENTS = 8


@dataclass(slots=True, eq=False, repr=False)
class ParentCompiler:
    """`resolve` returns the backend of a reference, `target_key` the key of its object (`BackendCompiler`)."""

    _resources: ResourceSet
    _references: References
    _resolve: Callable[[Resource, Reference, Container[Protocol]], ResolvedBackend]
    _target_key: Callable[[Resource, Reference], Key]
    _busy: list[Key] = field(default_factory=list)

    def through(self, resolved: ResolvedBackend, source: Resource, ref: BackendParent) -> ResolvedBackend:
        """The backend with the parent that `source` (the backend, or a policy) names. Raises UnresolvedRef."""
        no_proxy = tuple(NoProxyRule(each.hostnames, each.cidrs, each.ports) for each in ref.no_proxy)
        if is_direct(resolved.spec, no_proxy):
            return replace(resolved, is_direct=True)
        if resolved.spec.destination is not Destination.DYNAMIC:
            no_proxy = ()
        parent = self._parent(source, ref)
        credentials = parent_credentials(self._references, source, ref, parent.spec)
        others: list[tuple[ResolvedBackend, OtherParent]] = []
        for each in ref.fallbacks:
            other = self._parent(source, each)
            shown = parent_credentials(self._references, source, each, other.spec)
            key = identity_key(self._references, source, each, other.spec)
            others.append((other, OtherParent(other.spec, shown, identity_key=key)))
        spec = replace(
            resolved.spec,
            parent=parent.spec,
            parent_credentials=credentials,
            parent_identity_key=identity_key(self._references, source, ref, parent.spec),
            other_parents=tuple(spec for _, spec in others),
            no_proxy=no_proxy,
        )
        parents = (parent, *parent.parents)
        fallbacks = tuple((other, *other.parents) for other, _ in others)
        return replace(resolved, spec=spec, parents=parents, fallbacks=fallbacks)

    def problems(self, sources: Iterable[EgressPolicy | Backend]) -> dict[Key, UnresolvedRef]:
        """The errors of the parents of these policies or Backends, by object."""
        problems = {}
        for source in sources:
            if source.spec.parent is not None and not source.spec.parent.direct:
                try:
                    self.through(ANY_DESTINATION, source, source.spec.parent)
                except UnresolvedRef as unresolved:
                    problems[source.key] = unresolved
        return problems

    def _parent(self, source: Resource, ref: ParentProxyRef) -> ResolvedBackend:
        """The parent, which needs a fixed destination, and must not lead back here. Raises UnresolvedRef."""
        if self._has_too_many(source, ref):
            raise UnresolvedRef("InvalidParent", f"{source} has more than {MAX_PARENTS} parents in a row")
        if source.key in self._busy:
            message = f"{source} is its own parent, by way of others"
            raise UnresolvedRef("InvalidParent", message, "take the parent out of the one that is asked last")
        self._busy.append(source.key)
        try:
            parent = self._resolve(source, ref, supported_features.PARENT_PROTOCOLS)
        except UnresolvedRef as unresolved:
            message = f"the parent of {source} cannot be used: {unresolved.message}"
            raise UnresolvedRef("InvalidParent", message, unresolved.hint) from None
        finally:
            self._busy.pop()
        if parent.spec.destination is Destination.DYNAMIC:
            raise UnresolvedRef("InvalidParent", f"the parent of {source} is Dynamic: name a fixed gateway")
        if parent.spec.other_parents or parent.spec.no_proxy:
            message = f"the parent of {source}, {parent.spec.name}, has a parent with fallbacks or noProxy"
            remedy = f"write them in the parent of {source}, or name one parent in {parent.spec.name}"
            raise UnresolvedRef("UnsupportedValue", message, remedy)
        if any(must_run(placed.spec) for placed in parent.extensions):
            # Ignoring these filters would allow requests that they refuse.
            raise UnresolvedRef(
                "UnsupportedValue", f"the parent of {source} has extensions, which are not supported yet on a parent"
            )
        return parent

    def _has_too_many(self, source: Resource, ref: ParentProxyRef) -> bool:
        """Whether the chain of parents from here on, as written, is too long. The error thus hits the object with the
        long chain, independent of the order of reading.
        """
        seen = {source.key}
        while len(seen) <= MAX_PARENTS:
            key = self._target_key(source, ref)
            found = self._resources.get(*key)
            if key in seen or not isinstance(found, Backend) or found.spec.parent is None or found.spec.parent.direct:
                return False  # the end of the chain; or a cycle, which `_parent` reports
            seen.add(key)
            source, ref = found, found.spec.parent
        return True


def is_direct(backend: BackendIR, rules: Iterable[NoProxyRule]) -> bool:
    """Whether the backend's name, or each of its addresses, is listed. For Dynamic backends the data plane decides."""
    if backend.destination is Destination.DYNAMIC:
        return False
    if backend.destination is Destination.FQDN:
        return any(_has_port(rule, backend.port) and _has_name(rule, backend.hostname) for rule in rules)
    listed = tuple(rules)
    return bool(backend.endpoints) and all(
        any(_has_port(rule, each.port) and any(each.address in network for network in rule.cidrs) for rule in listed)
        for each in backend.endpoints
    )


def _has_port(rule: NoProxyRule, port: int) -> bool:
    return not rule.ports or port in rule.ports


def _has_name(rule: NoProxyRule, hostname: str) -> bool:
    labels = hostname.split(".")
    patterns = chain((hostname,), ("*." + ".".join(labels[index:]) for index in range(1, len(labels))))
    return not set(patterns).isdisjoint(rule.hostnames)
