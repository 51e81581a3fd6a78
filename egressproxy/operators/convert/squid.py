"""Squid's access rules to EgressPolicies. Source of the semantics: squid-cache/squid, src/cf.data.pre.

A condition is True, False, or None: it cannot be known from clients, hosts and ports. A rule of `allow` then does not
allow, and a rule of `deny` denies, so that the result allows no more than Squid.

A client that may open a tunnel to a host and port may send anything there. So destinations are decided for CONNECT;
port 80, where the gateway reads the requests of tunnels, also for plain requests if every method is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from egressproxy.operators.convert.destination_table import (
    ANY_ADDRESS,
    ANY_NAME,
    Entry,
    Host,
    Network,
    Origin,
    Ports,
    Verdict,
    listed_ports,
    matches,
    port_ranges,
    port_text,
    write_entries,
)
from egressproxy.operators.convert.manifests import Converted, Policy
from egressproxy.operators.convert.squid_conf import OF_NAMES, SquidAcl, SquidConf, SquidRule, is_within

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


@dataclass(frozen=True, slots=True)
class _Case:
    """One class of requests. `client` is the set of `src` ACLs that match; `host` None: any address by name."""

    client: frozenset[str]
    host: Host
    port: tuple[int, int]
    method: str


class _Decider:
    """The truth of conditions, and the rule that decides a case."""

    def __init__(self, conf: SquidConf) -> None:
        self.conf = conf
        self.acls = conf.acls

    def truth(self, name: str, case: _Case) -> bool | None:
        acl = self.acls[name]
        if acl.kind in ("any-of", "all-of"):
            return _any([_all([self.term(each, case) for each in group]) for group in acl.groups])
        found = self._matches(acl, case)
        return None if found is False and not acl.is_exact else found

    def term(self, term: tuple[bool, str], case: _Case) -> bool | None:
        found = self.truth(term[1], case)
        return found if found is None else found != term[0]

    def _matches(self, acl: SquidAcl, case: _Case) -> bool | None:
        host, is_name = case.host, isinstance(case.host, str)
        if acl.kind == "src":
            if set(ANY_ADDRESS) <= set(acl.networks):
                return True
            is_doubtful = not self.conf.src_is_known or f"{acl.name}?" in case.client
            return None if is_doubtful else acl.name in case.client
        if acl.kind == "port":
            return any(low <= case.port[0] and case.port[1] <= high for low, high in acl.ports)
        if acl.kind == "method":
            return case.method in acl.words
        if acl.kind == "manager":
            return False
        if acl.kind == "proto":
            is_plain = case.port[0] == 80 and case.method != "CONNECT"
            return "HTTP" in acl.words if is_plain else (None if acl.words & {"HTTP", "HTTPS", "NONE"} else False)
        if acl.kind == "proxy_auth":
            return True if acl.words == {"REQUIRED"} else None
        if acl.kind == "dst":
            if set(ANY_ADDRESS) <= set(acl.networks):
                return True
            return None if is_name else _covers(acl, host)
        if acl.kind in OF_NAMES:
            if "option" in acl.words or (acl.kind.startswith("ssl::") and case.method != "CONNECT"):
                return None
            if is_name:
                return matches(acl.patterns, host)
            if not isinstance(host, str) and host in acl.networks and host.num_addresses == 1:
                return True
            is_text = acl.kind == "dstdomain" and not acl.looks_up
            return False if is_text or (acl.kind == "ssl::server_name" and acl.is_exact) else None
        return None

    def decide(
        self, rules: list[SquidRule], case: _Case, told: Callable[[SquidRule, list[str]], None]
    ) -> SquidRule | None:
        """The rule that allows the case, or None. `told` hears of rules that depend on what cannot be known."""
        for at, rule in enumerate(rules):
            truths = [self.term(each, case) for each in rule.terms]
            if False in truths:
                continue
            unknown = [name for (_, name), each in zip(rule.terms, truths, strict=True) if each is None]
            if not unknown:
                return rule if rule.allows else None
            if not rule.allows and isinstance(case.host, str) and self.is_by_address(rule, unknown):
                continue  # its networks become an entry of deny
            later = self.decide(rules[at + 1 :], case, told)
            if rule.allows and not isinstance(case.host, str):  # nobody misses a rule for reverse names
                unknown = [each for each in unknown if self.acls[each].kind not in OF_NAMES]
            if (later is None and unknown) if rule.allows else later is not None:
                told(rule, unknown)
            return later if rule.allows else None
        return None

    def is_by_address(self, rule: SquidRule, unknown: Sequence[str]) -> bool:
        """Whether it denies addresses that names resolve to, as an entry of deny with cidrs does."""
        acls = [self.acls[name] for name in unknown if (False, name) in rule.terms]
        return len(acls) == len(unknown) == 1 and acls[0].kind == "dst" and acls[0].is_exact


def convert_squid(path: Path) -> Converted:
    """The policies for a squid.conf. Raises ConvertError."""
    into = Converted(str(path))
    conf = SquidConf(into)
    conf.read(path)
    acls = conf.used()
    squid = _Decider(conf)
    into.has_passwords = any(acl.words == {"REQUIRED"} for acl in acls if acl.kind == "proxy_auth")
    conf.src_is_known &= not into.has_passwords
    ports = port_ranges([each for acl in acls for each in acl.ports])
    hosts: dict[Host, Origin] = {ANY_NAME: Origin(str(path), 0)} | dict.fromkeys(ANY_ADDRESS, Origin(str(path), 0))
    for acl in acls:
        if acl.kind != "src":
            for each, origin in (*acl.patterns.items(), *acl.networks.items(), *acl.doubtful.items()):
                hosts.setdefault(each, origin)
    by_client = [acl for acl in acls if acl.kind == "src" and not set(ANY_ADDRESS) <= set(acl.networks)]
    clients = _clients(by_client if conf.src_is_known else [])
    tables = {client: _table(squid, client, hosts, ports) for client in clients}
    names = _client_names(tables)
    alike: list[tuple[list[frozenset[str]], tuple[dict[Host, Verdict], list[Entry]]]] = []
    for client, table in tables.items():
        for members, other in alike:
            if _ports(other) == _ports(table):  # the comments then name the rule of the first
                members.append(client)
                break
        else:
            alike.append(([client], table))
    told_apart = len(alike) > 1
    for members, (_, by_address) in alike:
        entries, *_ = [  # the rules of each are told
            write_entries(
                tables[each][0], ports, hosts.get, lambda rule, why: into.leave_out(rule or Origin(str(path), 0), why)
            )
            for each in members
        ]
        if entries.is_empty:
            continue
        deny = [*entries.deny, *(each for each in by_address if not _is_written(each, entries.deny))]
        accounts = tuple(names[each] for each in members) if told_apart else ()
        into.policies.append(
            Policy(
                accounts[0] if accounts else "default",
                "Open" if entries.is_open else "Enforce",
                entries.allow,
                deny,
                accounts,
            )
        )
    if told_apart and into.policies:
        for client, networks in clients.items():
            if not client and not any(names[client] in each.clients for each in into.policies):
                continue  # an unknown client may nothing, too
            into.networks.setdefault(names[client], []).extend(networks)
    if not into.policies:
        into.policies.append(Policy("default", "Enforce", [], []))
    return into


def _clients(acls: list[SquidAcl]) -> dict[frozenset[str], list[Network]]:
    """The networks of clients by the set of `src` ACLs that match them; the widest are all the others."""
    found: dict[frozenset[str], list[Network]] = {}
    for network in dict.fromkeys(
        each for networks in (ANY_ADDRESS, *((*acl.networks, *acl.doubtful) for acl in acls)) for each in networks
    ):
        covered = {acl.name: _covers(acl, network) for acl in acls}
        key = frozenset(name if covers else f"{name}?" for name, covers in covered.items() if covers is not False)
        found.setdefault(key, []).append(network)
    return found


def _client_names(clients: Iterable[frozenset[str]]) -> dict[frozenset[str], str]:
    names: dict[frozenset[str], str] = {}
    for client in clients:
        words = sorted(client) or ["others"]
        name = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:50].strip("-") or "clients"
        while name in names.values():
            name += "-2"
        names[client] = name
    return names


def _table(
    squid: _Decider, client: frozenset[str], hosts: dict[Host, Origin], ports: Ports
) -> tuple[dict[Host, Verdict], list[Entry]]:
    """What a client may reach, and the networks that are denied to names, too."""
    written = {word for acl in squid.acls.values() if acl.kind == "method" for word in acl.words}
    methods = ["GET", *sorted(written - {"CONNECT", "GET"}), "any other method"]

    def told(rule: SquidRule, unknown: list[str]) -> None:
        parts = []
        for name in unknown:
            acl = squid.acls[name]
            hint = _TYPES.get(acl.kind, f"type {acl.kind} is not carried over")
            hint = hint if acl.is_exact else "a value of it has no counterpart"
            parts.append(f"acl {name} ({acl.kind}, line {acl.origin.line}): {hint}")
        effect = "not allowed" if rule.allows else "each possible match is denied"
        squid.conf.into.leave_out(rule.origin, f"{effect}: {'; '.join(parts)}")

    def allowed(case: _Case) -> SquidRule | None:
        found = None
        for name in ("http_access", *(each for each in squid.conf.lists if each != "http_access")):
            rules = squid.conf.lists.get(name, [])
            if name == "ssl_bump" and case.method != "CONNECT":
                continue
            # The end of a list is the opposite of its last rule; a tunnel that ssl_bump does not name is not opened.
            at = rules[-1].origin if rules else Origin("", 0)
            ends = name == "ssl_bump" or (bool(rules) and not rules[-1].allows)
            end = SquidRule(ends, (), Origin(at.path, at.line, f"{name}: behind the last rule"))
            by = squid.decide([*rules, end], case, told)
            if by is None:
                return None
            found = found or by
        return found

    def reach(host: Host, port: tuple[int, int]) -> SquidRule | None:
        tunnel = allowed(_Case(client, host, port, "CONNECT"))
        if tunnel and not squid.conf.opens_tunnels:
            return tunnel
        plain = [allowed(_Case(client, host, port, method)) for method in methods]
        first = next(filter(None, plain), None)
        if first and None not in plain and (tunnel or port == (80, 80)):
            return first
        if first:
            (some_methods if None in plain else no_tunnels).setdefault(first.origin, set()).add(port)
        return None

    some_methods: dict[Origin, set[tuple[int, int]]] = {}
    no_tunnels: dict[Origin, set[tuple[int, int]]] = {}
    verdicts: dict[Host, Verdict] = {}
    known: dict[tuple[bool | None, ...], Verdict] = {}
    by_host = [acl for acl in squid.acls.values() if acl.kind in ("dst", *OF_NAMES)]
    for host in hosts:
        kind = (
            isinstance(host, str),
            *(squid.truth(acl.name, _Case(client, host, (80, 80), "CONNECT")) for acl in by_host),
        )
        if kind not in known:
            found = {port: rule for port in sorted(ports) if (rule := reach(host, port))}
            rules = sorted((each.origin for each in found.values()), key=lambda each: (each.path, each.line))
            known[kind] = Verdict(frozenset(found), rules[0] if rules else None)
        verdicts[host] = known[kind]
    for table, why in (
        (some_methods, f"not all methods are allowed: {_TYPES['method']}"),
        (no_tunnels, "plain requests are allowed, and tunnels are not: an entry allows both"),
    ):
        for origin, among in table.items():
            squid.conf.into.leave_out(origin, f"{port_text(frozenset(among), ports)}: {why}")
    return verdicts, _denied_addresses(squid, client, ports)


def _denied_addresses(squid: _Decider, client: frozenset[str], ports: Ports) -> list[Entry]:
    """The networks of rules that deny by `dst`: names that resolve there are refused, too."""
    found = []
    for rules in squid.conf.lists.values():
        for at, rule in enumerate(rules):
            by_port = {}
            for port in ports:
                truths = {term: squid.term(term, _Case(client, ANY_NAME, port, "CONNECT")) for term in rule.terms}
                by_port[port] = [
                    name
                    for (_, name), truth in truths.items()
                    if truth is False and squid.acls[name].kind in ("src", "port")
                ]
            unknown = [name for (_, name), truth in truths.items() if truth is None]
            among = frozenset(port for port, others in by_port.items() if not others)
            if rule.allows or not among or not squid.is_by_address(rule, unknown):
                continue
            if not squid.acls[unknown[0]].origin.line:
                continue  # the predefined ones are addresses that are not dialled anyway
            listed = listed_ports(among, ports)
            networks = (*squid.acls[unknown[0]].networks, *squid.acls[unknown[0]].doubtful)
            found.append(Entry(networks, listed, str(rule.origin)))
            if any(each.allows for each in rules[:at]):
                squid.conf.into.leave_out(
                    rule.origin, "carried over, also for what earlier rules allow: deny beats allow"
                )
            if (not listed and among != ports) or any(
                squid.acls[name].kind not in ("src", "port", "dst") for _, name in rule.terms
            ):
                squid.conf.into.leave_out(
                    rule.origin, "carried over for every port, name and method: networks are denied for all"
                )
    return found


def _ports(table: tuple[dict[Host, Verdict], list[Entry]]) -> tuple[list[Ports], list[Entry]]:
    return [each.ports for each in table[0].values()], table[1]


def _is_written(entry: Entry, entries: list[Entry]) -> bool:
    return any(
        set(entry.hosts) <= set(each.hosts)
        and (not each.ports or (bool(entry.ports) and set(entry.ports) <= set(each.ports)))
        for each in entries
    )  # fmt: skip


def _covers(acl: SquidAcl, host: Host) -> bool | None:
    assert not isinstance(host, str)
    if any(is_within(host, each) for each in acl.networks):
        return True
    return None if any(is_within(host, each) for each in acl.doubtful) else False


def _any(truths: list[bool | None]) -> bool | None:
    return True if True in truths else (None if None in truths else False)


def _all(truths: list[bool | None]) -> bool | None:
    return False if False in truths else (None if None in truths else True)
