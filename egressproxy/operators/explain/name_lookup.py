"""Where a name leads: what each DNS server answers, what is kept, and which addresses would be dialled.

A place is what has rules of its own for names and addresses: a forward-proxy listener, or a backend. No server is asked
for a name that a client could not have asked for there: this is no way out for data in names, either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from egressproxy.errors import Denied, GatewayError
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.exchange.admission import default_route
from egressproxy.gateway.snapshot import ActiveListener, Snapshot
from egressproxy.ir.backend import ConnectionIR, Destination
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError
from egressproxy.operators.explain.render import describe_resolved, error_values
from egressproxy.upstream.resolver import Resolver, ServerAnswer

_KNOWN = ("name", "port", "gateway", "policy", "backend")
#: What is said of the client, in the words of /explain.
_OF_CLIENT = ("as", "group", "claim")
#: Listeners and clusters that are looked at, each with its DNS servers.
MAX_PLACES = 16


@dataclass(frozen=True, slots=True)
class NameQuestion:
    """A name and a port, at a Gateway, a policy or a backend (`namespace/name`), or anywhere. `identity`: for whom."""

    authority: Authority
    gateway: str = ""
    policy: str = ""
    backend: str = ""
    identity: CallerIdentity = ANONYMOUS

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> NameQuestion:
        """A question by the parameters of /dns. Raises HypotheticalRequestError."""
        values: dict[str, str] = {}
        client: list[tuple[str, str]] = []
        for key, value in pairs:
            if key in _OF_CLIENT:
                client.append((key, value))
                continue
            if key not in _KNOWN:
                known = ", ".join(_KNOWN + _OF_CLIENT)
                raise HypotheticalRequestError(f"unknown parameter {key!r}; known are {known}")
            if key in values:
                raise HypotheticalRequestError(f"{key} is given twice")
            values[key] = value
        name, port = values.get("name", ""), values.get("port") or "443"
        if "/" in name or name.count(":") == 1:
            raise HypotheticalRequestError(f"{name!r} is no name: write the host alone, and its port as --port")
        try:
            authority = parse_authority(f"{name}:{port}".encode("ascii", "replace"))
        except AuthorityError as error:
            raise HypotheticalRequestError(f"{name!r} port {port!r} is no destination: {error}") from None
        if authority.address is not None:
            raise HypotheticalRequestError(f"{name} is an address: no name server is asked for it")
        options = {key: values.get(key, "") for key in ("gateway", "policy", "backend")}
        for key, value in options.items():
            if value and value.count("/") != 1:
                raise HypotheticalRequestError(f"{key} {value!r} is not NAMESPACE/NAME")
        identity = HypotheticalRequest.of([("url", "http://-/"), *client]).identity
        return cls(authority, identity=identity, **options)


@dataclass(slots=True)
class _Place:
    cluster: Cluster
    labels: list[str]
    denied: GatewayError | None


async def look_up(snapshot: Snapshot, question: NameQuestion) -> dict[str, Any]:
    """Where the name leads at each place, as plain values. Raises HypotheticalRequestError where there is no place."""
    places: dict[tuple[object, ...], _Place] = {}
    try:
        candidates = list(_candidates(snapshot, question))
    except Denied as error:  # more policies hold for this client than are served at once
        raise HypotheticalRequestError(error.message) from None
    for label, cluster, denied in candidates:
        spec = cluster.spec
        parent = spec.backend.parent
        known = places.setdefault((spec.dns, spec.addresses, parent, denied is None), _Place(cluster, [], denied))
        if label not in known.labels:
            known.labels.append(label)
    if not places:
        raise HypotheticalRequestError(_nowhere(snapshot, question))
    found = [await _described(place, question.authority) for place in list(places.values())[:MAX_PLACES]]
    return {"name": question.authority.host, "port": question.authority.port, "places": found}


def _candidates(snapshot: Snapshot, question: NameQuestion) -> Iterator[tuple[str, Cluster, GatewayError | None]]:
    """Label, cluster, and why the name may not be asked for there, or None."""
    authority = question.authority
    if not question.backend:
        for whole in _listeners(snapshot):
            listener = whole if whole.variants is None else whole.variants.of(question.identity)
            is_meant = question.gateway in ("", listener.gateway)
            if is_meant and (not question.policy or question.policy in listener.spec.policy.sources):
                assert listener.defaults is not None
                for backend in listener.defaults.route.backends:
                    if backend.cluster is not None:
                        label = f"listener {listener.gateway}/{listener.name}"
                        yield label, backend.cluster, _denied(listener, authority)
    if question.gateway:
        return
    for spec, cluster in snapshot.clusters.items():
        is_of_name = spec.backend.destination is Destination.FQDN and spec.backend.hostname == authority.host
        if question.backend in ("", cluster.name) and (not question.policy or question.policy in _policies(spec)):
            if is_of_name:
                yield f"backend {cluster.name}", cluster, None
            elif question.backend and spec.backend.destination is Destination.FQDN:
                raise HypotheticalRequestError(
                    f"backend {cluster.name} stands for {spec.backend.hostname}: ask for that name"
                )


def _listeners(snapshot: Snapshot) -> Iterator[ActiveListener]:
    """The forward-proxy listeners."""
    for port in snapshot.ports.values():
        yield from (listener for listener in port.listeners if listener.defaults is not None)


def _policies(spec: ConnectionIR) -> set[str]:
    """The policies whose rules for addresses hold for this backend, as far as they have any."""
    rules = spec.addresses
    found = {rules.policy, *(each.policy for each in rules.deny), *(each.policy for each in rules.only)}
    return found | {each.policy for each in rules.denied_names}


def _denied(listener: ActiveListener, authority: Authority) -> GatewayError | None:
    """Why clients of this listener may not ask for this destination; None where they may."""
    try:
        default_route(listener, authority)
    except Denied as denied:
        return denied.with_traceback(None)
    return None


def _nowhere(snapshot: Snapshot, question: NameQuestion) -> str:
    known = sorted({cluster.name for cluster in snapshot.clusters.values() if cluster.name != "-"})
    if question.backend:
        return f"no backend {question.backend} with a hostname is in service; there are {', '.join(known) or 'none'}"
    gateways = sorted({listener.gateway for listener in _listeners(snapshot)})
    if question.gateway:
        known_ones = ", ".join(gateways) or "none"
        return f"no forward proxy of Gateway {question.gateway} is in service; there are {known_ones}"
    name = question.authority.host + (f" under policy {question.policy}" if question.policy else "")
    return f"nothing in service resolves {name}: no forward proxy, and no backend of this name"


async def _described(place: _Place, authority: Authority) -> dict[str, Any]:
    cluster, host = place.cluster, authority.host
    made: dict[str, Any] = {"for": place.labels, "verdict": "refuse", "dns": "not asked"}
    if place.denied is not None:
        made["error"] = error_values(place.denied)
        return made
    if cluster.parent is not None:
        made |= {"verdict": "parent", "dns": f"resolved by the parent {cluster.parent.name}"}
        return made
    opener = cluster.opener
    made["cache"] = _cached(opener.resolver, host)
    made["answers"] = []
    if not opener.resolver.why_not_asked(host):
        made["answers"] = [_answer_values(each) for each in await opener.resolver.ask_each_server(host)]
    backend = cluster.spec.backend
    port = backend.port if backend.destination is Destination.FQDN else authority.port
    try:
        await describe_resolved(made, opener, host, port)
        made["verdict"] = "dial"
    except GatewayError as error:
        made["error"] = error_values(error.with_traceback(None))
    return made


def _cached(resolver: Resolver, host: str) -> dict[str, Any]:
    state, left_s, entry = resolver.state(host)
    made: dict[str, Any] = {"state": state}
    if entry is not None:
        made["forSeconds"] = round(left_s, 1)
        made["addresses"] = [str(address) for address in entry.addresses]
        if entry.failure is not None:
            made["reason"] = entry.failure.reason.value
    return made


def _answer_values(each: ServerAnswer) -> dict[str, Any]:
    made: dict[str, Any] = {
        "server": each.server, "name": each.name, "type": each.kind, "milliseconds": round(each.seconds * 1000, 1),
    }  # fmt: skip
    if each.answer is None:
        made["failure"] = each.failure
        return made
    answer = each.answer
    made |= {
        "result": "nxdomain" if answer.is_nxdomain else "noerror",
        "addresses": [str(address) for address in answer.addresses],
        "cnames": list(answer.through),
        "ttlSeconds": int(answer.ttl_s),
        "authentic": answer.is_authentic,
    }
    return made
