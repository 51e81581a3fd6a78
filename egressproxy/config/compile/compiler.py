"""The whole compilation: from resources to one ConfigIR and the status of every object. Pure but for the clock.

The order: references and Services, Gateways and their listeners, policies, backends, then routes on the listeners they
attach to; status last, when everything is known. Load errors that only show here are collected and raised together,
before anything is given out; everything else that is wrong is a condition in status, and the rest works.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from egressproxy.config.compile.backends.backend_compiler import BackendCompiler
from egressproxy.config.compile.backends.backend_references import BACKEND_KINDS, DestinationBackend
from egressproxy.config.compile.backends.backend_status import backend_statuses, same_name_notes
from egressproxy.config.compile.backends.backend_tls import BackendTlsPolicies
from egressproxy.config.compile.backends.services import Services
from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler, as_backend_ref
from egressproxy.config.compile.extensions.extension_faults import EXCHANGE_ENDPOINT, INJECTOR
from egressproxy.config.compile.extensions.filter_types import FilterTypes
from egressproxy.config.compile.extensions.pipelines import Pipelines
from egressproxy.config.compile.gateways.attachment import Attachment, Parents, Rejection
from egressproxy.config.compile.gateways.client_certificates import add_certificate_rules
from egressproxy.config.compile.gateways.gateway_classes import ClassParameters, GatewayClasses
from egressproxy.config.compile.gateways.gateway_compiler import class_statuses, of_other_controllers, plan_gateways
from egressproxy.config.compile.gateways.gateway_plan import GatewayPlan
from egressproxy.config.compile.gateways.gateway_tls import ClientCertificates
from egressproxy.config.compile.gateways.listener_plan import OUT_OF_TIME, ListenerPlan
from egressproxy.config.compile.interface import (
    CATALOG,
    Compiled,
    Defaults,
    FilterCatalog,
    Materials,
    Status,
    age_of,
    problem_at,
    unserved,
)
from egressproxy.config.compile.listener_compiler import DENIED, ListenerCompiler
from egressproxy.config.compile.listener_filters import ListenerFilters
from egressproxy.config.compile.policies.credential_exposure import CredentialDns
from egressproxy.config.compile.policies.denials import DeniedBackends
from egressproxy.config.compile.policies.identity import exchanged_at, expired_api_keys
from egressproxy.config.compile.policies.layers import Level
from egressproxy.config.compile.policies.policy_attachment import PolicyAttachments
from egressproxy.config.compile.policies.policy_filters import PolicyFilters
from egressproxy.config.compile.policies.subjects import NOBODY
from egressproxy.config.compile.references import References, UnresolvedRef
from egressproxy.config.compile.routes.backend_refs import BackendRefCompiler
from egressproxy.config.compile.routes.route_compiler import RouteCompiler, is_dynamic
from egressproxy.config.compile.routes.route_validation import RouteValidation, RouteValidator, set_route_conditions
from egressproxy.config.compile.routes.served_routes import ServedRoutes
from egressproxy.config.compile.status.conditions import (
    Conditions,
    ReferenceConditions,
    first_seen,
    generations_of,
    keep_times,
    state_kept,
    state_unread,
)
from egressproxy.config.compile.telemetry import TelemetryPolicies
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import Problem, Severity
from egressproxy.config.resources.backend import Backend
from egressproxy.config.resources.core import ConfigMap, Service
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.config.resources.routes import AnyRoute, GrpcRoute, HttpRoute, TcpRoute, TlsRoute
from egressproxy.config.resources.x_backend import XBackend
from egressproxy.ir.gateway import ConfigIR, ListenerIR
from egressproxy.ir.policy import Mode
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.certificate import CertificateUse
from egressproxy.model.encoding import rfc3339
from egressproxy.model.published_object import Key

_PERMITS_NOTHING = (
    "the route names no hostnames, so destinations decide where its Dynamic backend leads, and no destinations.allow "
    "holds on listener {}: it can reach nothing"
)
_NAME_A_PARENT = "name the Gateway under parentRefs"
#: A parentRef of this group and kind is for a mesh (GEP-1294): proxies beside the pods, which this is not.
_SERVICE = ("", "Service")
_MESH = "a Service as parent is for a mesh, and is not served here"
_NOTHING_SERVED = "no listener is served: no client is answered"
_SERVE_SOMETHING = "add a Gateway with gatewayClassName: egressproxy, or mend what is told of its listeners"


def compile_config(
    resources: ResourceSet, catalog: FilterCatalog, defaults: Defaults, previous: Compiled | None = None
) -> Compiled:
    """Compile what can be compiled of a configuration. `previous` is the one in service: times, generations and counts
    go on from it.

    A result with `problems` must not go into service, since denied requests might pass. They are the load errors that
    the schema of the kinds could not see: an extension in a phase where its type cannot run, a config that does not fit
    the type.
    """
    previous = previous or Compiled(ConfigIR((), 0))
    generations, written = generations_of(resources, previous)
    run = _Run(resources, catalog, defaults, generations, previous.materials)
    listeners = run.compile()
    statuses = run.statuses()
    if not listeners:
        run.warnings.extend(of_other_controllers(resources))
        run.warnings.append(
            Problem("", 0, 0, "", "", _NOTHING_SERVED, _SERVE_SOMETHING, Severity.UNSERVED, "NothingServed")
        )
    run.warn_of_certificates(time.time())
    run.warn_of_api_keys()
    now = rfc3339(time.time())
    keep_times(statuses, previous.statuses, now)
    return Compiled(
        spec=ConfigIR(listeners, previous.spec.generation + 1, defaults.system_roots, defaults.telemetry.collectors),
        statuses=statuses,
        generations=generations,
        warnings=tuple(run.warnings),
        written=written,
        created=first_seen(resources, previous),
        filter_types={each.name: each.described for each in run.filter_types.all()},
        validities=tuple(sorted(validity for validity, _ in run.references.validities.values())),
        materials=run.references.materials,
        problems=run.problems,
        users=run.users,
    )


class _Run:
    def __init__(
        self, resources: ResourceSet, catalog: FilterCatalog, defaults: Defaults, generations: Mapping[Key, int],
        materials: Materials,
    ) -> None:  # fmt: skip
        self.warnings: list[Problem] = []
        self._catalog = catalog
        self._resources = resources
        self._defaults = defaults
        self._generations = generations
        self.references = References(resources, materials)
        self._tls_policies = BackendTlsPolicies(resources, self.references)
        self._classes = GatewayClasses(resources)
        self.filter_types = FilterTypes(resources, catalog, self.references, self._classes.types)
        self._extensions = ExtensionCompiler(catalog, self.filter_types, self.references)
        self._pipelines = Pipelines(resources, self.references, self._extensions)
        self._policies = PolicyAttachments(resources, self.references, self._tls_policies, defaults.why_unusable)
        self._policy_filters = PolicyFilters(self._extensions, self._policies.access)
        self._services = Services(resources, self._tls_policies)
        self._backends = BackendCompiler(
            resources, self.references, self._services, self._tls_policies, self._extensions
        )
        self._certificates = ClientCertificates(resources, self.references)
        backend_refs = BackendRefCompiler(
            self._backends, self._policies, self._policy_filters, self._certificates, CredentialDns(self._policies)
        )
        self._routes = RouteCompiler(
            self._backends, backend_refs, self._policies, self._extensions, self._policy_filters, self._pipelines
        )
        self._validator = RouteValidator(
            self._backends, self._extensions, self._pipelines, defaults.check_pattern, defaults.experimental
        )
        self._listeners = ListenerCompiler(self._policies, self._routes, DeniedBackends(defaults.denials))
        self._filters = ListenerFilters(resources, self._backends, self._pipelines, self._routes, self._tls_policies)
        self._telemetry = TelemetryPolicies(resources, self.references, backend_refs, defaults.telemetry)
        self._plans: list[GatewayPlan] = []
        self._served: dict[ListenerPlan, ServedRoutes] = {}
        self._statuses: dict[Key, Status] = {}
        self._route_statuses: dict[Key, ReferenceConditions] = {}

    def compile(self) -> tuple[ListenerIR, ...]:
        """Everything but status."""
        self._plans, warnings = plan_gateways(
            self._resources, self.references, self._defaults, self._generations, self._classes
        )
        self.warnings += [*self._resources.warnings, *warnings]
        for plan in self._plans:
            self._certificates.set_condition(plan.gateway, plan.conditions)
        self._find_layers()
        for plan in self._plans:
            add_certificate_rules(plan.listeners, self._policies_of, self.references)
            for listener in plan.listeners:
                served = self._served[listener]
                with self._policies.for_clients(NOBODY, served.met):
                    self._filters.compile(listener, served.layers)
            plan.recheck_listeners()
        for policy in self._policies.objects:
            self._policy_filters.check(policy)
        self._policy_filters.check_access()
        ours = self._resources.by_key.get((ConfigMap.GROUP, ConfigMap.KIND, *CATALOG))
        if ours is not None and not ours.origin.is_from_cluster:
            message = "the catalogue of filter types has this name: it is made by the gateway"
            self._extensions.load_errors[problem_at(ours, "metadata.name", message, "remove the object")] = None
        self._pipelines.check()
        self._check_calls()
        # Reads every Backend, used or not, so that each has its status and its load errors are found.
        self._statuses.update(
            backend_statuses(
                self._resources,
                self._backends,
                self._extensions.faults,
                self._generations,
                self._defaults.why_unusable,
            )
        )
        for source in (*self._resources.of(Backend), *self._policies.objects):
            self._note_same_names(source)
        parents = Parents(self._plans, self.references)
        for route in sorted(self._all_routes(), key=age_of):
            self._attach(route, parents)
        for gateway_key, target in self._telemetry.collectors(self._gateways):
            self._tls_policies.note_use(gateway_key, (target,))
        return tuple(
            self._traced(self._listeners.listener(gateway, plan, self._served[plan]), gateway.gateway.key)
            for gateway in self._plans
            for plan in gateway.listeners
            if not plan.problem
        )

    def _traced(self, listener: ListenerIR, gateway: Key) -> ListenerIR:
        tracing = self._telemetry.of_gateway(gateway)
        return listener if tracing is None else replace(listener, tracing=tracing)

    @property
    def _gateways(self) -> Collection[Key]:
        """The served Gateways."""
        return {plan.gateway.key for plan in self._plans}

    @property
    def users(self) -> Mapping[Key, Collection[Key]]:
        """The Gateways whose routes lead to each backend."""
        return self._tls_policies.users

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The load errors."""
        return tuple(sorted(self._extensions.load_errors, key=attrgetter("file", "line", "column", "field_path")))

    def _check_calls(self) -> None:
        """Note what is wrong with references to backends in the configs of extensions, wherever those run."""
        takes_tokens = {name for policy in self._policies.objects for name in exchanged_at(policy)}
        for kind in BACKEND_KINDS:
            for backend in self._resources.of(kind):
                if isinstance(backend, DestinationBackend):
                    self._backends.own_extensions(backend)
        for spec, (owner, refs) in list(self._extensions.callers.items()):
            for where, ref in refs:
                try:
                    self._backends.resolve(owner, as_backend_ref(ref))
                except UnresolvedRef as unresolved:
                    self._extensions.faults[owner.key].note_backend(unresolved, where)
                    continue
                if (
                    spec.type.startswith(INJECTOR)
                    and self._backends.target_key(owner, as_backend_ref(ref)) == owner.key
                ):
                    self._extensions.faults[owner.key].note_own_backend(where)
                name = f"{self.references.namespace_of(owner, ref)}/{ref.name}"
                if where.endswith(EXCHANGE_ENDPOINT) and name not in takes_tokens:
                    self._extensions.faults[owner.key].note_token_endpoint(name, where)
        if self._extensions.named_backends:
            known = {each.full_name for kind in (*BACKEND_KINDS, Service) for each in self._resources.of(kind)}
            for key, where, name in self._extensions.named_backends:
                if name not in known:
                    self._extensions.faults[key].note_name(name, where)

    def statuses(self) -> dict[Key, Status]:
        """Every object's status, without times."""
        statuses = self._statuses
        self._listeners.notes.write(self._policies.objects)
        statuses.update((key, status.to_status()) for key, status in self._route_statuses.items())
        statuses.update(class_statuses(self._classes, self._generations, self._catalogue_sentence))
        statuses.update(self.filter_types.statuses(self._generations, self._extensions.faults))
        for plan in self._plans:
            plan.close()
            statuses.update(plan.statuses())
        statuses.update(self._tls_policies.statuses(self._generations))
        parents = self._backends.parents.problems(self._policies.objects)
        statuses.update(self._policies.statuses(self._generations, self._extensions.faults, parents))
        statuses.update(self._policies.access_statuses(self._generations))
        statuses.update(self._pipelines.statuses(self._generations))
        statuses.update(self._telemetry.statuses(self._generations, self._gateways))
        state_kept(statuses, self.references.kept, self._generations)
        state_unread(statuses, self._resources, self._generations)
        return statuses

    def _catalogue_sentence(self, parameters: ClassParameters) -> str:
        """Where the catalogue of filter types is, and which types it has, by support level; and what of the external
        one of a class is not among them.
        """
        levels: dict[str, list[str]] = {"core": [], "extended": [], "implementation-specific": []}
        for name in self._catalog.names():
            levels[self._catalog.support(name)].append(name)
        levels["implementation-specific"] += self.filter_types.names()
        listed = "; ".join(f"{level}: {', '.join(sorted(names))}" for level, names in levels.items() if names)
        sentence = f"ConfigMap {'/'.join(CATALOG)} has the schemas of the filter types. {listed}"
        if parameters.catalogue:
            known = {name for names in levels.values() for name in names}
            refused = [f"{name}: {why}" for name, why in self.filter_types.refused(parameters.catalogue)]
            without = [name for name in parameters.others if name not in known]
            refused += [f"{', '.join(without)}: no processor runs it, and it is not known here"] if without else []
            sentence += f". External: {parameters.catalogue}"
            if refused:
                sentence += f", of which is not accepted: {'; '.join(refused)}"
        return sentence

    def warn_of_certificates(self, now_s: float) -> None:
        """Warn of those that nothing can be done with at this time; a listener's status says it of its own."""
        for validity, source in self.references.validities.values():
            code = OUT_OF_TIME.get(validity.state(now_s))
            if code and validity.use is not CertificateUse.LISTENER:
                sentence = validity.sentence(now_s)
                self.warnings.append(problem_at(source, "", sentence, severity=Severity.WARNING, code=code))

    def warn_of_api_keys(self) -> None:
        """Warn of expired API keys."""
        for policy in self._policies.objects:
            for where, sentence in expired_api_keys(policy, self.references):
                severity = Severity.WARNING
                self.warnings.append(problem_at(policy, where, sentence, severity=severity, code="ExpiredApiKey"))

    def _warn_of_slices(self, targets: Iterable[Key]) -> None:
        """Warn of Services and XBackends without written endpoints: without a cluster nobody else writes them."""
        for key in sorted(targets):
            service, name = self._resources.get(*key), key[3]
            if isinstance(service, XBackend):
                self._warn_of_pods(service)
            if (
                isinstance(service, Service)
                and service.spec.type != "ExternalName"
                and not self._services.has_slices(service)
            ):
                message = "no EndpointSlice belongs to it, so that requests to it get 503"
                remedy = f"add one in this namespace with the label kubernetes.io/service-name: {name}"
                code = "NoEndpointSlice"
                self.warnings.append(problem_at(service, "", message, remedy, severity=Severity.WARNING, code=code))

    def _warn_of_pods(self, backend: XBackend) -> None:
        if backend.spec.endpoint_selector and not self._resources.has_cluster and not self._backends.selected(backend):
            message = "no ready Pod has its labels, so that requests to it get 503"
            remedy = (
                "add Pods with these labels and status.podIP to this namespace, or EndpointSlices with these labels"
            )
            self.warnings.append(problem_at(backend, "", message, remedy, severity=Severity.WARNING, code="NoPod"))

    def _note_same_names(self, source: Resource) -> None:
        for where, sentence in same_name_notes(source, self._backends):
            self.warnings.append(problem_at(source, where, sentence, severity=Severity.NOTE, code="SameName"))

    def _all_routes(self) -> list[AnyRoute]:
        of = self._resources.of
        return [*of(HttpRoute), *of(GrpcRoute), *of(TlsRoute), *of(TcpRoute)]

    def _policies_of(self, listener: ListenerPlan) -> Iterable[EgressPolicy]:
        return (policy for layer in self._served[listener].layers for policy in layer.policies)

    def _find_layers(self) -> None:
        """The policies of every listener; and which targets exist, for the status of the policies."""
        for plan in self._plans:
            for listener in plan.listeners:
                self._served[listener] = ServedRoutes(self._listeners.layers_of(listener))
        for route in self._all_routes():
            self._policies.layer(Level.ROUTE, route.key)
            for rule in route.spec.rules:
                if rule.name:
                    self._policies.layer(Level.RULE, route.key, rule.name)
        for kind in (*BACKEND_KINDS, Service):
            for backend in self._resources.of(kind):
                resolver = backend.spec.resolver if isinstance(backend, Backend) else None
                self._policies.layer(Level.BACKEND, backend.key, "", resolver)

    def _attach(self, route: AnyRoute, parents: Parents) -> None:
        """Attach a route wherever its parentRefs lead, and state its conditions for each."""
        hostnames: Sequence[str] = getattr(route.spec, "hostnames", ())
        status = ReferenceConditions("parents", self._generations[route.key])
        validation: RouteValidation | None = None
        found: dict[ListenerPlan, tuple[Attachment, Conditions]] = {}
        if not route.spec.parent_refs:
            message = "the route names no parentRefs and is not served"
            self.warnings.append(unserved(route, "spec.parentRefs", message, _NAME_A_PARENT, "NoParent"))
        self._note_same_names(route)
        of_mesh: list[int] = []
        for index, ref in enumerate(route.spec.parent_refs):
            outcome = parents.attach(route, hostnames, ref)
            if outcome is None:
                key = (ref.group, ref.kind, ref.namespace or route.namespace, ref.name)
                if (ref.group, ref.kind) == _SERVICE:
                    of_mesh.append(index)
                elif self._resources.named(*key) is None:
                    message = f"{ref.kind} {key[2]}/{ref.name} does not exist: the route is not served there"
                    remedy = self.references.suggestions.remedy(*key, "name it in parentRefs")
                    where = f"spec.parentRefs[{index}]"
                    self.warnings.append(unserved(route, where, message, remedy, "ParentNotFound"))
                continue
            validation = validation or self._validator.validate(route)
            conditions = status.add(ref)
            conflicts: list[str] = []
            if not isinstance(outcome, Rejection):
                conflict_of = {each: self._served[each.listener].conflict(route, each) for each in outcome}
                conflicts = list(filter(None, conflict_of.values()))
                left = [each for each, conflict in conflict_of.items() if not conflict]
                outcome = left or Rejection("HostnameConflict", "; ".join(conflicts))
            set_route_conditions(conditions, outcome, validation)
            if isinstance(outcome, Rejection):
                continue
            for note in conflicts:
                conditions.add_note("Accepted", f"It is not attached to another listener: {note}.")
            for attachment in outcome:
                if attachment.listener not in found:
                    found[attachment.listener] = (attachment, conditions)
                    attachment.listener.attached += conditions.holds("Accepted")
        if validation is None:
            self._set_mesh_conditions(route, of_mesh, status)
            return
        for index in of_mesh:
            where = f"spec.parentRefs[{index}]"
            self.warnings.append(problem_at(route, where, _MESH, severity=Severity.NOTE, code="MeshParent"))
        targets = self._backends.targets(route) if found else set()
        self._warn_of_slices(targets)
        for listener, (attachment, conditions) in found.items():
            served = self._served[listener]
            self._tls_policies.note_use(listener.gateway.key, targets)
            if conditions.holds("Accepted"):
                served.claim_hostnames(route, attachment, conditions)
            met: dict[tuple[Key, str], None] = {}
            with self._policies.for_clients(NOBODY, met):
                backends, mirrored = served.add(route, attachment, validation, conditions, self._routes)
            served.added[-1].met = met
            served.met |= met
            for error in validation.idle_endpoints(backends):
                conditions.add_note("Accepted", f"Listener {listener.name} does not use an endpoint of {error}.")
            if not hostnames and self._permits_nothing(backends, listener):
                conditions.set(DENIED, True, "NothingPermitted", _PERMITS_NOTHING.format(listener.name))
            for said in self._listeners.sentences(route, listener, validation, backends, mirrored):
                self._listeners.notes.report(conditions, *said)
        self._route_statuses[route.key] = status

    def _set_mesh_conditions(self, route: AnyRoute, of_mesh: Sequence[int], status: ReferenceConditions) -> None:
        """A route that no Gateway of ours serves, and that names Services as its parents: status says so for each."""
        for index in of_mesh:
            conditions = status.add(route.spec.parent_refs[index])
            conditions.set("Accepted", False, "UnsupportedValue", f"{_MESH}: {_NAME_A_PARENT} if it is meant for us")
        if of_mesh:
            self._route_statuses[route.key] = status

    def _permits_nothing(self, backends: Sequence[WeightedBackend], listener: ListenerPlan) -> bool:
        """Whether a route that names no host leads to a Dynamic backend, and no policy allows a host to anybody."""
        if self._served[listener].met or not any(map(is_dynamic, backends)):
            return False
        policy = self._policies.merge(self._served[listener].layers, is_routed=False).policy
        return policy.mode is Mode.ENFORCE and not any(policy.destinations.allow)
