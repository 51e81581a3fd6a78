"""Our Gateways: their addresses, and admitted ListenerSets. Source: Gateway API v1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from egressproxy.config.compile.gateways.addresses import AddressBook
from egressproxy.config.compile.gateways.gateway_classes import ADDRESSES, ClassParameters, GatewayClasses
from egressproxy.config.compile.gateways.gateway_plan import GatewayPlan, SetPlan
from egressproxy.config.compile.gateways.gateway_tls import set_frontend_conditions
from egressproxy.config.compile.gateways.listener_conflicts import find_conflicts
from egressproxy.config.compile.gateways.listener_plan import plan_listener
from egressproxy.config.compile.interface import BUILTIN_CLASS, CONTROLLER, Defaults, Status, age_of, unserved
from egressproxy.config.compile.references import References
from egressproxy.config.compile.status import supported_features
from egressproxy.config.compile.status.conditions import Conditions
from egressproxy.config.reading.load import ResourceSet
from egressproxy.config.reading.problems import Problem
from egressproxy.config.resources.gateway import Gateway, GatewayAddress, GatewayClass, ListenerSet
from egressproxy.model.published_object import Key
from egressproxy.model.unix_socket import UNIX_SOCKET

#: A condition of our own: `supportedFeatures` holds the names of Gateway API's features, and 64 of them at most.
_FILTER_CATALOG = "egressproxy.io/FilterCatalog"
_CLASS_REMEDY = f"add a GatewayClass with controllerName: {CONTROLLER}"


def class_statuses(
    classes: GatewayClasses, generations: Mapping[Key, int], catalogue: Callable[[ClassParameters], str]
) -> dict[Key, Status]:
    """The status of every GatewayClass of ours. `catalogue` returns the location of the catalogue of filter types. It
    is called only if there is a class, since it searches the installed packages.
    """
    statuses: dict[Key, Status] = {}
    for name, parameters in classes.parameters.items():
        gateway_class = classes.by_name[name]
        conditions = Conditions(generations[gateway_class.key])
        if parameters.problem:
            conditions.set("Accepted", False, "InvalidParameters", parameters.problem)
        else:
            conditions.set("Accepted", True, "Accepted", "the class is served")
        conditions.set("SupportedVersion", True, "SupportedVersion", "the versions of its kinds are served")
        conditions.set(_FILTER_CATALOG, True, "Published", catalogue(parameters))
        features = [{"name": name} for name in sorted(supported_features.ROUTE_FEATURES)]
        statuses[gateway_class.key] = {"conditions": conditions.to_list(), "supportedFeatures": features}
    return statuses


def plan_gateways(
    resources: ResourceSet, references: References, defaults: Defaults, generations: Mapping[Key, int],
    classes: GatewayClasses,
) -> tuple[list[GatewayPlan], list[Problem]]:  # fmt: skip
    """All Gateways of ours, oldest first, with checked listeners (without routes); and warnings."""
    warnings: list[Problem] = []
    named = classes.by_name
    ours = [gateway for gateway in sorted(resources.of(Gateway), key=age_of) if _is_ours(gateway, named, warnings)]
    sets = _sets_by_gateway(resources, references, warnings)
    taken = [gateway for gateway in ours if not _why_not_taken(gateway, defaults)]
    asked = {address.ip for gateway in taken for address in gateway.spec.addresses if address.ip}
    book = AddressBook(defaults.bind_addresses, asked)
    plans: list[GatewayPlan] = []
    for gateway in ours:
        number = generations[gateway.key]
        plan = GatewayPlan(gateway, Conditions(number))
        set_frontend_conditions(gateway, plan.conditions)
        for listener in gateway.spec.listeners:
            plan.listeners.append(plan_listener(gateway, gateway, listener, references, number))
        _add_listener_sets(plan, sets.get(gateway.key, ()), references, generations, defaults)
        _refuse_insecure_fallback(plan, defaults)
        find_conflicts(plan.listeners)
        parameters = classes.of(gateway.spec.gateway_class_name)
        _find_refusal(plan, parameters, defaults)
        if not plan.problem:
            _find_addresses(plan, book, defaults, parameters.addresses)
            _refuse_unbound(plan, defaults)
            _claim_ports(plan, book)
        plans.append(plan)
    return plans, warnings


def of_other_controllers(resources: ResourceSet) -> Iterator[Problem]:
    """Notes about Gateways of other controllers, for a configuration without a Gateway of ours."""
    classes = {c.name: c.spec.controller_name for c in resources.of(GatewayClass)}
    for gateway in resources.of(Gateway):
        name = gateway.spec.gateway_class_name
        controller = classes.get(name, CONTROLLER)
        if controller != CONTROLLER:
            message = f"GatewayClass {name} is of the controller {controller}: the Gateway is not served"
            remedy = f"write controllerName: {CONTROLLER} in it, or another gatewayClassName, if it is meant for us"
            yield unserved(gateway, "spec.gatewayClassName", message, remedy, "GatewayClassOfOthers")


def _is_ours(gateway: Gateway, classes: dict[str, GatewayClass], warnings: list[Problem]) -> bool:
    name = gateway.spec.gateway_class_name
    found = classes.get(name)
    if found is not None:
        return found.spec.controller_name == CONTROLLER
    if name == BUILTIN_CLASS:
        return True
    ours = {c.name for c in classes.values() if c.spec.controller_name == CONTROLLER}
    served = sorted(ours | ({BUILTIN_CLASS} - classes.keys()))
    remedy = f"write {' or '.join(served)}" if served else _CLASS_REMEDY
    message = f"there is no GatewayClass {name}: the Gateway is not served"
    warnings.append(unserved(gateway, "spec.gatewayClassName", message, remedy, "GatewayClassNotFound"))
    return False


def _refuse_insecure_fallback(plan: GatewayPlan, defaults: Defaults) -> None:
    for listener in plan.listeners:
        clients = listener.tls.clients if listener.tls is not None else None
        if clients is not None and clients.takes_any and not defaults.can_take_any_certificate():
            message = "mode AllowInsecureFallback is not possible with the OpenSSL of this Python: use AllowValidOnly"
            listener.refuse("Accepted", "UnsupportedValue", message)


def _why_not_taken(owner: Gateway | ListenerSet, defaults: Defaults) -> str:
    """Why a cluster's object may not bind addresses of the operator's machine here, "" if it may."""
    namespaces = defaults.gateway_namespaces
    if not namespaces or not owner.origin.is_from_cluster or owner.namespace in namespaces:
        return ""
    listed = ", ".join(namespaces)
    return f"{owner.KIND}s of namespace {owner.namespace} are not taken: --gateway-namespace permits {listed}"


def _find_refusal(plan: GatewayPlan, parameters: ClassParameters, defaults: Defaults) -> None:
    spec = plan.gateway.spec
    if why := _why_not_taken(plan.gateway, defaults):
        plan.refuse("NotAllowed", why)
    if parameters.problem:
        plan.refuse(
            "InvalidParameters", f"GatewayClass {spec.gateway_class_name} is not accepted: {parameters.problem}"
        )
    if spec.infrastructure is not None and spec.infrastructure.parameters_ref is not None:
        ref = spec.infrastructure.parameters_ref
        plan.refuse("InvalidParameters", f"infrastructure.parametersRef: no parameters of kind {ref.kind} are known")
    for address in spec.addresses:
        if address.type not in ("IPAddress", UNIX_SOCKET):
            message = f"addresses of type {address.type} are not supported: use IPAddress or {UNIX_SOCKET}"
            plan.refuse("UnsupportedAddress", message)
    ports = {listener.listener.port for listener in plan.listeners if not listener.problem}
    if len(ports) > 1 and any(address.unix for address in spec.addresses):
        message = f"a Unix socket is one port, and the listeners have {len(ports)}: make a Gateway for each"
        plan.refuse("UnsupportedAddress", message)
    plan.refuse_without_listeners()


def _find_addresses(plan: GatewayPlan, book: AddressBook, defaults: Defaults, of_class: Collection[str]) -> None:
    """Set the addresses: `spec.addresses`, else the class's, else the process's. Status reports addresses that this
    machine lacks.
    """
    spec = plan.gateway.spec
    refused = {id(each): why for each in spec.addresses if (why := _why_not_routable(each, defaults))}
    plan.unassigned = tuple(refused.values())
    addresses = [each for each in spec.addresses if id(each) not in refused]
    if refused and not addresses:
        plan.unusable = ("AddressNotAssigned", "; ".join(plan.unassigned))
        for listener in plan.listeners:
            listener.leave_out(*plan.unusable)
        return
    asked = {address.ip: defaults.why_unusable(address.ip) for address in addresses if address.ip}
    if not addresses or not all(address.ip or address.unix for address in addresses):
        ports = {listener.listener.port for listener in plan.listeners if not listener.problem}
        chosen = book.choose(plan.gateway.full_name, ports, of_class)
        asked |= {address: defaults.why_unusable(address) if of_class else "" for address in chosen}
        if not chosen:
            whose = f"the {ADDRESSES} of its GatewayClass" if of_class else "--bind"
            message = f"every address of {whose} has a Gateway on these ports: give a larger network, or spec.addresses"
            plan.unusable = ("AddressNotAssigned", message)
    found = [address for address, why in asked.items() if not why]
    missing = [f"{address} ({why})" for address, why in asked.items() if why]
    found += [str(address.unix) for address in addresses if address.unix is not None]
    if missing:
        served = "; the Gateway is served on its other addresses" if found else ""
        field = f"the {ADDRESSES} of its GatewayClass" if of_class and not spec.addresses else "spec.addresses"
        remedy = f"correct {field}, or give this machine the address and reload"
        plan.unusable = ("AddressNotUsable", f"these addresses cannot be bound: {', '.join(missing)}{served}: {remedy}")
    plan.addresses = tuple(dict.fromkeys(found))
    if not found and plan.unusable is not None:
        for listener in plan.listeners:
            listener.leave_out(*plan.unusable)


def _why_not_routable(address: GatewayAddress, defaults: Defaults) -> str:
    """Why an address cannot be reached as its `routability` demands, "" if it can. Source: GEP-5093."""
    scope, named = address.routability, address.value or address.type
    if scope is None:
        return ""
    if address.unix is not None:
        return f"{named}: a Unix socket is reachable on this machine alone, and not {scope}: leave routability out"
    if scope == "External":
        return ""
    if scope != "Cluster":
        return f"{named}: routability {scope} is not known here: write External or Cluster"
    if address.value:
        return f"{named}: an address of routability Cluster is that of a Service: leave value out"
    if not defaults.has_service:
        return (
            f"{named}: an address of routability Cluster is that of a Service: run with --source kubernetes and"
            " --publish-service"
        )
    return ""


def _sets_by_gateway(
    resources: ResourceSet, references: References, warnings: list[Problem]
) -> dict[Key, list[ListenerSet]]:
    found: dict[Key, list[ListenerSet]] = defaultdict(list)
    for listener_set in sorted(resources.of(ListenerSet), key=age_of):
        ref = listener_set.spec.parent_ref
        key = (ref.group, ref.kind, ref.namespace or listener_set.namespace, ref.name)
        found[key].append(listener_set)
        if resources.named(*key) is None:
            message = f"{ref.kind} {key[2]}/{ref.name} does not exist: the ListenerSet is not served"
            remedy = references.suggestions.remedy(*key, "name it in parentRef")
            warnings.append(unserved(listener_set, "spec.parentRef", message, remedy, "ParentNotFound"))
    return found


def _add_listener_sets(
    plan: GatewayPlan, sets: Iterable[ListenerSet], references: References, generations: Mapping[Key, int],
    defaults: Defaults,
) -> None:  # fmt: skip
    """Add the listeners of admitted ListenerSets, oldest set first."""
    gateway = plan.gateway
    allowed = gateway.spec.allowed_listeners.namespaces
    for listener_set in sets:
        number = generations[listener_set.key]
        attached = SetPlan(listener_set, Conditions(number))
        plan.sets.append(attached)
        if why := _why_not_taken(listener_set, defaults):
            attached.refuse("NotAllowed", "NotAllowed", why)
            continue
        if not references.is_allowed(allowed, listener_set.namespace, gateway.namespace):
            message = f"allowedListeners of {gateway} do not admit ListenerSets of namespace {listener_set.namespace}"
            attached.refuse("NotAllowed", "NotAllowed", message)
            continue
        for listener in listener_set.spec.listeners:
            plan.listeners.append(plan_listener(gateway, listener_set, listener, references, number))


def _refuse_unbound(plan: GatewayPlan, defaults: Defaults) -> None:
    """Leave out unbindable addresses of a cluster's objects. In a file such an address refuses the whole file."""
    for listener in plan.listeners if defaults.unbound else ():
        if not listener.owner.origin.is_from_cluster:
            continue
        for address in plan.addresses:
            if why := defaults.unbound.get((address, listener.listener.port)):
                listener.refuse("Accepted", "PortUnavailable", why)


def _claim_ports(plan: GatewayPlan, book: AddressBook) -> None:
    """Claim the ports; on a conflict the younger Gateway's listener stays closed. A Gateway without a valid listener
    claims no ports for its ListenerSets.
    """
    remedy = "give this Gateway spec.addresses or another port, or the process a network (--bind)"
    for listener in plan.listeners:
        port = listener.listener.port
        for address in plan.addresses:
            holder = book.holder(port, address)
            if holder is not None:
                message = f"port {port} of {address} belongs to Gateway {holder}: {remedy}"
                listener.refuse("Accepted", "PortUnavailable", message)
                break
    plan.recheck_listeners()
    for port in {listener.listener.port for listener in plan.listeners if not listener.problem}:
        for address in plan.addresses:
            book.take(port, address, plan.gateway.full_name)
