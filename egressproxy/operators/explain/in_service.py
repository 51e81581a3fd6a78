"""What is in service, as plain values: what is left of limits, backends and endpoints, the Secrets in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final

from egressproxy.filters.chain import Chain
from egressproxy.filters.filter_step import FilterStep
from egressproxy.filters.instances import FilterBuildError
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.exchange.recent_decisions import Denials, RecentDecision, Remembered, decisions, subjects_of
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.work import Work
from egressproxy.operators.explain.decision import decide
from egressproxy.operators.explain.decision_diff import question_of
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequestError
from egressproxy.operators.explain.render import BACKEND_PHASES, REQUEST_PHASES, TUNNEL_PHASES, steps_of
from egressproxy.telemetry.series import Series
from egressproxy.upstream.endpoint_health import HealthState

#: The most different recent requests whose limits are looked at, and limits of one answer.
MAX_ASKED: Final = 200
MAX_LIMITS: Final = 500
_LEVELS: Final = ("Gateway", "Route", "Backend")
#: Clients whose address is not known.
_SOMEBODY, _ANOTHER = "0.0.0.0:0", "0.0.0.1:0"
#: The worst last.
_STATES: Final = tuple(state.value for state in HealthState)


# --- limits ----------------------------------------------------------------------------------------------------------
def limits(snapshot: Snapshot, recent: Remembered, denied: Denials) -> Work[list[dict[str, Any]]]:
    """The limits that hold for recent requests, each `key` once, the least left first. What counts for each address
    is told for clients that were denied alone: of others no address is remembered.
    """
    found: dict[str, dict[str, Any]] = {}
    for decision, identity, client in list(_requests(snapshot, recent, denied)):
        question = question_of(decision)
        with suppress(HypotheticalRequestError):
            decided = decide(snapshot, question) if question is not None else None
            if decided is not None and decided.route is not None:
                decided.exchange.identity, decided.exchange.client = identity, client
                for step in _steps(decided.route, decided.exchange):
                    for values in _limits_of(step, decided.exchange):
                        found.setdefault(values["key"], values)
        yield None
    every = sorted(found.values(), key=lambda each: each["left"] / each["limit"] if each["limit"] else 0.0)
    return every[:MAX_LIMITS]


def _requests(
    snapshot: Snapshot, recent: Remembered, denied: Denials
) -> Iterator[tuple[RecentDecision, CallerIdentity, str]]:
    """Different requests with who has made them and from which address, the latest first."""
    every = [*((entry, _SOMEBODY) for entry in recent), *((entry, client) for entry, client, *_ in denied)]
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
    is_tunnel = exchange.is_tunnel
    yield from _of_phases(route.chain, TUNNEL_PHASES[:1] if is_tunnel else REQUEST_PHASES)
    for backend in route.backends:
        exchange.backend = backend.name
        yield from _of_phases(backend.chain, TUNNEL_PHASES[1:] if is_tunnel else BACKEND_PHASES)


def _of_phases(chain: Chain, phases: Sequence[str]) -> Iterator[FilterStep]:
    for phase in phases:
        yield from (step for step in steps_of(chain, phase) if step.spec.phase == step.stats.phase)


def _limits_of(step: FilterStep, exchange: Exchange) -> Iterator[dict[str, Any]]:
    """The state of each limit of this step, with a `key` of what it counts by, the same in all workers."""
    spec = step.spec
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
        identity, address = exchange.identity, exchange.client.rpartition(":")[0]
        key = blake2b(repr((spec.source, spec.name, spec.scope, state.name, text)).encode(), digest_size=8).hexdigest()
        yield {
            "key": key,
            "filter": spec.name, "type": spec.type, "from": spec.source, "level": _LEVELS[spec.level], **state.told(),
            "gateway": exchange.gateway, "namespace": identity.namespace, "service_account": identity.service_account,
            "identity": identity.name, "client": "-" if exchange.client == _SOMEBODY else address,
            "route": exchange.route, "backend": exchange.backend,
        }  # fmt: skip


# --- backends --------------------------------------------------------------------------------------------------------
def backends(snapshot: Snapshot, counted: Iterable[Series]) -> Work[list[dict[str, Any]]]:
    """Backends by name: connections, endpoints with their state, reached limits of circuit breakers, requests."""
    found: dict[str, dict[str, Any]] = {}
    for cluster in list(snapshot.clusters.values()):
        made = found.setdefault(cluster.name, _no_backend(cluster.name, cluster.spec.backend.destination.value))
        active, idle = cluster.counts()
        made["active"] += active
        made["idle"] += idle
        made["waiting"] += cluster.waiting
        if cluster.host_set is not None:
            made["limits_reached"] = sorted({*made["limits_reached"], *cluster.host_set.open_circuits()})
        for address, state in _hosts(cluster):
            _add_host(made["hosts"], address, state)
        yield None
    for series in counted:
        name = series.labels[2]
        if name in found:
            found[name]["requests"] += sum(series.requests.values())
            found[name]["failures"] += sum(series.failures.values())
    return [{**found[name], "hosts": list(found[name]["hosts"].values())} for name in sorted(found)]


def _no_backend(name: str, destination: str) -> dict[str, Any]:
    return {
        "name": name, "destination": destination, "active": 0, "idle": 0, "waiting": 0, "requests": 0, "failures": 0,
        "limits_reached": [], "hosts": {},
    }  # fmt: skip


def _hosts(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Address and state of each endpoint; "" for the state of an unwatched one."""
    if cluster.host_set is not None:
        yield from ((health.address, health.state.value) for health in cluster.host_set.healths())
        return
    backend = cluster.spec.backend
    if backend.endpoints:
        yield from ((f"{each.address}:{each.port}", "") for each in backend.endpoints)
    elif backend.hostname:
        yield f"{backend.hostname}:{backend.port}", ""


def _add_host(hosts: dict[str, dict[str, Any]], address: str, state: str) -> None:
    """Add an endpoint in this state; one that has several has the worst."""
    known = hosts.get(address)
    if known is not None and _rank(known["state"]) > _rank(state):
        state = known["state"]
    hosts[address] = {
        "address": address, "healthy": _rank(state) <= 1, "ejected": state == HealthState.EJECTED.value,
        "state": state or "not watched", "workers": 1,
    }  # fmt: skip


def _rank(state: str) -> int:
    return _STATES.index(state) + 1 if state in _STATES else 0


# --- credentials -----------------------------------------------------------------------------------------------------
def credentials(snapshot: Snapshot) -> Work[list[dict[str, Any]]]:
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
