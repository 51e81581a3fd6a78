"""ReusableComponents: clusters, chains of filters and destination policies, one for all equal settings of a snapshot.

Those with an equal spec in the snapshot before are kept: clusters with their pools, filters with their buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Filter, Phase
from egressproxy.filters.chain import NO_FILTERS, Chain, compile_chain
from egressproxy.filters.configured_filter import BackendWatches, ConfiguredFilter
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.network import Network
from egressproxy.gateway.own_calls.backend_call import BackendCall
from egressproxy.ir.backend import ConnectionIR
from egressproxy.ir.policy import AddressesIR, Callee, DestinationsIR, ExtensionIR, PolicyIR
from egressproxy.ir.route import WeightedBackend
from egressproxy.model.exchange import StateSlot
from egressproxy.routing.destinations import Denial, DestinationPolicy
from egressproxy.telemetry.counters import CallCounts
from egressproxy.telemetry.event_aggregator import EventAggregator


class ReusableComponents:
    """Makes each part at its first use. `known` are the clusters in service."""

    def __init__(
        self,
        network: Network,
        filters: FilterInstances,
        known: Mapping[ConnectionIR, Cluster],
        notices: EventAggregator,
    ) -> None:
        self.clusters: dict[ConnectionIR, Cluster] = {}
        #: Known clusters that serve whatever addresses their Service has by now, by its name and port.
        self.services: dict[tuple[str, int], list[Cluster]] = {}
        self._network = network
        self._filters = filters
        self._known = known
        self._notices = notices
        self._chains: dict[tuple[ExtensionIR, ...], Chain] = {}
        self._asking: dict[ExtensionIR, ConfiguredFilter] = {}  # the gateway's own filters, each of one rule
        self._destinations: dict[tuple[DestinationsIR, tuple[str, ...]], DestinationPolicy] = {}
        #: One object for all equal ones, those in service first: long lists compare slowly, but for the same object.
        self._addresses = {spec.addresses: spec.addresses for spec in known}
        self._known_addresses: dict[int, AddressesIR] = {}
        self._known_destinations: dict[tuple[int, int], DestinationPolicy] = {}  # by identity: long lists hash slowly
        self.system_roots = ""  # the mark of the system's CA certificates
        self.watches: BackendWatches | None = None  # on placeholders of credentials, where there are any

    def forget_chains(self) -> None:
        """Their filters have changed."""
        self._chains.clear()
        self._asking.clear()

    def place_own(
        self, route: str, spec: ExtensionIR, made: Filter, *, also: frozenset[Phase] = frozenset(),
        mark: StateSlot[bool] | None = None,
    ) -> ExtensionIR:  # fmt: skip
        """Place a filter of our own, for one rule (`also`, `mark`: as of ConfiguredFilter). Returns the spec to find
        it.
        """
        spec = replace(spec, scope=f"{route}, question {len(self._asking)}")
        self._asking[spec] = ConfiguredFilter(spec, made, also, mark=mark, notices=self._notices)
        return spec

    def reachable(self, weighted: WeightedBackend) -> tuple[Denial | None, Cluster | None]:
        """The `deny` entry that holds for this backend itself, and its cluster; None where that entry closes it."""
        denied = self.denial(weighted)
        is_closed = denied is not None and denied.holds(weighted.policy.mode)
        return denied, None if is_closed else self.cluster(weighted)

    def called(self, name: str, callee: Callee, counts: CallCounts) -> BackendCall:
        """The call of a backend that the filter of this name refers to."""
        assert isinstance(callee, WeightedBackend)
        denied, cluster = self.reachable(callee)
        fault: GatewayError | None = None
        if cluster is None:
            invalid = GatewayFault(Reason.BACKEND_INVALID, callee.error or "the backend cannot be used")
            fault = denied.error() if denied is not None else invalid
        backend = callee.backend.label if callee.backend is not None else "-"
        return BackendCall(name, backend, cluster, self.chain(callee.extensions), fault, counts)

    def denial(self, weighted: WeightedBackend) -> Denial | None:
        """The `deny` entry that holds for this backend itself, whatever its clients ask for."""
        if weighted.backend is None or not weighted.policy.destinations.deny:
            return None
        return self.destination_policy(weighted.policy).explicit_deny_of(weighted.backend)

    def cluster(self, weighted: WeightedBackend) -> Cluster | None:
        """The cluster of this backend: the known one of an equal ConnectionIR. None: the backend is invalid."""
        if weighted.backend is None:
            return None
        policy = weighted.policy
        times = policy.timeouts
        spec = ConnectionIR(
            weighted.backend, policy.dns, self._shared(policy.addresses), times.connect_s, times.tls_handshake_s,
            times.idle_s, policy.kept, policy.resilience, self.system_roots,
            weighted.backend.source_address or policy.source_address,
        )  # fmt: skip
        found = self.clusters.get(spec)
        if found is None:
            found = self._known.get(spec) or self._with_other_addresses(spec) or Cluster(spec, self._network)
            self.clusters[spec] = found
        return found

    def _with_other_addresses(self, spec: ConnectionIR) -> Cluster | None:
        """The one among `services` that differs in its addresses alone."""
        backend = spec.backend
        for each in self.services.get((backend.name, backend.port), ()):
            if each.spec == replace(spec, backend=replace(backend, endpoints=each.spec.backend.endpoints)):
                return each
        return None

    def _shared(self, addresses: AddressesIR) -> AddressesIR:
        """The one object that stands for all equal address rules."""
        found = self._known_addresses.get(id(addresses))
        if found is None:
            found = self._known_addresses[id(addresses)] = self._addresses.setdefault(addresses, addresses)
        return found

    def chain(self, extensions: tuple[ExtensionIR, ...]) -> Chain:
        """The chain of these filters, made once for equal ones unless a filter wants one for each place."""
        if not extensions:
            return NO_FILTERS
        found = self._chains.get(extensions)
        if found is None:
            found = compile_chain(extensions, self._placed)
            if not found.is_of_one_place:
                self._chains[extensions] = found
        return found

    def backend_chain(self, extensions: tuple[ExtensionIR, ...]) -> Chain:
        """As `chain`, for requests of clients to a backend: first comes the watch on placeholders, if there are any."""
        return self._watched(self.watches.on(extensions) if self.watches is not None else None, extensions)

    def rule_chain(self, extensions: tuple[ExtensionIR, ...], *, has_backends: bool = True) -> Chain:
        """As `chain`, for requests of clients to a rule: the watch on their bodies comes first. Of a rule without
        backends (Envoy knows them, see `serve-filters`) it is the chain of the backend, too, with that watch.
        """
        if self.watches is None:
            return self.chain(extensions)
        if not has_backends:
            watch = self.watches.on(extensions)
            if watch is not None:
                self._asking[watch.spec] = watch
                extensions = (watch.spec, *extensions)
        return self._watched(self.watches.on_bodies(), extensions)

    def _watched(self, watch: ConfiguredFilter | None, extensions: tuple[ExtensionIR, ...]) -> Chain:
        if watch is None:
            return self.chain(extensions)
        self._asking[watch.spec] = watch
        return self.chain((watch.spec, *extensions))

    def destination_policy(self, policy: PolicyIR) -> DestinationPolicy:
        """The destination rules of a policy, made once for equal ones."""
        identity = (id(policy.destinations), id(policy.sources))  # the configuration lives as long as this
        found = self._known_destinations.get(identity)
        if found is None:
            key = (policy.destinations, policy.sources)
            found = self._destinations.get(key)
            if found is None:
                found = self._destinations[key] = DestinationPolicy(policy.destinations, policy.sources)
            self._known_destinations[identity] = found
        return found

    def _placed(self, spec: ExtensionIR) -> ConfiguredFilter:
        return self._asking.get(spec) or self._filters.place_or_close(spec)
