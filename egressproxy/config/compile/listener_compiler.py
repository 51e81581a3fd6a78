"""ListenerCompiler: the IR of a listener, for all clients and for the subjects of its policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from ipaddress import ip_address

from egressproxy.config.compile.gateways.gateway_plan import GatewayPlan
from egressproxy.config.compile.gateways.listener_plan import ListenerPlan
from egressproxy.config.compile.policies.denials import DeniedBackends
from egressproxy.config.compile.policies.layers import Layers, Level, narrowing
from egressproxy.config.compile.policies.policy_attachment import PolicyAttachments
from egressproxy.config.compile.policies.subjects import (
    NOBODY,
    SubjectNotes,
    claims_of,
    client_sets,
    closed_to_clients,
    subject_ir,
)
from egressproxy.config.compile.routes.route_compiler import RouteCompiler
from egressproxy.config.compile.routes.route_validation import RouteValidation
from egressproxy.config.compile.routes.served_routes import ServedRoutes
from egressproxy.config.resources.routes import AnyRoute, GrpcRoute, HttpRoute
from egressproxy.ir.gateway import KeyUrlIR, ListenerIR, ListenerProtocol, VariantIR
from egressproxy.ir.name_server import NameAddresses
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.listening_place import DATAGRAMS, is_connection
from egressproxy.model.published_object import Key
from egressproxy.model.unix_socket import is_unix

#: The condition of an object that leads to a place which policy denies.
DENIED = "egressproxy.io/Denied"


class ListenerCompiler:
    """`notes`: what holds for the subjects of policies alone, for status."""

    def __init__(self, policies: PolicyAttachments, routes: RouteCompiler, denials: DeniedBackends) -> None:
        self.notes = SubjectNotes()
        self._policies = policies
        self._routes = routes
        self._denials = denials
        self._narrowing = cache(narrowing)

    def layers_of(self, listener: ListenerPlan) -> Layers:
        """The policies of a listener: of its Gateway, its ListenerSet, and its own."""
        layers = self._policies.layer(Level.GATEWAY, listener.gateway.key)
        if listener.owner is not listener.gateway:
            if listener.owner.namespace != listener.gateway.namespace:
                layers = tuple(map(self._narrowing, layers))
            layers += self._policies.layer(Level.LISTENER, listener.owner.key)
        return layers + self._policies.layer(Level.LISTENER, listener.owner.key, listener.listener.name)

    def sentences(
        self, route: AnyRoute, listener: ListenerPlan, validation: RouteValidation,
        backends: Sequence[WeightedBackend], mirrored: Sequence[WeightedBackend],
    ) -> Iterator[tuple[str, str, str]]:  # fmt: skip
        """What policies close of a route on a listener: for conditions, with type and reason."""
        for error in validation.unreported(backends):
            is_elsewhere = any(each.is_elsewhere and each.error == error for each in backends)
            code = 403 if is_elsewhere else 500
            yield "Accepted", "Accepted", f"Listener {listener.name} answers {code} for some requests: {error}."
        for error in validation.unreported(mirrored):
            yield "Accepted", "Accepted", f"Listener {listener.name} mirrors less than is written: {error}."
        are_streams = not isinstance(route, HttpRoute | GrpcRoute)
        for sentence in self._denials.sentences(listener.name, backends, mirrored, are_streams=are_streams):
            yield DENIED, "DestinationDenied", sentence

    def listener(self, gateway: GatewayPlan, plan: ListenerPlan, served: ServedRoutes) -> ListenerIR:
        """The listener with the routes that it serves."""
        with self._policies.for_clients(NOBODY, served.met):
            self.layers_of(plan)
            made = self._listener_of(gateway, plan, served)
        for said in (*self._default_sentences(plan, made.default_backend), *_name_server_sentences(made)):
            self.notes.report(plan.conditions, *said)
        return self._with_variants(made, gateway, plan, served) if served.met else made

    def _default_sentences(self, plan: ListenerPlan, default: WeightedBackend | None) -> Iterator[tuple[str, str, str]]:
        """As `sentences`, of what no route matches."""
        if default is None:
            return
        if default.backend is None:
            code = 403 if default.is_elsewhere else 500
            sentence = f"Destinations that no route matches are answered with {code}: {default.error}."
            yield "Accepted", "Accepted", sentence
        for sentence in self._denials.sentences(plan.name, (default,), ()):
            yield DENIED, "DestinationDenied", sentence

    def _with_variants(
        self, made: ListenerIR, gateway: GatewayPlan, plan: ListenerPlan, served: ServedRoutes
    ) -> ListenerIR:
        """The listener with what it is for clients that fit `subjects`."""
        is_complete, identity = False, made.policy.identity
        own_domain = identity.trust_domain if identity is not None else ""
        while not is_complete:  # another parent, say, may have policies of its own
            policies, met = self._policies.with_subjects(served.met), len(served.met)
            found = client_sets(policies, own_domain, self._policies.foreign_at(served.met))
            variants = tuple(
                VariantIR(frozenset(f"{key[2]}/{key[3]}" for key in each), self._variant(gateway, plan, served, each))
                for each in found.sets
            )
            is_complete = met == len(served.met)
        for policy in policies:
            self._policies.note_bound(policy, plan.name, found.at_most)
        for holding, variant in zip(found.sets, variants, strict=True):
            for sentence in closed_to_clients(made, variant.listener):
                for key in holding:
                    self._policies.note(key, f"For its subjects {sentence}")
        subjects = tuple(
            (each.full_name, tuple(subject_ir(subject, own_domain) for subject in each.spec.subjects))
            for each in policies
        )
        if identity is not None:
            claims = tuple(sorted({*identity.claims, *claims_of(policies)}))
            made = replace(made, policy=replace(made.policy, identity=replace(identity, claims=claims)))
        return replace(made, subjects=subjects, variants=variants)

    def _variant(
        self, gateway: GatewayPlan, plan: ListenerPlan, served: ServedRoutes, holding: frozenset[Key]
    ) -> ListenerIR:
        notes = self.notes
        with self._policies.for_clients(holding, served.met):
            own = ServedRoutes(self.layers_of(plan))
            for added in served.added:
                if own.layers == served.layers and not self._policies.is_touched(added.met, holding):
                    own.serve(added)
                    continue
                route, validation, conditions = added.route, added.validation, added.conditions
                backends, mirrored = own.add(route, added.attachment, validation, conditions, self._routes)
                for said in self.sentences(route, plan, validation, backends, mirrored):
                    notes.add(conditions, *said, holding)
            made = self._listener_of(gateway, plan, own)
        for said in self._default_sentences(plan, made.default_backend):
            notes.add(plan.conditions, *said, holding)
        if made.policy.identity is not None:  # who the client is was asked before
            made = replace(made, policy=replace(made.policy, identity=None), key_urls=())
        return made

    def _listener_of(self, gateway: GatewayPlan, plan: ListenerPlan, served: ServedRoutes) -> ListenerIR:
        assert plan.protocol is not None
        policy, extensions, default, auths = self._routes.without_route(plan, served.layers)
        issuers = policy.identity.issuers if policy.identity is not None else ()
        key_urls = tuple(
            KeyUrlIR(each.issuer, each.key_path, self._routes.backend_refs.of_issuer(each, served.layers))
            for each in issuers
            if each.key_path
        )
        addresses = gateway.addresses
        if plan.protocol is ListenerProtocol.DNS:
            addresses += tuple(f"{DATAGRAMS}{address}" for address in addresses if not is_unix(address))
        return ListenerIR(
            gateway=gateway.gateway.full_name,
            name=plan.name,
            addresses=addresses,
            port=plan.listener.port,
            protocol=plan.protocol,
            hostname=plan.hostname,
            tls=plan.tls,
            http_routes=tuple(served.http),
            tls_routes=tuple(served.tls),
            tcp_routes=tuple(served.tcp),
            policy=policy,
            extensions=extensions,
            default_backend=default,
            auths=auths if default is not None else (),
            key_urls=key_urls,
            pre_routing=plan.pre_routing,
        )


def _name_server_sentences(made: ListenerIR) -> Iterator[tuple[str, str, str]]:
    """As `ListenerCompiler.sentences`, of a listener of DNS that does not know what to answer."""
    settings = made.policy.name_server
    if made.protocol is not ListenerProtocol.DNS or settings.addresses is NameAddresses.RESOLVED:
        return
    bound = [ip_address(address) for address in made.addresses if is_connection(address)]
    if not settings.gateway_addresses and all(address.is_unspecified for address in bound):
        sentence = (
            "Queries are answered with SERVFAIL: nameServer.addresses is Gateway, which listens on every address, so "
            "that its own is not known; write nameServer.gatewayAddresses in an EgressPolicy."
        )
        yield "Accepted", "Accepted", sentence
