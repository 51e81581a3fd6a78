"""What one caller may reach on its listener, and what is left of its limits, as plain values.

Everything is read from the listener as it is for this caller (`SubjectOverrides`): what policies say of other clients
is not there, and names of routes, policies and backends are left out, since they tell who else uses the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from egressproxy.filters.base import LimitState
from egressproxy.filters.chain import Chain
from egressproxy.gateway.route import SELF_SERVICE, Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.ir.policy import DestinationRule, Mode
from egressproxy.model.authority import Authority, AuthorityError, parse_authority
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead

#: Entries of one list that are told; and rules whose limits are looked at.
MAX_ENTRIES: Final = 1000
MAX_RULES: Final = 100
#: Matches of routes that are looked at: each costs some microseconds, and a client may ask again and again.
MAX_MATCHES: Final = 2000

#: Two of one name of which so much of the limit is the difference are one, which grows while it is looked at.
SAME: Final = 0.001
#: Requests of its own that wait, of which a client is told, and what.
MAX_WAITING: Final = 100
OF_HOLDS: Final = ("id", "method", "authority", "path", "tool", "waitsSeconds", "leftSeconds")

#: By what a client is known, in words; others by their name.
_SHOWN_BY: Final = {"basic": "user name and password", "key": "API key", "gateway": "other gateway, by its signature"}

Rules = Iterable[tuple[str, Route]]


def access_of(
    exchange: Exchange, listener: ActiveListener, waiting: Sequence[Mapping[str, Any]] | None = ()
) -> dict[str, Any]:
    """For JSON. `listener`: as it is for the caller of `exchange`; `waiting`: its requests that wait for approval, as
    `approval_hold.holds` gives them, None where not all of them are known. Nothing is counted or changed.
    """
    who, policy = exchange.identity, listener.spec.policy
    only = who.grant.routes if who.grant is not None else None  # of an API key: destinations without a route are none
    rules, is_whole = _rules(listener, only)
    hostnames = sorted({hostname or "*": None for hostname, _ in rules})
    destinations = policy.destinations
    groups = destinations.allow if policy.mode is Mode.ENFORCE else destinations.allow[: destinations.firm_allow]
    if not listener.is_forward or only is not None:
        groups = ()
    deny = [rule for rule in destinations.deny if rule.is_firm or policy.mode is not Mode.REPORT]
    lists = [*groups, deny, hostnames]
    is_listed, is_open = bool(groups or hostnames), not groups and only is None
    return {
        "summary": f"{_who(who)} {_what(listener, is_listed=is_listed, is_open=is_open)}",
        # null: it is not known.
        "identity": {
            "name": _known(who.name), "source": _known(who.source), "namespace": _known(who.namespace),
            "serviceAccount": _known(who.service_account), "groups": list(who.groups),
        },
        "listener": {
            "gateway": listener.gateway, "name": listener.name, "kind": "forward" if listener.is_forward else "reverse",
            "mode": policy.mode.value,
        },
        # Each list has to have an entry that fits: one for each level that has any.
        "allow": [_entries(group) for group in groups],
        "deny": _entries(deny),
        "hostnames": hostnames[:MAX_ENTRIES],
        "limits": _limits(exchange, listener, rules),
        "waiting": [_waiting(hold) for hold in islice(waiting or (), MAX_WAITING)],
        "isComplete": is_whole
        and waiting is not None
        and len(waiting) <= MAX_WAITING
        and all(len(each) <= MAX_ENTRIES for each in lists),
    }  # fmt: skip


def _who(who: CallerIdentity) -> str:
    if who.name == ANONYMOUS.name:
        return "The gateway does not know who you are."
    return f"You are {who.name}; the gateway knows it by your {_SHOWN_BY.get(who.source, who.source)}."


def _what(listener: ActiveListener, *, is_listed: bool, is_open: bool) -> str:
    """`is_listed`: something is allowed by name; `is_open`: no list of policies has to have a destination."""
    mode = listener.spec.policy.mode
    if not listener.is_forward:
        return "You may ask for what the routes of this listener serve."
    if mode is not Mode.ENFORCE and is_open:
        noted = " What policies would deny passes, and is noted (mode Report)." if mode is Mode.REPORT else ""
        return f"You may reach every public host but those that are denied.{noted}"
    return "You may reach what is listed here, and nothing else." if is_listed else "You may reach nothing."


def _known(text: str) -> str | None:
    return None if text == "-" else text


def _waiting(hold: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(hold[name]) if name.endswith("Seconds") else hold[name] for name in OF_HOLDS}


def _entries(rules: Iterable[DestinationRule]) -> list[dict[str, Any]]:
    """In the words of an EgressPolicy; without names and ranges an entry is for every host."""
    made = []
    for rule in islice(rules, MAX_ENTRIES):
        fields = {"hostnames": rule.hostnames, "cidrs": map(str, rule.cidrs), "ports": rule.ports}
        lists = {name: list(values) for name, values in fields.items()}
        made.append({name: values for name, values in lists.items() if values})
    return made


def _rules(listener: ActiveListener, only: frozenset[str] | None) -> tuple[list[tuple[str, Route]], bool]:
    """The rules that this caller may ask, each with a hostname, and whether all of them were looked at. `only`: the
    names of their routes.
    """
    seen = list(islice(listener.http.every(), MAX_MATCHES + 1))
    rules = dict.fromkeys(seen[:MAX_MATCHES])
    return [(hostname, route) for hostname, route in rules if _may_ask(route, hostname, only)], len(seen) <= MAX_MATCHES


def _may_ask(route: Route, hostname: str, only: frozenset[str] | None) -> bool:
    """Whether policy lets the caller ask this route for this hostname; of a wildcard, for a name below it."""
    if route.kind == SELF_SERVICE or (only is not None and route.name not in only):
        return False
    if not route.has_destination_policy or not hostname:
        return True
    try:
        authority = parse_authority(hostname.replace("*", "any").encode(), 80)
    except AuthorityError:
        return False
    denied = route.destinations.explicit_deny(authority)
    if denied is None and route.permission is not None:
        denied = route.permission.decide(authority)
    return denied is None


def _limits(exchange: Exchange, listener: ActiveListener, rules: Rules) -> list[dict[str, Any]]:
    """Of each limit that may hold for the caller what it allows and has left; what reads the same stands there once."""
    found: dict[tuple[object, ...], list[LimitState]] = {}
    for name, hostname, chain, backend in islice(_chains(listener, rules), MAX_RULES):
        asked = _asked(exchange, hostname)
        asked.route, asked.backend = name, backend
        for step in (*(chain.request_headers or ()), *(chain.backend_request or ())):
            for each in step.filter.explain(asked):
                known = found.setdefault((each.name, each.allows, each.limit), [])
                if not any(abs(other.left - each.left) <= each.limit * SAME for other in known):
                    known.append(each)
    return [each.told() for known in found.values() for each in known][:MAX_ENTRIES]


def _chains(listener: ActiveListener, rules: Rules) -> Iterator[tuple[str, str, Chain, str]]:
    """Of every rule that the caller may ask, and of its backends: its name, a hostname, its filters, its backend."""
    found: dict[int, tuple[Route, str]] = {}
    if listener.defaults is not None:
        found[id(listener.defaults.route)] = listener.defaults.route, "any.invalid"
    for hostname, route in rules:
        found.setdefault(id(route), (route, hostname.replace("*", "any") or "any.invalid"))
    for route, hostname in found.values():
        yield route.name, hostname, route.chain, "-"
        for backend in route.backends:
            yield route.name, hostname, backend.chain, backend.name


def _asked(exchange: Exchange, hostname: str) -> Exchange:
    """A request of the same caller, which nobody sends."""
    made = Exchange(exchange.client, exchange.gateway, exchange.listener, exchange.started_at, exchange.identity)
    made.request = RequestHead(b"GET", b"/", Fields())
    made.method, made.path = b"GET", b"/"
    made.authority = Authority(hostname, 80)
    return made
