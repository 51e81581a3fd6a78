"""What is in service, as plain values: what is left of limits, backends and endpoints, the Secrets in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from egressproxy.filters.filter_step import FilterStep
from egressproxy.filters.instances import FilterBuildError
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.recent_decisions import RecentDecision, decisions, subjects_of
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.work import Work
from egressproxy.operators.explain import merging
from egressproxy.operators.explain.decision_diff import decided_again
from egressproxy.operators.explain.denials import decision_about, denials
from egressproxy.operators.explain.render import BACKEND_PHASES, REQUEST_PHASES, TUNNEL_PHASES, steps_of

#: The most different recent requests whose limits are looked at.
MAX_ASKED: Final = 200
_LEVELS: Final = ("Gateway", "Route", "Backend")
#: Clients whose address is not known.
_SOMEBODY, _ANOTHER = "0.0.0.0:0", "0.0.0.1:0"


def limits(snapshot: Snapshot, accounting: Accounting) -> Work[list[dict[str, Any]]]:
    """The limits that hold for recent requests, as `merging.limits`. What counts for each address is told for clients
    that were denied alone: of others no address is remembered.
    """
    found: list[dict[str, Any]] = []
    for decision, identity, client in list(_requests(snapshot, accounting)):
        decided = decided_again(snapshot, decision)
        if decided is not None and decided.route is not None:
            decided.exchange.identity, decided.exchange.client = identity, client
            for step in _steps(decided.route, decided.exchange):
                found += _limits_of(step, decided.exchange)
        yield None
    return merging.limits(found)


def _requests(snapshot: Snapshot, accounting: Accounting) -> Iterator[tuple[RecentDecision, CallerIdentity, str]]:
    """Different requests with who has made them and from which address, the latest first."""
    every = [*((entry, _SOMEBODY) for entry in accounting.recent), *(each[:2] for each in accounting.denials)]
    every.sort(key=lambda each: each[0][0])
    told = decisions((entry for entry, _ in every), subjects_of(snapshot))
    seen: set[object] = set()
    for (entry, client), decision in zip(reversed(every), told, strict=True):
        key = decision._replace(path="", reason="", time=0.0, request_id=""), client.rpartition(":")[0]
        if key not in seen and len(seen) < MAX_ASKED:
            seen.add(key)
            yield decision, entry[7], client


def _steps(route: Route, exchange: Exchange) -> Iterator[FilterStep]:
    """The steps of a request or tunnel; the exchange has the backend of those that the caller looks at."""
    early, late = (TUNNEL_PHASES[:1], TUNNEL_PHASES[1:]) if exchange.is_tunnel else (REQUEST_PHASES, BACKEND_PHASES)
    for name, chain, phases in (
        (exchange.backend, route.chain, early),
        *((backend.name, backend.chain, late) for backend in route.backends),
    ):
        exchange.backend = name
        for phase in phases:
            yield from (step for step in steps_of(chain, phase) if step.spec.phase == step.stats.phase)


def _limits_of(step: FilterStep, exchange: Exchange) -> Iterator[dict[str, Any]]:
    """The state of each limit of this step, with a `key` of what it counts by, the same in all workers."""
    spec, identity = step.spec, exchange.identity
    rules = {each.name: each for each in (*getattr(step.filter, "rules", ()), *getattr(step.filter, "concurrency", ()))}
    for state in step.filter.explain(exchange):
        rule, text = rules.get(state.name), b""
        if rule is not None:
            text = rule.text(exchange, "")
            if exchange.client == _SOMEBODY:
                exchange.client = _ANOTHER
                is_by_address, exchange.client = rule.text(exchange, "") != text, _SOMEBODY
                if is_by_address:
                    continue
        counted = repr((spec.source, spec.name, spec.scope, state.name, text)).encode()
        yield {
            "key": blake2b(counted, digest_size=8).hexdigest(),
            "filter": spec.name, "type": spec.type, "from": spec.source, "level": _LEVELS[spec.level], **state.told(),
            "gateway": exchange.gateway, "namespace": identity.namespace, "service_account": identity.service_account,
            "identity": identity.name, "route": exchange.route, "backend": exchange.backend,
            "client": "-" if exchange.client == _SOMEBODY else exchange.client.rpartition(":")[0],
        }  # fmt: skip


def backends(snapshot: Snapshot, accounting: Accounting) -> Work[list[dict[str, Any]]]:
    """Backends in parts for `merging.backends`: connections, endpoints with their state, reached limits of circuit
    breakers; and what was counted.
    """
    made: list[dict[str, Any]] = []
    for cluster in list(snapshot.clusters.values()):
        active, idle = cluster.counts()
        made.append({
            "name": cluster.name, "destination": cluster.spec.backend.destination.value, "active": active, "idle": idle,
            "waiting": cluster.waiting, "hosts": list(_hosts(cluster)),
            "limits_reached": list(cluster.host_set.open_circuits()) if cluster.host_set is not None else [],
        })  # fmt: skip
        yield None
    names = {each["name"] for each in made}
    return made + [
        {"name": series.labels[2], "requests": sum(series.requests.values()), "failures": sum(series.failures.values())}
        for series in accounting.metrics.usage().series.values()
        if series.labels[2] in names
    ]


def _hosts(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Address and state of each endpoint."""
    backend = cluster.spec.backend
    if cluster.host_set is not None:
        yield from ((health.address, health.state.value) for health in cluster.host_set.healths())
    elif backend.endpoints:
        yield from ((f"{each.address}:{each.port}", "not watched") for each in backend.endpoints)
    elif backend.hostname:
        yield f"{backend.hostname}:{backend.port}", "not watched"


def credentials(snapshot: Snapshot, _accounting: Accounting) -> Work[list[dict[str, Any]]]:
    """The Secrets that filters use, by name: `present` false where one is missing, and requests are refused."""
    found: dict[object, dict[str, Any]] = {}
    for spec in snapshot.filters.specs():
        with suppress(FilterBuildError):
            for name, is_present in snapshot.filters.secrets(spec).items():
                found[spec.source, spec.name, name] = {
                    "filter": spec.name, "type": spec.type, "from": spec.source, "secret": name, "present": is_present,
                }  # fmt: skip
        yield None
    return sorted(found.values(), key=lambda each: (each["secret"], each["from"], each["filter"]))


#: What a worker shows, by name in a query.
SHOWN: Final[Mapping[str, Callable[..., Work[Any]]]] = {
    "limits": limits, "backends": backends, "credentials": credentials, "denials": denials, "decision": decision_about,
}  # fmt: skip
