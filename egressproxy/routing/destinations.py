"""Destinations: the decision whether a client may reach an authority, before any name is resolved.

Deny beats allow at any level. Every level that has an allow list must allow; without any list nothing is allowed. A
deny holds for the place: for the host that a client named, and for the hostname of its backend.
Source: `destinations` of an EgressPolicy (docs/policies.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from egressproxy.errors import Denied, Reason
from egressproxy.ir.backend import BackendIR, Destination
from egressproxy.ir.policy import DestinationRule, DestinationsIR, Mode, Network, SniCheck, entry_text
from egressproxy.model.addresses import aliases, allow_remedy
from egressproxy.model.authority import Authority
from egressproxy.routing.hosts import HostMap, patterns_of

#: The most allowed destinations in the cache; a policy never changes, so the cache stays valid.
MAX_KNOWN: Final = 1024
_CANNOT_OPEN: Final = (
    "mend what the status of that policy says of its `intercept`, or remove the name from intercept.hostnames"
)
_DELEGATED: Final = (
    "a route to a Dynamic backend serves what it names, and what policies of the listener's namespace allow: here only "
    "policies of another namespace have destinations.allow"
)


@dataclass(frozen=True, slots=True)
class Denial:
    """A `deny` entry that matches a destination: the client's (`backend` is "") or that of the backend of this name."""

    authority: Authority
    rule: DestinationRule
    backend: str = ""

    def holds(self, mode: Mode) -> bool:
        """Whether it closes the place in this mode; otherwise it is only reported."""
        return self.rule.is_firm or mode is not Mode.REPORT

    def error(self) -> Denied:
        """A new error to raise. Explanations and status use its text, too."""
        rule, authority = self.rule, self.authority
        where = f"on port {authority.port} " if rule.ports else ""
        field = "intercept.hostnames" if rule.intercepts else "destinations.deny"
        leads = f"backend {self.backend} leads to {authority}; " if self.backend else ""
        names, ranges = _matching(rule, authority)
        denied = Denied(
            Reason.DESTINATION_DENIED,
            f"{authority.host} is denied {where}by policy {rule.policy}",
            rule=f"EgressPolicy {rule.policy}",
            remedy=_CANNOT_OPEN if rule.intercepts else f"remove or narrow its entry in {field} of that policy",
            detail=f"{leads}denied by {entry_text(names, ranges, rule.ports)} in {field}",
        )
        denied.tell(rule.message)
        denied.is_firm = rule.is_firm
        denied.policy = rule.policy
        if names:  # the most specific
            denied.entry = max(names, key=lambda pattern: (pattern == authority.host, len(pattern)))
        else:
            denied.entry = str(max(ranges, key=lambda network: network.prefixlen)) if ranges else "*"
        return denied


class DestinationPolicy:
    """Compiled `destinations` of the policies that hold at one place. A decision costs a few dictionary probes whatever
    the number of entries, and one for a destination that was allowed before.
    """

    __slots__ = (
        "_allow", "_allowed", "_deny", "_deny_backends", "_firm_allow", "_message", "_sources", "_withheld", "denies",
        "is_delegated", "is_firm", "lists",
    )  # fmt: skip

    def __init__(self, spec: DestinationsIR, sources: Sequence[str] = ()) -> None:
        listed = spec.listed or (("",),) * len(spec.allow)
        messages = spec.messages or ("",) * len(spec.allow)
        self._allow = tuple(
            _Entries(group, names[0], message)
            for group, names, message in zip(spec.allow, listed, messages, strict=True)
        )
        self._message = spec.message
        names = list(dict.fromkeys(chain.from_iterable(spec.listed)))
        #: For operators: whose lists are for the client, where these are several.
        self.lists = f"the policies with destinations.allow for this client are {', '.join(names)}" if names[1:] else ""
        #: Whether only policies of another namespace than the listener allow something: then routes do not serve it.
        self.is_delegated = spec.is_delegated
        self._firm_allow = spec.firm_allow
        #: Whether an entry holds in mode Report, too; then the SNI check of a tunnel holds there as well.
        self.is_firm = spec.firm_allow > 0 or any(rule.is_firm for rule in spec.deny)
        self._deny = self._deny_backends = _firm_first(spec.deny)
        if any(rule.intercepts for rule in spec.deny):
            self._deny_backends = _firm_first(rule for rule in spec.deny if not rule.intercepts)
        self.denies = bool(spec.deny)  # otherwise `explicit_deny` need not be called
        self._sources = tuple(sources)
        self._withheld = _Entries(spec.withheld)
        self._allowed: dict[tuple[str, int], SniCheck] = {}  # the remembered decisions

    @property
    def has_allow_list(self) -> bool:
        """Whether any policy has an allow list, an empty one included."""
        return bool(self._allow)

    def explicit_deny(self, authority: Authority) -> Denied | None:
        """The error of the `deny` entry that matches this host and port, or None; an address in each of its spellings.
        It holds for routes, too. Nothing is raised: the caller knows the mode.
        """
        if not self.denies:
            return None
        for entries in self._deny:
            rule = entries.find(authority)
            if rule is None and authority.address is not None:
                # Another spelling must not get around the entry: RFC 4291 section 2.5.5, `model.addresses`.
                others = (Authority(str(each), authority.port, each) for each in aliases(authority.address)[1:])
                rule = next(filter(None, map(entries.find, others)), None)
            if rule is not None:
                return Denial(authority, rule).error()
        return None

    def explicit_deny_of(self, backend: BackendIR) -> Denial | None:
        """The `deny` entry that matches the hostname and port of this backend or of one of its parents, or None. Those
        that mean interception deny clients that name the host, not backends.
        """
        for entries in self._deny_backends:
            for on_the_way in (backend, *backend.parents()):
                if on_the_way.destination is Destination.FQDN:
                    authority = Authority(on_the_way.hostname, on_the_way.port)
                    rule = entries.find(authority)
                    if rule is not None:
                        return Denial(authority, rule, on_the_way.name)
        return None

    def decide(self, authority: Authority) -> Denied | None:
        """Of a destination without a route: None, or why it is denied: by a deny entry, else by an allow list."""
        if (authority.host, authority.port) in self._allowed:
            return None
        denied = self.decide_firm(authority)
        if denied is not None:
            return denied
        if not self._allow:
            if not self._sources:
                denied = Denied(
                    Reason.NO_POLICY,
                    f"{authority.host} is not allowed: no policy and no route says so",
                    remedy="attach an EgressPolicy with destinations.allow, or a route with this hostname",
                )
                return self._for_operators(denied, authority)
            message = f"{authority.host} is not allowed: no policy with destinations.allow is for this client"
            denied = Denied(Reason.DESTINATION_NOT_ALLOWED, message, remedy=allow_remedy(authority))
            denied.tell(self._message)
            return self._for_operators(denied, authority)
        denied = self._outside(authority, self._allow[self._firm_allow :])
        if denied is not None:
            return denied
        if len(self._allowed) >= MAX_KNOWN:
            self._allowed.clear()
        self._allowed[authority.host, authority.port] = self._sni_check(authority)
        return None

    def decide_firm(self, authority: Authority) -> Denied | None:
        """The decision in mode Open: only deny entries, and allow lists that hold in every mode, deny; None allows."""
        denied = self.explicit_deny(authority)
        if self._firm_allow and (denied is None or not denied.is_firm):
            outside = self._outside(authority, self._allow[: self._firm_allow])
            if outside is not None:
                outside.is_firm = True
                return outside
        return denied

    def _outside(self, authority: Authority, groups: Iterable[_Entries]) -> Denied | None:
        """The error of the first of these groups that does not allow it, or None."""
        for group in groups:
            if group.find(authority) is None:
                policy = group.policy or (self._sources[0] if self._sources else "-")
                return self._not_allowed(authority, policy, group.message, is_port_alone=group.names(authority))
        return None

    def sni_check(self, authority: Authority) -> SniCheck:
        """The `sni` of the entries that allow this destination: ANY only if every level says ANY."""
        known = self._allowed.get((authority.host, authority.port))
        return known if known is not None else self._sni_check(authority)

    def _sni_check(self, authority: Authority) -> SniCheck:
        rules = [group.find(authority) for group in self._allow]
        if rules and all(rule is not None and rule.sni is SniCheck.ANY for rule in rules):
            return SniCheck.ANY
        return SniCheck.MATCH

    def entry(self, authority: Authority) -> tuple[str, str] | None:
        """The policy that allows this destination, and the hostname or range of its entry as written, of the most
        specific level. None where a level has no such entry (modes Open and Report let it pass).
        """
        rules = [group.find(authority) for group in self._allow]
        found = rules[-1] if rules and None not in rules else None
        return (found.policy, self._allow[-1].pattern(authority)) if found is not None else None

    def grounds(self, authority: Authority) -> tuple[DestinationRule, ...]:
        """The entries that allow this destination, one of each level that has one; for explanations."""
        found = (group.find(authority) for group in self._allow)
        return tuple(rule for rule in found if rule is not None)

    def _not_allowed(
        self, authority: Authority, policy: str, message_of_policy: str, *, is_port_alone: bool = False
    ) -> Denied:
        """The error, with what to add. `is_port_alone`: on another port it would be allowed."""
        where = f"on port {authority.port} " if is_port_alone else ""
        message, rule = f"{authority.host} is not allowed {where}by policy {policy}", f"EgressPolicy {policy}"
        denied = Denied(Reason.DESTINATION_NOT_ALLOWED, message, rule=rule, remedy=allow_remedy(authority))
        denied.tell(message_of_policy)
        denied.policy = policy
        return self._for_operators(denied, authority)

    def _for_operators(self, denied: Denied, authority: Authority) -> Denied:
        """The error with what its client is not told: others may go there, or whose lists are for the client."""
        theirs = self._withheld.find(authority)
        if theirs is not None:
            entry = entry_text(*_matching(theirs, authority), theirs.ports)
            denied.detail = f"{entry} in destinations.allow of policy {theirs.policy} is for its subjects alone"
        denied.detail = denied.detail or self.lists
        return denied

    def refuse_for_route(self, authority: Authority) -> Denied:
        """The error where `is_delegated` and a route does not name the destination."""
        denied = self.decide_firm(authority)
        if denied is None:
            denied = self._not_allowed(authority, self._allow[0].policy or "-", self._allow[0].message)
            denied.remedy = "add the host to hostnames of the route, or to destinations.allow of the Gateway's owner"
            denied.detail = _DELEGATED
        return denied


class _Entries:
    """The entries of one list, found by host or by address."""

    __slots__ = ("_hosts", "_networks", "message", "policy")

    def __init__(self, rules: Iterable[DestinationRule], policy: str = "", message: str = "") -> None:
        self._hosts: HostMap[list[DestinationRule]] = HostMap()
        self._networks: list[tuple[Network, DestinationRule]] = []
        self.message = message  # for clients that the list leaves out
        self.policy = policy  # a policy with the list; "": the first entry's
        for rule in rules:
            self.policy = self.policy or rule.policy
            self._networks += [(network, rule) for network in rule.cidrs]
            for pattern in rule.hostnames if rule.hostnames or rule.cidrs else ("",):  # ports alone: every host
                self._hosts.setdefault(pattern, []).append(rule)

    def names(self, authority: Authority) -> bool:
        """Whether an entry matches the host, on any port."""
        return any(self._ranges(authority)) or self._hosts.match(authority.host) is not None

    def find(self, authority: Authority) -> DestinationRule | None:
        """The first entry that matches host and port, the most specific hostname first."""
        port = authority.port
        if authority.address is not None:
            for _, rule in self._ranges(authority):
                if _has_port(rule, port):
                    return rule
        for rule in self._hosts.exact(authority.host) or ():
            if _has_port(rule, port):
                return rule
        for rules in self._hosts.after_exact(authority.host):
            for rule in rules:
                if _has_port(rule, port):
                    return rule
        return None

    def pattern(self, authority: Authority) -> str:
        """The hostname or range by which `find` finds its entry, as written; "*": every host. Costs a few probes."""
        port = authority.port
        for network, rule in self._ranges(authority):
            if _has_port(rule, port):
                return str(network)
        for pattern in patterns_of(authority.host):
            if any(_has_port(rule, port) for rule in self._hosts.get(pattern) or ()):
                return pattern
        return "*"

    def _ranges(self, authority: Authority) -> Iterator[tuple[Network, DestinationRule]]:
        """The ranges that an address is in, each with its entry; none for a name."""
        address = authority.address
        if address is not None:
            for network, rule in self._networks:
                if address.version == network.version and address in network:
                    yield network, rule


def _firm_first(rules: Iterable[DestinationRule]) -> tuple[_Entries, ...]:
    """The entries of a deny list, those that hold in mode Report first, so that they decide where both match."""
    deny = tuple(rules)
    firm = [rule for rule in deny if rule.is_firm]
    return (_Entries(firm), _Entries(rule for rule in deny if not rule.is_firm)) if firm else (_Entries(deny),)


def _has_port(rule: DestinationRule, port: int) -> bool:
    return not rule.ports or port in rule.ports


def _matching(rule: DestinationRule, authority: Authority) -> tuple[list[str], list[Network]]:
    """The hostnames and ranges of an entry that match this destination, as they are written."""
    spellings = aliases(authority.address) if authority.address is not None else ()
    return (
        [pattern for pattern in rule.hostnames if _matches(pattern, authority.host)],
        [network for network in rule.cidrs if any(each in network for each in spellings)],
    )


def _matches(pattern: str, host: str) -> bool:
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]))


_STRICTNESS: Final = (Mode.OPEN, Mode.REPORT, Mode.ENFORCE)


class Permission:
    """What one rule with a Dynamic backend permits by itself: the hosts that its route names. Deny entries are not its
    task: they hold for every rule.

    A route to a backend with an address allows that address. A Dynamic backend has none, so the `destinations` of the
    listener decide about every host that the route does not name, as if there were no route; the route serves what they
    allow. So a route for every host, made for its filters, does not open the gateway.

    `hostnames` are those of the route as written. A name is permitted. A wildcard is permitted only where no policy of
    the listener has an allow list, since such a list says which part of the wildcard is meant.
    `ports` are those of the backend; None is every port.
    `destinations` are the listener's. `mode` says whether what is denied is refused. `permitted` holds the texts of the
    authorities that were permitted before.
    """

    __slots__ = ("_below", "_destinations", "_hosts", "_says", "mode", "permitted", "ports")

    def __init__(
        self,
        route: str,
        hostnames: Iterable[str],
        ports: Collection[int] | None,
        destinations: DestinationPolicy,
        mode: Mode,
    ) -> None:
        self._hosts: HostMap[bool] = HostMap()
        self._below: HostMap[bool] = HostMap()  # of which the lists of another namespace say which part
        for hostname in hostnames:
            if hostname.strip("*.") and not (destinations.has_allow_list and hostname.startswith("*.")):
                self._hosts.setdefault(hostname, True)
            elif hostname.strip("*.") and destinations.is_delegated:
                self._below.setdefault(hostname, True)
        self.ports = frozenset(ports) if ports is not None else None
        self._destinations = destinations
        self.mode = mode
        self.permitted: set[str] = set()
        on_ports = ""
        if self.ports is not None:
            on_ports = f", on port {', '.join(map(str, sorted(self.ports)))}" if self.ports else ", on no port"
        self._says = (
            f"{route} leads to a Dynamic backend, and permits by itself the hosts that it names{on_ports}; "
            "destinations decide about the rest, and about what is below a wildcard where they have an allow list"
        )

    def names(self, authority: Authority) -> bool:
        """Whether the route itself permits this host and port. The host may be a wildcard, for all hosts below it."""
        if self.ports is not None and authority.port not in self.ports:
            return False
        return self._hosts.match(authority.host) is not None

    def decide(self, authority: Authority) -> Denied | None:
        """None if the route names this destination or the listener's policies allow it; otherwise the error."""
        if self.names(authority):
            if len(self.permitted) >= MAX_KNOWN:
                self.permitted.clear()
            self.permitted.add(authority.text)
            return None
        if self.mode is Mode.OPEN:
            denied = self._destinations.decide_firm(authority)
        elif not self._leaves(authority):
            denied = self._destinations.refuse_for_route(authority)
        else:
            denied = self._destinations.decide(authority)
        if denied is not None and denied.detail == self._destinations.lists:
            denied.detail = "; ".join(filter(None, (self._says, denied.detail)))
        return denied

    def grounds(self, authority: Authority) -> tuple[DestinationRule, ...]:
        """The policy entries that allow a destination that the route does not name; for explanations."""
        if self.names(authority) or not self._leaves(authority):
            return ()
        return self._destinations.grounds(authority)

    def _leaves(self, authority: Authority) -> bool:
        """Whether the listener's `destinations` decide. Lists of another namespace alone decide which part of a
        wildcard of the route is meant, and nothing else.
        """
        if not self._destinations.is_delegated:
            return True
        has_port = self.ports is None or authority.port in self.ports
        return has_port and self._below.match(authority.host) is not None


def strictest(*modes: Mode) -> Mode:
    """The strictest of these modes: Enforce before Report before Open."""
    return max(modes, key=_STRICTNESS.index)
