"""Filters of listeners, which run before a route is chosen. Source: GEP-5224, Listener.httpFilters.

A filter that cannot run closes the listener: none is ever skipped. Those that can are ExtensionIRs with priorities in
the order of the list, before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import object_key
from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.extensions.extension_compiler import FilterNotSupported
from egressproxy.config.compile.extensions.pipelines import ExtensionRefNotFound, Pipelines
from egressproxy.config.compile.extensions.ranked_extension import (
    ROUTE_LEVEL,
    AttachmentPoint,
    RankedExtension,
    ordered,
)
from egressproxy.config.compile.extensions.route_filters import external_auth_place
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.policies.layers import Layers
from egressproxy.config.compile.policies.policy_filters import LimitScopes
from egressproxy.config.compile.references import UnresolvedRef
from egressproxy.config.compile.routes.route_compiler import RouteCompiler
from egressproxy.config.compile.routes.route_validation import filter_protocols
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.resources.route_filters import ExternalAuthFilter, HttpListenerFilter
from egressproxy.ir.gateway import PreRoutingIR
from egressproxy.ir.route import ExternalAuthIR

#: Before all other filters, whose priorities are 0 or more.
_FIRST: Final = -1000
_BAD_REF: Final = "InvalidHTTPListenerFilterRef"
#: One waits for a person, and decides about the request of a rule; the other keeps the answers of one.
_OF_RULES: Final = ("egressproxy.io/ApprovalHold:", "egressproxy.io/Cache:")


@dataclass(slots=True, eq=False, repr=False)
class ListenerFilters:
    """Compiles the filters of listeners."""

    resources: ResourceSet
    backends: BackendCompiler
    pipelines: Pipelines
    routes: RouteCompiler
    tls_policies: BackendTlsPolicies

    def compile(self, plan: ListenerPlan, layers: Layers) -> None:
        """Give the plan its filters, or refuse the listener. `layers` are those of the listener."""
        written = plan.listener.http_filters
        if not written or plan.problem:
            return
        scopes = LimitScopes(str(plan.gateway), str(plan.gateway))
        placed: list[RankedExtension] = []
        auths: list[ExternalAuthIR] = []
        for index, entry in enumerate(written):
            if entry.external_auth is not None:
                auths += self._asked(plan, entry, entry.external_auth, index, layers, scopes)
            else:
                placed += self._pipeline(plan, entry, index)
        called = self.routes.backend_refs.with_calls(placed, layers, scopes)
        plan.pre_routing = PreRoutingIR(ordered(called), tuple(auths))

    def _asked(
        self, plan: ListenerPlan, entry: HttpListenerFilter, written: ExternalAuthFilter, index: int, layers: Layers,
        scopes: LimitScopes,
    ) -> tuple[ExternalAuthIR, ...]:  # fmt: skip
        where = _field(entry, index)
        try:
            self.backends.resolve(plan.owner, written.backend_ref, filter_protocols(written))
        except UnresolvedRef as unresolved:
            reason = "RefNotPermitted" if unresolved.reason == "RefNotPermitted" else _BAD_REF
            plan.refuse("ResolvedRefs", reason, f"{where}: externalAuth.backendRef: {unresolved.with_hint}")
            return ()
        target = object_key(self.resources, written.backend_ref, plan.owner.namespace)
        self.tls_policies.note_use(plan.gateway.key, (target,))
        place = external_auth_place(plan.owner, _FIRST + index, f"{plan.owner}, listener {plan.listener.name}")
        made = self.routes.asked(plan.owner, written, place, layers, scopes)
        if made.backend.backend is None:
            plan.conditions.add_note("Accepted", f"{where} refuses every request: {made.backend.error}.")
        return (made,)

    def _pipeline(self, plan: ListenerPlan, entry: HttpListenerFilter, index: int) -> tuple[RankedExtension, ...]:
        ref, where = entry.extension_ref, _field(entry, index)
        assert ref is not None
        if not self.pipelines.names(ref):
            message = f"{where}: {ref.kind} {ref.name} is not a PayloadProcessingPipeline, which a listener needs"
            plan.refuse("ResolvedRefs", _BAD_REF, message)
            return ()
        attachment = AttachmentPoint(ROUTE_LEVEL, f"{plan.owner}, listener {plan.listener.name}")
        try:
            made = self.pipelines.extensions(plan.owner, ref, attachment, _FIRST + index, index)
        except ExtensionRefNotFound as missing:
            plan.refuse("ResolvedRefs", _BAD_REF, f"{where}: {missing}")
            return ()
        except FilterNotSupported as error:
            plan.refuse("Accepted", "UnsupportedValue", f"{where}: {error}")
            return ()
        for one in made:
            if one.spec.type.startswith(_OF_RULES):
                message = f"{where}: {one.spec.name} ({one.spec.type}) belongs to a rule: name the pipeline there"
                plan.refuse("Accepted", "UnsupportedValue", message)
        return made


def _field(entry: HttpListenerFilter, index: int) -> str:
    return f"httpFilters[{entry.name or index}]"
