"""Squid's access rules to EgressPolicies. Source of the semantics: squid-cache/squid, src/cf.data.pre.

A condition is true (1), false (0), or _UNKNOWN: it cannot be known from clients, hosts and ports. A rule of `allow`
then does not allow, and a rule of `deny` denies, so that the result allows no more than Squid.

A client that may open a tunnel to a host and port may send anything there. So destinations are decided for CONNECT;
port 80, where the gateway reads the requests of tunnels, also for plain requests if every method is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, compress, takewhile
from pathlib import Path
from typing import Final, NamedTuple

from egressproxy.operators.convert.destination_table import (
    ANY_ADDRESS,
    ANY_NAME,
    Entry,
    Host,
    Network,
    Origin,
    Policy,
    Ports,
    Verdict,
    listed_ports,
    matches,
    port_ranges,
    port_text,
    write_entries,
)
from egressproxy.operators.convert.manifests import Converted
from egressproxy.operators.convert.squid_conf import OF_NAMES, SquidAcl, SquidConf, SquidRule

_UNKNOWN: Final = 0.5
_TYPES: Final = {
    "url_regex": "paths and URLs are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "urlpath_regex": "paths and URLs are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "method": "methods are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "dstdom_regex": "only expressions that mean one name or suffix become hostnames",
    "ssl::server_name_regex": "only expressions that mean one name or suffix become hostnames",
    "dst": "an address that a name resolves to can be denied, and not be the reason to allow",
    "dstdomain": "it may match an address by its reverse name: write the option -n, if that is not meant",
    "proxy_auth": "users by name become subjects only as NAMESPACE.SERVICEACCOUNT: docs/identity.md",
    "src": "the address is not known with passwords, with forwarded addresses, or where networks overlap",
    "time": "policies do not depend on the time",
    "external": "a decision of another program is ExternalAuth or a Webhook: docs/filters.md",
}


class _Case(NamedTuple):
    """One class of requests. `client` is the set of `src` ACLs that match; `host` ANY_NAME: any address by name."""

    client: frozenset[str]
    host: Host
    port: tuple[int, int]
    method: str = "CONNECT"


Table = tuple[dict[Host, Verdict], list[Entry]]


class _Squid:
    """The truth of conditions, and the rule that decides a case."""

    def __init__(self, conf: SquidConf) -> None:
        self.conf = conf
        self.acls = conf.acls
        used = conf.used()
        self.has_passwords = any(acl.words == {"REQUIRED"} for acl in used if acl.kind == "proxy_auth")
        conf.src_is_known &= not self.has_passwords
        self.ports = port_ranges([each for acl in used for each in acl.ports])
        self.hosts: dict[Host, Origin] = dict.fromkeys((ANY_NAME, *ANY_ADDRESS), Origin(conf.into.source, 0))
        for acl in used:
            for each, origin in acl.destinations():
                self.hosts.setdefault(each, origin)
        by_host = [acl.name for acl in self.acls.values() if acl.kind in ("dst", *OF_NAMES)]
        self._lists: dict[tuple[frozenset[str], str], list[SquidRule]] = {}
        #: Hosts that every rule treats alike have the same truths.
        self.kinds: dict[Host, tuple[float, ...]] = {}
        for host in self.hosts:
            case = _Case(frozenset(), host, (80, 80))
            self.kinds[host] = (isinstance(host, str), *(self.truth((False, name), case) for name in by_host))
        by_client = [acl for acl in used if acl.kind == "src" and not acl.has_every_address]
        #: The networks of clients by the set of `src` ACLs that match them; the widest are all the others.
        self.clients: dict[frozenset[str], list[Network]] = {}
        for network in dict.fromkeys((*ANY_ADDRESS, *chain(*((*acl.networks, *acl.doubtful) for acl in by_client)))):
            covered = {acl.name: acl.covers(network) for acl in by_client if conf.src_is_known}
            key = frozenset(name if covers == 1 else f"{name}?" for name, covers in covered.items() if covers)
            if conf.src_is_known or network in ANY_ADDRESS:
                self.clients.setdefault(key, []).append(network)

    def truth(self, term: tuple[bool, str], case: _Case) -> float:
        is_negated, name = term
        acl = self.acls[name]
        if acl.kind in ("any-of", "all-of"):
            groups = (min((self.truth(each, case) for each in group), default=1.0) for group in acl.groups)
            found = max(groups, default=0.0)
        else:
            found = self._matches(acl, case) or (0 if acl.is_exact else _UNKNOWN)
        return 1 - found if is_negated else found

    def _matches(self, acl: SquidAcl, case: _Case) -> float:
        host, is_tunnel = case.host, case.method == "CONNECT"
        if acl.kind in ("src", "dst") and acl.has_every_address:
            return 1
        if acl.kind == "src":
            is_doubtful = not self.conf.src_is_known or f"{acl.name}?" in case.client
            return _UNKNOWN if is_doubtful else acl.name in case.client
        if acl.kind == "dst":
            return _UNKNOWN if isinstance(host, str) else acl.covers(host)
        if acl.kind == "port":
            return any(low <= case.port[0] and case.port[1] <= high for low, high in acl.ports)
        if acl.kind == "method":
            return case.method in acl.words
        if acl.kind == "manager":
            return 0
        if acl.kind == "proto":
            if case.port[0] == 80 and not is_tunnel:
                return "HTTP" in acl.words
            return _UNKNOWN if acl.words & {"HTTP", "HTTPS", "NONE"} else 0
        if acl.kind == "proxy_auth":
            return 1 if acl.words == {"REQUIRED"} else _UNKNOWN
        if acl.kind not in OF_NAMES or "option" in acl.words or (acl.kind.startswith("ssl::") and not is_tunnel):
            return _UNKNOWN
        if isinstance(host, str):
            return matches(acl.patterns, host)
        if host in acl.networks and host.num_addresses == 1:
            return 1
        is_text = acl.kind == "dstdomain" and not acl.looks_up
        return 0 if is_text or (acl.kind == "ssl::server_name" and acl.is_exact) else _UNKNOWN

    def decide(self, rules: Sequence[SquidRule], case: _Case) -> SquidRule | None:
        """The rule that allows the case, or None. Rules that depend on what cannot be known are left out."""
        for at, rule in enumerate(rules):
            truths = [*takewhile(bool, (self.truth(each, case) for each in rule.terms))]
            if len(truths) < len(rule.terms):
                continue
            unknown = [name for (_, name), each in zip(rule.terms, truths, strict=True) if each == _UNKNOWN]
            if not unknown:
                return rule if rule.allows else None
            if not rule.allows and isinstance(case.host, str) and self.is_by_address(rule, unknown):
                continue  # its networks become an entry of deny
            later = self.decide(rules[at + 1 :], case)
            if rule.allows and not isinstance(case.host, str):  # nobody misses a rule for reverse names
                unknown = [each for each in unknown if self.acls[each].kind not in OF_NAMES]
            if (later is None and unknown) if rule.allows else later is not None:
                effect = "not allowed" if rule.allows else "each possible match is denied"
                self.conf.into.leave_out(rule.origin, f"{effect}: {'; '.join(map(self._why_unknown, unknown))}")
            return later if rule.allows else None
        return None

    def _why_unknown(self, name: str) -> str:
        acl = self.acls[name]
        hint = _TYPES.get(acl.kind, f"type {acl.kind} is not carried over")
        hint = hint if acl.is_exact else "a value of it has no counterpart"
        return f"acl {name} ({acl.kind}, line {acl.origin.line}): {hint}"

    def is_by_address(self, rule: SquidRule, unknown: Sequence[str]) -> bool:
        """Whether it denies addresses that names resolve to, as an entry of deny with cidrs does."""
        acls = [self.acls[name] for name in unknown if (False, name) in rule.terms]
        return len(acls) == len(unknown) == 1 and acls[0].kind == "dst" and acls[0].is_exact

    def _rules(self, client: frozenset[str], name: str) -> list[SquidRule]:
        """The rules of a list that may be for this client, and its end. Kept, since hosts and ports are many."""
        if (client, name) not in self._lists:
            rules, case = self.conf.lists.get(name, []), _Case(client, ANY_NAME, (80, 80))
            # The end of a list is the opposite of its last rule; a tunnel that ssl_bump does not name is not opened.
            at = rules[-1].origin if rules else Origin("", 0)
            ends = name == "ssl_bump" or (bool(rules) and not rules[-1].allows)
            end = SquidRule(ends, (), Origin(at.path, at.line, f"{name}: behind the last rule"))
            by_client = ([each for each in rule.terms if self.acls[each[1]].kind == "src"] for rule in rules)
            known = [all(self.truth(each, case) for each in terms) for terms in by_client]
            self._lists[client, name] = [*compress(rules, known), end]
        return self._lists[client, name]

    def _allowed(self, case: _Case) -> SquidRule | None:
        """The rule of the first list, if each list allows the case."""
        found = None
        for name in dict.fromkeys(("http_access", *self.conf.lists)):
            if name == "ssl_bump" and case.method != "CONNECT":
                continue
            by = self.decide(self._rules(case.client, name), case)
            if by is None:
                return None
            found = found or by
        return found

    def table(self, client: frozenset[str]) -> Table:
        """What a client may reach, and the networks that are denied to names, too."""
        written = {word for acl in self.acls.values() if acl.kind == "method" for word in acl.words}
        methods = ["GET", *sorted(written - {"CONNECT", "GET"}), "any other method"]
        some_methods: dict[Origin, set[tuple[int, int]]] = {}
        no_tunnels: dict[Origin, set[tuple[int, int]]] = {}

        def reach(host: Host, port: tuple[int, int]) -> SquidRule | None:
            tunnel = self._allowed(_Case(client, host, port))
            if tunnel and not self.conf.opens_tunnels:
                return tunnel
            plain = [self._allowed(_Case(client, host, port, method)) for method in methods]
            first = next(filter(None, plain), None)
            if first and None not in plain and (tunnel or port == (80, 80)):
                return first
            if first:
                (some_methods if None in plain else no_tunnels).setdefault(first.origin, set()).add(port)
            return None

        verdicts: dict[Host, Verdict] = {}
        known: dict[tuple[float, ...], Verdict] = {}
        for host, kind in self.kinds.items():
            if kind not in known:
                found = {port: rule for port in sorted(self.ports) if (rule := reach(host, port))}
                rules = sorted((each.origin for each in found.values()), key=lambda each: (each.path, each.line))
                known[kind] = Verdict(frozenset(found), rules[0] if rules else None)
            verdicts[host] = known[kind]
        for table, why in (
            (some_methods, f"not all methods are allowed: {_TYPES['method']}"),
            (no_tunnels, "plain requests are allowed, and tunnels are not: an entry allows both"),
        ):
            for origin, among in table.items():
                self.conf.into.leave_out(origin, f"{port_text(frozenset(among), self.ports)}: {why}")
        denied = (self._denied_addresses(client, rules) for rules in self.conf.lists.values())
        return verdicts, [each for entries in denied for each in entries]

    def _denied_addresses(self, client: frozenset[str], rules: Sequence[SquidRule]) -> Iterable[Entry]:
        """The networks of rules that deny by `dst`: names that resolve there are refused, too."""
        for at, rule in enumerate(rules):
            if rule.allows:
                continue
            cases = {port: _Case(client, ANY_NAME, port) for port in self.ports}
            known = [term for term in rule.terms if self.acls[term[1]].kind in ("src", "port")]
            among = frozenset(port for port, case in cases.items() if all(self.truth(each, case) for each in known))
            case = [*cases.values()][-1]
            unknown = [term[1] for term in rule.terms if self.truth(term, case) == _UNKNOWN]
            if not among or not self.is_by_address(rule, unknown):
                continue
            acl = self.acls[unknown[0]]
            if not acl.origin.line:
                continue  # the predefined ones are addresses that are not dialled anyway
            listed = listed_ports(among, self.ports)
            yield Entry((*acl.networks, *acl.doubtful), listed, str(rule.origin))
            if any(each.allows for each in rules[:at]):
                self.conf.into.leave_out(
                    rule.origin, "carried over, also for what earlier rules allow: deny beats allow"
                )
            is_wider = any(self.acls[name].kind not in ("src", "port", "dst") for _, name in rule.terms)
            if is_wider or (not listed and among != self.ports):
                self.conf.into.leave_out(
                    rule.origin, "carried over for every port, name and method: networks are denied for all"
                )


def convert_squid(path: Path) -> Converted:
    """The policies for a squid.conf. Raises ConvertError."""
    into = Converted(str(path))
    conf = SquidConf(into)
    conf.read(path)
    squid = _Squid(conf)
    into.has_passwords = squid.has_passwords
    tables = {client: squid.table(client) for client in squid.clients}
    names = _client_names(tables)
    alike: list[tuple[list[frozenset[str]], Table]] = []
    for client, table in tables.items():
        members = next((each for each, other in alike if _ports(other) == _ports(table)), None)
        if members is None:  # the comments then name the rule of the first
            alike.append((members := [], table))
        members.append(client)
    told_apart = len(alike) > 1
    for members, (_, by_address) in alike:
        made, *_ = [  # the rules of each are told
            write_entries(
                tables[each][0], squid.ports, squid.hosts.get,
                lambda rule, why: into.leave_out(rule or Origin(str(path), 0), why),
            )
            for each in members
        ]  # fmt: skip
        if not made.allow and made.mode != "Open":
            continue
        made.deny += [each for each in by_address if not _is_written(each, made.deny)]
        if told_apart:
            made.clients = tuple(names[each] for each in members)
            made.name = made.clients[0]
        into.policies.append(made)
    if told_apart and into.policies:
        for client, networks in squid.clients.items():
            if not client and not any(names[client] in each.clients for each in into.policies):
                continue  # an unknown client may nothing, too
            into.networks.setdefault(names[client], []).extend(networks)
    into.policies = into.policies or [Policy()]
    return into


def _client_names(clients: Iterable[frozenset[str]]) -> dict[frozenset[str], str]:
    names: dict[frozenset[str], str] = {}
    for client in clients:
        words = sorted(client) or ["others"]
        name = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:50].strip("-") or "clients"
        while name in names.values():
            name += "-2"
        names[client] = name
    return names


def _ports(table: Table) -> tuple[list[Ports], list[Entry]]:
    return [each.ports for each in table[0].values()], table[1]


def _is_written(entry: Entry, entries: list[Entry]) -> bool:
    return any(
        set(entry.hosts) <= set(each.hosts)
        and (not each.ports or (bool(entry.ports) and set(entry.ports) <= set(each.ports)))
        for each in entries
    )  # fmt: skip
