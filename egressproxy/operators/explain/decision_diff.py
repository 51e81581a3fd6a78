"""Decision diff: which of the recent decisions another configuration would make the other way.

Each is decided again on names, and on addresses as far as they are known without asking a name server. What cannot be
told (rules that look at headers, names whose addresses are not known) is said to be so, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from egressproxy.errors import Denied, GatewayError, Reason
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.opener import OPERATOR, named_address
from egressproxy.gateway.exchange.error_responses import DENIALS
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.gateway.snapshot import Snapshot
from egressproxy.ir.policy import SniCheck
from egressproxy.model.exchange import Exchange
from egressproxy.model.work import Work
from egressproxy.operators.explain.decision import Decision, decide
from egressproxy.operators.explain.hypothetical_request import HypotheticalRequest, HypotheticalRequestError
from egressproxy.operators.explain.render import BACKEND_PHASES, REQUEST_PHASES, steps_of

#: How a request ends that policy or a limit refuses.
DENIED = frozenset(reason.value for reason in DENIALS)
#: How a request ends that is refused for its names and addresses: what is decided here again.
REFUSED = frozenset(
    reason.value
    for reason in (
        Reason.DESTINATION_NOT_ALLOWED, Reason.DESTINATION_DENIED, Reason.NO_POLICY, Reason.ADDRESS_DENIED,
        Reason.NO_ROUTE, Reason.MISDIRECTED, Reason.METHOD_NOT_ALLOWED,
    )
)  # fmt: skip

#: How a request ends that names do not decide about: a filter refused it, or a tunnel for what was in it.
JUDGED = frozenset(
    reason.value
    for reason in (
        Reason.FILTER_REJECTED,
        Reason.ACCESS_DENIED,
        Reason.CONTENT_DENIED,
        Reason.MODEL_DENIED,
        Reason.REGION_DENIED,
        Reason.PLAINTEXT_CREDENTIAL,
        Reason.CREDENTIAL_NOT_BOUND,
        Reason.AUTHORIZATION_REQUIRED,
        Reason.CREDENTIAL_NOT_FOR_CALLER,
        Reason.PLACEHOLDER_REQUIRED,
        Reason.PLACEHOLDER_MISPLACED,
        Reason.SNI_MISMATCH,
        Reason.NOT_TLS,
    )
)
#: Reasons that end a client before its first request. Of a redirected client only the dialled address is known.
UNASKED = frozenset(reason.value for reason in (Reason.NOT_TLS, Reason.CLIENT_TIMEOUT))
NO_LISTENER = "no_listener"
FILTER_PHASES = (*REQUEST_PHASES, *BACKEND_PHASES)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is "-" for what is allowed. `is_sure` false: it depends on headers, a query, or the rest of a long path.
    `knows_addresses` false: no name server is asked where the name leads. `takes_tls`: in a tunnel to port 80 that may
    carry HTTP, TLS would be let through, too.
    """

    is_allowed: bool
    reason: str
    is_sure: bool = True
    knows_addresses: bool = True
    takes_tls: bool = False

    def __str__(self) -> str:
        return "allow" if self.is_allowed else f"deny ({self.reason})"


@dataclass(frozen=True, slots=True)
class DecisionChange:
    """A request that another configuration decides the other way: how it ended `before`, and how it would `after`."""

    decision: RecentDecision
    before: Outcome
    after: Outcome

    @property
    def opens(self) -> bool:
        """Whether a request that policy denied would be allowed."""
        return self.after.is_allowed and self.before.reason in DENIED

    @property
    def is_sure(self) -> bool:
        """Whether both outcomes are known for sure. Addresses count only where an address was denied."""
        knows_addresses = self.after.knows_addresses or self.before.reason != Reason.ADDRESS_DENIED.value
        return self.before.is_sure and self.after.is_sure and knows_addresses

    def values(self) -> dict[str, Any]:
        """The change as plain values, for JSON and the log."""
        decision = self.decision
        return {
            "method": decision.method, "authority": decision.authority, "path": decision.path,
            "gateway": decision.gateway, "listener": decision.listener, "namespace": decision.namespace,
            "serviceAccount": decision.service_account,
            "before": "allow" if self.before.is_allowed else "deny", "beforeReason": self.before.reason,
            "after": "allow" if self.after.is_allowed else "deny", "afterReason": self.after.reason,
            "isSure": self.is_sure,
        }  # fmt: skip

    def __str__(self) -> str:
        decision = self.decision
        path = "" if decision.method in ("-", "CONNECT") else decision.path
        request = f"{decision.method} {decision.authority}{path} on {decision.gateway}/{decision.listener}"
        return f"{request}: {self.before} -> {self.after}{'' if self.is_sure else ' (maybe)'}"


def flips(before: Snapshot | None, after: Snapshot, recent: Iterable[RecentDecision]) -> Work[list[DecisionChange]]:
    """The recent decisions that change, each request once. Without `before` they are compared with what was recorded.
    A refusal by a filter, or for what a tunnel carries, may change where one of these checks is gone; those by limits
    are left out.
    """
    seen = set()
    found = []
    for decision in recent:
        key = decision._replace(reason="-", time=0.0, request_id="")  # the same request with any outcome, at any time
        if key in seen or question_of(decision) is None:
            continue
        seen.add(key)
        flip = _flip(before, after, decision)
        if flip is not None:
            found.append(flip)
        yield None
    return found


def _flip(before: Snapshot | None, after: Snapshot, decision: RecentDecision) -> DecisionChange | None:
    was, then = recorded(decision), outcome(after, decision)
    was_elsewhere = False
    if before is not None:
        again = outcome(before, decision)
        if again.reason == NO_LISTENER:  # an access log of another configuration: both are asked in the same way
            again, was_elsewhere = _elsewhere(before, decision), True
        if decision.reason != Reason.ADDRESS_DENIED.value or again.knows_addresses:
            was = again
    if then.reason == NO_LISTENER and (was_elsewhere or not was.is_allowed):
        then = _elsewhere(after, decision)
    if then.is_allowed != was.is_allowed:
        # An address was refused that is not known now: it counts where what judges addresses is another.
        is_unknown = was.reason == Reason.ADDRESS_DENIED.value and not then.knows_addresses
        if is_unknown and (before is None or _address_rules(before, decision) == _address_rules(after, decision)):
            return None
        return DecisionChange(decision, was, then)
    if before is not None and decision.reason in REFUSED and then.takes_tls and was.is_allowed and not was.takes_tls:
        # TLS, in a tunnel that could have carried HTTP
        return DecisionChange(decision, Outcome(False, decision.reason), then)
    if before is not None and was.is_allowed and decision.reason in JUDGED:
        gone = _judges(before, decision) - _judges(after, decision)
        if gone:
            return DecisionChange(decision, Outcome(False, decision.reason), Outcome(True, "-", is_sure=False))
    return None


def recorded(decision: RecentDecision) -> Outcome:
    """The outcome that was recorded, as far as names and addresses decided it."""
    if decision.reason in REFUSED:
        return Outcome(False, decision.reason)
    return Outcome(True, "-")


def outcome(snapshot: Snapshot, decision: RecentDecision) -> Outcome:
    """The outcome of the same request in this snapshot."""
    decided = decided_again(snapshot, decision)
    if decided is None:
        return Outcome(False, NO_LISTENER)
    # Which groups and claims a client had is told only of those that policies have asked for.
    is_sure = not (decision.is_cut or decided.has_conditions or _depends_on_fields(decided))
    if decided.error is not None:
        return Outcome(False, decided.error.reason.value, is_sure)
    if decided.route is None:
        takes_tls = decided.tls_route is not None
        return Outcome(True, "-", is_sure and (takes_tls or decision.reason not in REFUSED), takes_tls=takes_tls)
    backends = decided.route.backends
    if not backends:
        return Outcome(True, "-", is_sure)
    if all(backend.denied is not None and backend.cluster is None for backend in backends):
        return Outcome(False, Reason.DESTINATION_DENIED.value, is_sure)
    judged = [_judge(decided.exchange, backend.cluster) for backend in backends if backend.cluster is not None]
    if judged and all(each is False for each in judged):
        return Outcome(False, Reason.ADDRESS_DENIED.value, is_sure)
    return Outcome(True, "-", is_sure, None not in judged)


def _judge(exchange: Exchange, cluster: Cluster) -> bool | None:
    """Whether any address may be dialled; None where none is known."""
    if cluster.spec.backend.destination in OPERATOR:
        return bool(cluster.endpoints) or not cluster.spec.backend.endpoints
    try:
        target = cluster.tunnel_target(exchange)
        if cluster.parents is not None:
            cluster = cluster.parents.first(target.host, target.port)
        if cluster.parent is not None:
            cluster.opener.check_for_parent(target)
            return True
        literal = named_address(exchange, target)
        known = (literal,) if literal is not None else cluster.opener.resolver.known(target.host)
        if known is None:
            return None
        cluster.opener.address_policy().check(target.host, known, target.port)
    except Denied:
        return False
    except GatewayError:
        return None
    return True


def _depends_on_fields(decided: Decision) -> bool:
    authority = decided.exchange.authority
    return authority is not None and decided.listener.http.depends_on_fields(authority.host)


def _elsewhere(snapshot: Snapshot, decision: RecentDecision) -> Outcome:
    """Where its listener is gone: whether any other would allow it. A listener by another name may be the same port."""
    for address, port in snapshot.ports.items():  # the name that is asked for chooses among the listeners of a port
        alone = Snapshot(snapshot.generation, {address: port}, snapshot.clusters, snapshot.filters)
        found = outcome(alone, decision._replace(gateway=port.first.gateway, listener=port.first.name))
        if found.is_allowed:
            return replace(found, is_sure=False)
    return Outcome(False, NO_LISTENER)


def _judges(snapshot: Snapshot, decision: RecentDecision) -> frozenset[tuple[object, ...]]:
    """What else decides about it than names: filters, and what a tunnel has to hold."""
    decided = decided_again(snapshot, decision)
    if decided is None or decided.route is None:
        return frozenset()
    route, authority = decided.route, decided.exchange.authority
    chains = (route.chain, *(backend.chain for backend in route.backends))
    specs = (step.spec for chain in chains for phase in FILTER_PHASES for step in steps_of(chain, phase))
    found: set[tuple[object, ...]] = {(each.name, each.type, each.phase, each.config, each.fail_open) for each in specs}
    if route.is_tls_only:
        found |= {("TLS",), ("SNI",)}
    elif authority is not None and decided.listener.destinations.sni_check(authority) is SniCheck.MATCH:
        found.add(("SNI",))
    return frozenset(found)


def _address_rules(snapshot: Snapshot, decision: RecentDecision) -> object:
    decided = decided_again(snapshot, decision)
    if decided is None or decided.route is None:
        return None
    specs = (backend.cluster.spec for backend in decided.route.backends if backend.cluster is not None)
    return [(spec.addresses, spec.dns, spec.backend.destination, spec.backend.hostname) for spec in specs]


def decided_again(snapshot: Snapshot, decision: RecentDecision) -> Decision | None:
    """The decision made again; None where no listener is meant, or nothing was named."""
    question = question_of(decision)
    try:
        return decide(snapshot, question) if question is not None else None
    except HypotheticalRequestError:
        return None


def question_of(decision: RecentDecision) -> HypotheticalRequest | None:
    """The request of a recent decision, without its headers; None where it named no destination, or asked for none."""
    if decision.authority == "-" or (decision.method == "-" and decision.reason in UNASKED):
        return None
    method, url = decision.method, f"{decision.scheme}://{decision.authority}{decision.path}"
    if method in ("-", "CONNECT"):
        method, url = "CONNECT", decision.authority
    elif not decision.path.startswith("/"):
        return None
    return HypotheticalRequest(
        method, url, (), decision.namespace, decision.service_account, decision.gateway, decision.listener,
        asks_dns=False, groups=decision.groups, claims=decision.claims,
    )  # fmt: skip
