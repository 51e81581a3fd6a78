"""Parts of a snapshot as plain values for people and JSON. Secrets appear by name, never with a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from egressproxy.errors import GatewayError
from egressproxy.filters.chain import Chain
from egressproxy.filters.filter_step import FilterStep
from egressproxy.filters.instances import FilterInstances
from egressproxy.gateway.backends.failover import aside_s
from egressproxy.gateway.backends.mirror import Mirror
from egressproxy.gateway.backends.opener import ConnectionOpener
from egressproxy.gateway.backends.reverse_check import find_names, raise_unless_one_agrees
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.error_responses import is_denial
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener, Port
from egressproxy.ir.backend import BackendIR, BackendTlsIR, Destination
from egressproxy.ir.identity import IdentityIR
from egressproxy.ir.policy import ConnectionsIR, DestinationRule, ExtensionIR, ReverseCheck, SniCheck, SourceAddressIR
from egressproxy.model.addresses import Resolved
from egressproxy.model.authority import Authority, IPAddress
from egressproxy.model.exchange import Exchange
from egressproxy.model.listening_place import is_datagram
from egressproxy.routing.precedence import Match
from egressproxy.upstream.source_address import SourceChooser

REQUEST_PHASES = ("request_headers", "request_body")
#: Those that a tunnel meets: before a backend is chosen, and before it is dialled.
TUNNEL_PHASES = ("request_headers", "connect")
BACKEND_PHASES = (
    "connect", "backend_request_body", "backend_request", "backend_response", "response_headers", "response_body",
)  # fmt: skip


def listener_values(listener: ActiveListener, port: Port) -> dict[str, Any]:
    """What a listener serves: where, under which certificates, and how it knows its clients."""
    spec = listener.spec
    made: dict[str, Any] = {
        "gateway": listener.gateway, "name": listener.name, "protocol": spec.protocol.value,
        "addresses": [each for each in spec.addresses if not is_datagram(each)],
        "port": port.number, "hostname": spec.hostname,
    }  # fmt: skip
    if spec.tls is not None:
        made["tls"] = {"mode": spec.tls.mode.value, "certificates": [each.name for each in spec.tls.certificates]}
        if spec.tls.clients is not None:
            clients = spec.tls.clients
            is_asked = clients.takes_any or not clients.ca_pem
            made["tls"]["clientCertificates"] = "asked for" if is_asked else "required"
    identity: dict[str, Any] = {}
    if spec.policy.gateway_keys:
        identity["gatewayKeys"] = len(spec.policy.gateway_keys)
    if port.trust_domains:
        identity["trustDomains"] = list(port.trust_domains)
    rules = spec.policy.identity
    if rules is not None:
        identity |= identity_values(rules)
    if identity:
        made["identity"] = identity
    return made


def identity_values(rules: IdentityIR) -> dict[str, Any]:
    """What makes clients known, as plain values: of users and addresses how many there are."""
    made = {
        "required": rules.is_required,
        "issuers": [{"issuer": each.issuer, "audiences": list(each.audiences)} for each in rules.issuers],
        "header": rules.token_field,
        "users": len(rules.users),
        "apiKeys": len(rules.api_keys or ()),
        "addresses": sum(len(each.networks) for each in rules.addresses),
        "proxyProtocol": list(map(str, rules.senders)),
    }
    return {name: value for name, value in made.items() if value}


def match_values(match: Match[Route]) -> dict[str, Any]:
    return {
        "kind": match.origin.kind, "name": match.origin.route, "rule": match.origin.rule,
        "ruleName": match.origin.rule_name, "hostname": match.hostname, "match": match.text,
    }  # fmt: skip


def entry_values(rule: DestinationRule) -> dict[str, Any]:
    """One entry of `destinations`, in the words of an EgressPolicy."""
    values = {
        "policy": rule.policy,
        "hostnames": list(rule.hostnames),
        "ports": list(rule.ports),
        "cidrs": list(map(str, rule.cidrs)),
        "sni": rule.sni.value if rule.sni is not SniCheck.MATCH else "",
    }
    return {name: value for name, value in values.items() if value}


def error_values(error: GatewayError) -> dict[str, Any]:
    """What a client is told of this error, and `detail`, which is for operators."""
    found = {
        "status": error.status, "reason": error.reason.value, "message": error.message, "denied": is_denial(error),
        "rule": error.rule, "remedy": error.remedy, "detail": error.detail,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value not in ("", "-")}


def backend_values(backend: RouteBackend, route: Route) -> dict[str, Any]:
    """One backend of a rule, as plain values. The share of an endpoint of a Failover is that of the Failover."""
    total, failover = route.total, route.failover_of(backend)
    weight = backend.weight if failover is None else failover.spec.weight
    spec = backend.cluster.spec if backend.cluster is not None else None
    made: dict[str, Any] = {
        "name": backend.name, "weight": backend.weight, "share": round(weight / total, 4) if total else 0.0,
    }  # fmt: skip
    if failover is not None:
        made["failover"] = {"name": failover.spec.name, "priority": backend.priority}
        if backend.cluster is not None and (seconds := aside_s(backend, backend.cluster.network.wheel.now)):
            made["failover"]["asideFor"] = f"{seconds:.1f}s"
    if spec is not None:
        made["name"] = spec.backend.name
        _, is_of_pods, selector = spec.backend.service.partition(" ")
        made["destination"] = f"Pods with {selector}" if is_of_pods else spec.backend.destination.value
        if spec.backend.kind:
            made["kind"] = spec.backend.kind
        made["via"] = [parent.name for parent in _parents(spec.backend)]
        if spec.backend.other_parents:
            made["fallbacks"] = [each.backend.name for each in spec.backend.other_parents]
        if backend.parent_by:
            made["parentBy"] = backend.parent_by
    if backend.ai is not None:
        made["ai"] = backend.ai.values
    if backend.mirrors is not None:
        made["mirrors"] = [_mirror_values(each) for each in backend.mirrors]
    return made


def _mirror_values(mirror: Mirror) -> dict[str, Any]:
    made: dict[str, Any] = {"name": mirror.backend, "share": round(mirror.share, 4)}
    if mirror.denied is not None:
        made["denied" if mirror.denied.holds(mirror.mode) else "wouldDeny"] = mirror.denied.error().message
    return made


def tls_values(tls: BackendTlsIR, host: str, destination: Destination) -> dict[str, Any]:
    """How the server is verified, and whether we show a client certificate."""
    sni = tls.sni or (host if destination in (Destination.FQDN, Destination.DYNAMIC) else "")
    made: dict[str, Any] = {
        "sni": sni,
        "verified": tls.is_verified,
        "ca": (tls.ca_source or "given by policy") if tls.ca_pem else "system",
        "names": list(tls.names) or ([sni] if sni else []),
        "minVersion": tls.min_version,
    }
    if tls.client_certificate:
        made["clientCertificate"] = tls.client_source or "given"
    if tls.pins:
        made["pins"] = len(tls.pins)
    if tls.crl_pem:
        made["crl"] = True
    if tls.trusted_pem:
        made["trustedCertificates"] = True
    if tls.allow_expired:
        made["allowsExpired"] = True
    return made


def filter_values(chain: Chain, phases: Iterable[str], exchange: Exchange) -> list[dict[str, Any]]:
    """Filters of unknown types, which requests skip; then the declared ones of these phases, with what their limits
    have left.
    """
    why = "the type is not known, and failOpen is set"
    skipped = [_filter_values(spec, spec.phase) | {"skipped": why} for spec in chain.skipped]
    made = []
    for phase in phases:
        for step in steps_of(chain, phase):
            if step.spec.source == "-":  # the gateway's own, which nobody has declared
                continue
            values = _filter_values(step.spec, step.stats.phase)
            if step.budget is not None and (left_s := step.budget.left_s()):  # it has failed too often
                values["outOfService"] = {"forSeconds": round(left_s, 1)}
            if values["phase"] == step.spec.phase and (limits := step.filter.explain(exchange)):
                values["limits"] = [each.told() for each in limits]
            if values["phase"] == step.spec.phase and (decided := step.filter.decision(exchange)):
                values["decision"] = decided
            made.append(values)
    return skipped + made


def _filter_values(spec: ExtensionIR, phase: str) -> dict[str, Any]:
    return {
        "phase": phase, "name": spec.name, "type": spec.type, "from": spec.source,
        "level": ("Gateway", "Route", "Backend")[spec.level], "priority": spec.priority, "failOpen": spec.fail_open,
    }  # fmt: skip


def secret_values(chain: Chain, filters: FilterInstances) -> list[dict[str, Any]]:
    """The Secrets that filters of this chain use: `present` false where one is missing, and requests are refused."""
    phases = (*REQUEST_PHASES, *BACKEND_PHASES)
    specs = dict.fromkeys(step.spec for phase in phases for step in steps_of(chain, phase))
    return [
        {"filter": spec.name, "from": spec.source, "secret": name, "present": is_present}
        for spec in specs
        for name, is_present in filters.secrets(spec).items()
    ]


def limit_values(listener: ActiveListener) -> dict[str, int]:
    """The listener's limits of connections; 0 is none. Limits of requests are filters."""
    limits = listener.spec.policy.limits
    return {
        "maxHeadBytes": limits.max_head_bytes, "maxFields": limits.max_fields,
        "maxBufferedBytes": limits.max_buffered_bytes, "bufferedBytesPerClient": limits.buffered_bytes_per_client,
        "bufferedBytesPerConnection": limits.buffered_bytes_per_connection, "connections": limits.connections,
        "connectionsPerClient": limits.connections_per_client, "tunnels": limits.tunnels,
        "tunnelsPerClient": limits.tunnels_per_client,
    }  # fmt: skip


def timeout_values(
    listener: ActiveListener, route: Route | None, backend: RouteBackend | None, *, is_tunnel: bool
) -> dict[str, float]:
    """The timeouts that hold here, in seconds; 0 is none."""
    made = {"requestHeaders": listener.timeouts.request_headers_s}
    if route is not None:
        made["request"] = route.request_s
    if backend is not None and backend.cluster is not None:
        spec = backend.cluster.spec
        made |= {"connect": spec.connect_s}
        if not is_tunnel:
            made |= {"tlsHandshake": spec.tls_handshake_s, "backendRequest": backend.backend_request_s}
    if route is not None:
        made |= {"tunnelIdle": route.tunnel_idle_s} if is_tunnel else {"idle": route.idle_s}
    return made


def kept_values(kept: ConnectionsIR) -> dict[str, float | bool]:
    """What ends a connection to the backend, besides idle time (seconds, exchanges), and whether tenants share it."""
    made = {"maxAge": kept.max_age_s, "maxRequests": float(kept.max_requests)}
    limits: dict[str, float | bool] = {name: value for name, value in made.items() if value}
    return limits | ({"shareTenants": False} if kept.is_per_tenant else {})


def source_values(source: SourceAddressIR, identity: str) -> dict[str, Any]:
    """Where a connection for this client goes out from, and the object that says so."""
    made = SourceChooser(source).of(identity).told()
    return {**made, "from": source.owner}


def steps_of(chain: Chain, phase: str) -> Iterator[FilterStep]:
    """The steps of this phase (`request_headers`, …), in their order."""
    found = getattr(chain, phase)
    if found is not None:
        yield from (found if isinstance(found, tuple) else found.steps)


def _parents(backend: BackendIR) -> Iterator[BackendIR]:
    while backend.parent is not None:
        backend = backend.parent
        yield backend


def address_values(address: IPAddress, port: int, verdict: str, why: str) -> dict[str, Any]:
    """One address as plain values; `verdict` is "dial" or "refuse"."""
    return {"address": str(address), "port": port, "verdict": verdict, "why": why}


async def describe_resolved(made: dict[str, Any], opener: ConnectionOpener, host: str, port: int) -> None:
    """Resolve a name as the traffic of this opener does, and put into `made` what it leads to: `dns` (whether a server
    was asked), `cnames` where there are any, and `addresses`. Raises UpstreamFault and Denied as a dial does.
    """
    resolver, policy = opener.resolver, opener.address_policy()
    why_not_asked = resolver.why_not_asked(host)
    made["dns"] = f"not asked: {why_not_asked}" if why_not_asked else "asked"
    found = await resolver.resolve(host)
    through = found.through if isinstance(found, Resolved) else ()
    if through:
        made["cnames"] = list(through)
    made["addresses"] = []
    for address in found:
        may_be_dialled, why = policy.verdict(host, address, port, through)
        made["addresses"].append(address_values(address, port, "dial" if may_be_dialled else "refuse", why))
    left = policy.check(host, found, port)
    if opener.reverse_check is ReverseCheck.OFF or why_not_asked:
        return
    findings = await find_names(resolver, host, left, through)
    results = {str(each.address): f"{each.result}: {each.why}" for each in findings}
    for each in made["addresses"]:
        each["reverse"] = results.get(each["address"], "not asked")
        if opener.reverse_check is ReverseCheck.ENFORCE and not each["reverse"].startswith("agrees"):
            each["verdict"] = "refuse"
    if opener.reverse_check is ReverseCheck.ENFORCE:
        raise_unless_one_agrees(Authority(host, port), findings)
