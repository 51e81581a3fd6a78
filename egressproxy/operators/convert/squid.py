"""Squid's access rules to EgressPolicies. Source of the semantics: squid-cache/squid, src/cf.data.pre.

A condition is True, False, or None: it cannot be known from clients, hosts and ports. A rule of `allow` then does not
allow, and a rule of `deny` denies, so that the result allows no more than Squid.

A client that may open a tunnel to a host and port may send anything there. So destinations are decided for CONNECT;
port 80, where the gateway reads the requests of tunnels, also for plain requests if every method is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network, summarize_address_range
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
    matches,
    port_ranges,
    port_text,
    write_entries,
)
from egressproxy.operators.convert.manifests import Converted, ConvertError, Policy

#: All lists that a request has to pass.
_LISTS: Final = ("http_access", "adapted_http_access", "http_access2", "miss_access", "http_reply_access")
_PREDEFINED: Final = {
    "all": ("src", "all"),
    "localhost": ("src", "127.0.0.1/32 ::1"),
    "to_localhost": ("dst", "127.0.0.0/8 0.0.0.0/32 ::1/128 ::/128"),
    "to_linklocal": ("dst", "169.254.0.0/16 fe80::/10"),
    "manager": ("manager", ""),
    "connect": ("method", "CONNECT"),
}
_HINTS: Final = {
    "cache_peer": "a proxy on the way is `parent` of an EgressPolicy: docs/parents.md",
    "never_direct": "a proxy on the way is `parent` of an EgressPolicy: docs/parents.md",
    "ssl_bump": "name the tunnels to look into in `intercept` of an EgressPolicy: docs/interception.md",
    "auth_param": "users and tokens are `identity` of an EgressPolicy: docs/identity.md",
    "external_acl_type": "a decision of another program is ExternalAuth or a Webhook: docs/filters.md",
    "url_rewrite_program": "filters change requests: docs/filters.md",
    "icap_service": "a Webhook or an ExternalProcessor: docs/filters.md",
    "request_header_access": "filters of routes change header fields: docs/filters.md",
    "tcp_outgoing_address": "`sourceAddress` of an EgressPolicy: docs/policies.md#source-address",
    "dns_nameservers": "`dns.servers` of an EgressPolicy: docs/policies.md#dns",
    "deny_info": "`message` of an EgressPolicy: docs/policies.md#messages",
    "client_ip_max_connections": "`limits.connectionsPerClient`: docs/policies.md#limits",
    "request_body_max_size": "`limits.maxBodyBytes`: docs/policies.md#limits",
    "delay_pools": "limits count requests and bytes, and slow nothing down: docs/policies.md#limits",
    "follow_x_forwarded_for": "the address in X-Forwarded-For is not read, so no rule with `src` allows",
    "proxy_protocol_access": "`identity.proxyProtocol`: docs/identity.md; no rule with `src` allows here",
}
_TYPES: Final = {
    "url_regex": "paths and URLs are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "urlpath_regex": "paths and URLs are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "method": "methods are for HTTPRoutes, or XAccessPolicy: docs/access-policies.md",
    "dstdom_regex": "only expressions that mean one name or suffix become hostnames",
    "ssl::server_name_regex": "only expressions that mean one name or suffix become hostnames",
    "dst": "an address that a name resolves to can be denied, and not be the reason to allow",
    "dstdomain": "it may match an address by its reverse name: write the option -n, if that is not meant",
    "proxy_auth": "users by name become subjects only as NAMESPACE.SERVICEACCOUNT: docs/identity.md",
    "src": "a client is known by its address or by its password here, not by both",
    "time": "policies do not depend on the time",
    "external": "a decision of another program is ExternalAuth or a Webhook: docs/filters.md",
}
#: Types that match names of destinations.
_OF_NAMES: Final = ("dstdomain", "dstdom_regex", "ssl::server_name", "ssl::server_name_regex")
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
#: Expressions that mean a name, or a suffix: what may stand before it, the name, and its end.
_REGEX: Final = re.compile(r"(\^\(\.\*\\\.\)\?|\(\^\|\\\.\)|\(\\\.\|\^\)|\^\.\*\\\.|\.\*\\\.|\\\.|\^|)((?:[a-z0-9-]|\\\.)+)\$")
_SAYS_BOTH: Final = ("(^|\\.)", "(\\.|^)", "^(.*\\.)?")


@dataclass(slots=True)
class _Acl:
    """One named ACL: its type, and its values with their places."""

    name: str
    kind: str
    origin: Origin
    patterns: dict[Host, Origin] = field(default_factory=dict)  # names and suffixes
    networks: dict[Network, Origin] = field(default_factory=dict)  # of dst and src, and literals of dstdomain
    ports: list[tuple[int, int]] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    groups: list[list[tuple[bool, str]]] = field(default_factory=list)  # of any-of and all-of, one for each line
    looks_up: bool = True  # without -n
    is_exact: bool = True  # the values are all that it matches


@dataclass(frozen=True, slots=True)
class _Rule:
    allows: bool
    terms: tuple[tuple[bool, str], ...]  # whether it is negated, and the name
    origin: Origin


@dataclass(frozen=True, slots=True)
class _Case:
    """One class of requests. `client` is the set of `src` ACLs that match; `host` None: any address by name."""

    client: frozenset[str]
    host: Host
    port: tuple[int, int]
    method: str


class _Squid:
    def __init__(self, into: Converted) -> None:
        self.into = into
        self.acls: dict[str, _Acl] = {}
        self.lists: dict[str, list[_Rule]] = {}
        self.opens_tunnels = False
        self.src_is_known = True
        for name, (kind, values) in _PREDEFINED.items():
            self._define(name, kind, values.split(), Origin("squid", 0), Path())

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, path: Path, seen: tuple[Path, ...] = ()) -> None:
        """Raises ConvertError."""
        if path.resolve() in seen or len(seen) > 16:
            raise ConvertError(f"{path}: includes itself")
        for origin, words in _lines(path):
            name, *rest = words
            if name == "include":
                for each in rest:
                    self._include(each, origin, path, (*seen, path.resolve()))
            elif name == "acl":
                if len(rest) < 2:
                    raise ConvertError(f"{origin}: write acl NAME TYPE VALUE")
                self._define(rest[0], rest[1], rest[2:], origin, path.parent)
            elif name in _LISTS:
                if len(rest) < 1 or rest[0] not in ("allow", "deny"):
                    raise ConvertError(f"{origin}: write {name} allow or deny, and names of ACLs")
                place = Origin(origin.path, origin.line, " ".join(words))
                if len(rest) == 1:
                    self.into.leave_out(place, "a rule without an ACL: Squid skips it, too")
                else:
                    self.lists.setdefault(name, []).append(_Rule(rest[0] == "allow", _terms(rest[1:]), place))
            elif name in ("if", "else", "endif") or "${" in " ".join(words):
                raise ConvertError(f"{origin}: conditions and macros are not read: write what one process reads")
            elif name == "http_port" and len(rest) == 1 and rest[0].rpartition(":")[2].isdigit():
                self.into.port = int(rest[0].rpartition(":")[2])
            else:
                self._directive(name, rest, origin)

    def _include(self, pattern: str, origin: Origin, path: Path, seen: tuple[Path, ...]) -> None:
        base = Path(pattern).anchor or str(path.parent)
        found = sorted(Path(base).glob(str(Path(pattern).relative_to(Path(pattern).anchor or "."))))
        if not found and not any(char in pattern for char in "*?["):
            raise ConvertError(f"{origin}: include {pattern}: there is no such file, and it may deny something")
        for each in found:
            self.read(each, seen)

    def _directive(self, name: str, rest: list[str], origin: Origin) -> None:
        if name == "ssl_bump":
            self.opens_tunnels |= bool(rest) and rest[0] not in ("none", "splice", "terminate")
        if name in ("follow_x_forwarded_for", "proxy_protocol_access"):
            self.src_is_known = False
        hint = _HINTS.get(name, "not about what may leave: see docs/configuration.md")
        self.into.leave_out(Origin(origin.path, origin.line, name), hint, is_rule=False)

    def _define(self, name: str, kind: str, values: list[str], origin: Origin, base: Path) -> None:
        acl = self.acls.get(name.lower())  # names are compared without regard to case
        if acl is not None and acl.kind == kind and acl.origin.line == 0:
            acl.origin = origin  # a predefined one is written again: values add up
        elif acl is None or acl.origin.line == 0:
            acl = self.acls[name.lower()] = _Acl(name.lower(), kind, origin)
        elif acl.kind != kind:
            raise ConvertError(f"{origin}: acl {name} has type {acl.kind} at {acl.origin}, and {kind} here")
        ignores_case, options = False, True
        for place, value in self._values(acl, values, origin, base):
            if options and value == "--":
                options = False
            elif options and value in ("-n", "-i", "+i"):
                acl.looks_up &= value != "-n"
                ignores_case = value == "-i" if value != "-n" else ignores_case
            elif options and value.startswith("-"):
                acl.is_exact = False  # an option that is not known
                acl.words.add("option")
            else:
                self._value(acl, value, place, ignores_case=ignores_case)
        if kind in ("any-of", "all-of"):
            acl.groups += [[each] for each in _terms(values)] if kind == "any-of" else [list(_terms(values))]

    def _values(self, acl: _Acl, values: list[str], origin: Origin, base: Path) -> Iterator[tuple[Origin, str]]:
        for value in values:
            if not value.startswith('"') and not value.startswith("parameters("):
                yield Origin(origin.path, origin.line, f"acl {acl.name}"), value
                continue
            name = value.removeprefix("parameters(").removesuffix(")").strip("\"'")
            try:
                lines = (base / name).read_text("utf-8", "replace").splitlines()
            except OSError as error:
                acl.is_exact = False
                self.into.leave_out(origin, f"acl {acl.name}: {name} cannot be read: {error.strerror}")
                continue
            for line in lines:
                if words := line.split("#")[0].split():
                    yield Origin(origin.path, origin.line, f"acl {acl.name} ({name})"), words[0]

    def _value(self, acl: _Acl, value: str, origin: Origin, *, ignores_case: bool) -> None:
        """One value. One that cannot be carried over makes the ACL inexact."""
        done = True
        if acl.kind in ("dstdomain", "ssl::server_name"):
            done = self._name(acl, value.lower(), origin)
        elif acl.kind in ("dstdom_regex", "ssl::server_name_regex"):
            done = self._regex(acl, value.lower() if ignores_case else value, origin)
        elif acl.kind in ("src", "dst"):
            done = self._network(acl, value, origin)
        elif acl.kind == "port":
            low, _, high = value.partition("-")
            done = low.isdigit() and (high or low).isdigit()
            acl.ports += [(int(low), int(high or low))] if done else []
        elif acl.kind in ("method", "proto", "proxy_auth"):
            acl.words.add(value if acl.kind == "proxy_auth" else value.upper())
        if not done:
            acl.is_exact = False
            self.into.leave_out(origin, f"the value {value} of type {acl.kind} becomes no entry")

    def _name(self, acl: _Acl, value: str, origin: Origin) -> bool:
        try:
            acl.networks.setdefault(ip_network(ip_address(value.strip("[]"))), origin)
            return True
        except ValueError:
            bare = value.removeprefix(".").removesuffix(".")
        if not _NAME.fullmatch(bare) or bare.rpartition(".")[2].isdigit():
            return False
        acl.patterns.setdefault(bare, origin)
        if value.startswith("."):
            acl.patterns.setdefault("*." + bare, origin)
        return True

    def _regex(self, acl: _Acl, value: str, origin: Origin) -> bool:
        match = _REGEX.fullmatch(value)
        name = match[2].replace("\\.", ".") if match else ""
        if not match or not _NAME.fullmatch(name):
            return False
        if match[1] in ("^", "", *_SAYS_BOTH):
            acl.patterns.setdefault(name, origin)
        if match[1] != "^":
            acl.patterns.setdefault("*." + name, origin)
        return match[1] != ""  # without a beginning it also matches the end of a longer label

    def _network(self, acl: _Acl, value: str, origin: Origin) -> bool:
        written, _, mask = value.partition("/")
        if value.lower() in ("all", "0.0.0.0/0", "::/0", "ipv4", "ipv6"):
            wanted = ANY_ADDRESS[value.lower() in ("ipv6", "::/0"):][: 2 if value.lower() == "all" else 1]
            for each in wanted:
                acl.networks.setdefault(each, origin)
            return True
        try:
            first, sign, last = written.partition("-")
            if sign and not mask:
                found = list(summarize_address_range(ip_address(first), ip_address(last)))
            elif sign:
                return False
            else:
                found = [ip_network(value, strict=False)]
        except (ValueError, TypeError):
            return False  # a name of a host, among others
        for network in found:
            acl.networks.setdefault(network, origin)
        return True

    # --- deciding ----------------------------------------------------------------------------------------------------

    def truth(self, name: str, case: _Case) -> bool | None:
        acl = self.acls[name]
        if acl.kind in ("any-of", "all-of"):
            return _any([_all([self.term(each, case) for each in group]) for group in acl.groups])
        found = self._matches(acl, case)
        return None if found is False and not acl.is_exact else found

    def term(self, term: tuple[bool, str], case: _Case) -> bool | None:
        found = self.truth(term[1], case)
        return found if found is None else found != term[0]

    def _matches(self, acl: _Acl, case: _Case) -> bool | None:
        host, is_name = case.host, isinstance(case.host, str)
        if acl.kind == "src":
            if set(ANY_ADDRESS) <= set(acl.networks):
                return True
            return acl.name in case.client if self.src_is_known else None
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
            return None if is_name else _covers(acl.networks, host)
        if acl.kind in _OF_NAMES:
            if "option" in acl.words or (acl.kind.startswith("ssl::") and case.method != "CONNECT"):
                return None
            if is_name:
                return matches(acl.patterns, host)
            if not isinstance(host, str) and host in acl.networks and host.num_addresses == 1:
                return True
            is_text = acl.kind == "dstdomain" and not acl.looks_up
            return False if is_text or (acl.kind == "ssl::server_name" and acl.is_exact) else None
        return None

    def decide(self, rules: list[_Rule], case: _Case, told: Callable[[_Rule, list[str]], None]) -> _Rule | None:
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
            by_reverse_name = not isinstance(case.host, str) and all(self.acls[each].kind in _OF_NAMES for each in unknown)
            if later is None if rule.allows else later is not None:
                if not (rule.allows and by_reverse_name):
                    told(rule, unknown)
            return later if rule.allows else None
        return None

    def is_by_address(self, rule: _Rule, unknown: Sequence[str]) -> bool:
        """Whether it denies addresses that names resolve to, as an entry of deny with cidrs does."""
        acls = [self.acls[name] for name in unknown if (False, name) in rule.terms]
        return len(acls) == len(unknown) == 1 and acls[0].kind == "dst" and acls[0].is_exact


def convert_squid(path: Path) -> Converted:
    """The policies for a squid.conf. Raises ConvertError."""
    into = Converted(str(path))
    squid = _Squid(into)
    squid.read(path)
    used = _used(squid)
    into.has_passwords = any(squid.acls[name].words == {"REQUIRED"} for name in used if squid.acls[name].kind == "proxy_auth")
    squid.src_is_known &= not into.has_passwords
    acls = [squid.acls[name] for name in used]
    ports = port_ranges([each for acl in acls for each in acl.ports])
    hosts: dict[Host, Origin] = {ANY_NAME: Origin(str(path), 0)} | dict.fromkeys(ANY_ADDRESS, Origin(str(path), 0))
    for acl in acls:
        if acl.kind != "src":
            hosts |= {each: origin for each, origin in (*acl.patterns.items(), *acl.networks.items()) if each not in hosts}
    by_client = [acl for acl in acls if acl.kind == "src" and not set(ANY_ADDRESS) <= set(acl.networks)]
    clients = _clients(by_client if squid.src_is_known else [])
    tables = {client: _table(squid, client, hosts, ports) for client in clients}
    names = _client_names(tables)
    alike: list[tuple[list[frozenset[str]], tuple[dict[Host, Verdict], list[Entry]]]] = []
    for client, table in tables.items():
        for members, other in alike:
            if other == table:
                members.append(client)
                break
        else:
            alike.append(([client], table))
    told_apart = len(alike) > 1
    for members, (verdicts, by_address) in alike:
        entries = write_entries(
            verdicts, ports, hosts.get,
            lambda rule, why: into.leave_out(rule or Origin(str(path), 0), why),
        )  # fmt: skip
        if entries.is_empty:
            continue
        deny = [*entries.deny, *(each for each in by_address if not _is_written(each, entries.deny))]
        accounts = tuple(names[each] for each in members) if told_apart else ()
        into.policies.append(
            Policy(accounts[0] if accounts else "default", "Open" if entries.is_open else "Enforce", entries.allow, deny, accounts)
        )
    if told_apart:
        for client, networks in clients.items():
            if not client and not any(names[client] in each.clients for each in into.policies):
                continue  # an unknown client may nothing, too
            into.networks.setdefault(names[client], []).extend(networks)
    if not into.policies:
        into.policies.append(Policy("default", "Enforce", [], []))
    return into


def _used(squid: _Squid) -> list[str]:
    """The ACLs that rules name, and those of their groups. Raises ConvertError for one that is not defined."""
    found: dict[str, None] = {}
    todo = [(rule.origin, name) for rules in squid.lists.values() for rule in rules for _, name in rule.terms]
    while todo:
        origin, name = todo.pop(0)
        if name not in squid.acls:
            raise ConvertError(f"{origin}: there is no acl {name}")
        if name not in found:
            found[name] = None
            acl = squid.acls[name]
            todo += [(acl.origin, each) for group in acl.groups for _, each in group]
    return list(found)


def _clients(acls: list[_Acl]) -> dict[frozenset[str], list[Network]]:
    """The networks of clients by the set of `src` ACLs that match them; the widest are all the others."""
    found: dict[frozenset[str], list[Network]] = {}
    for network in dict.fromkeys(each for networks in (ANY_ADDRESS, *(acl.networks for acl in acls)) for each in networks):
        key = frozenset(acl.name for acl in acls if _covers(acl.networks, network))
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
    squid: _Squid, client: frozenset[str], hosts: dict[Host, Origin], ports: Ports
) -> tuple[dict[Host, Verdict], list[Entry]]:
    """What a client may reach, and the networks that are denied to names, too."""
    written = {word for acl in squid.acls.values() if acl.kind == "method" for word in acl.words}
    methods = ["GET", *sorted(written - {"CONNECT", "GET"}), "any other method"]

    def told(rule: _Rule, unknown: list[str]) -> None:
        parts = []
        for name in unknown:
            acl = squid.acls[name]
            hint = _TYPES.get(acl.kind, f"type {acl.kind} is not carried over")
            parts.append(f"acl {name} ({acl.kind}, line {acl.origin.line}): {hint}")
        effect = "not allowed" if rule.allows else "all that it may match is denied"
        squid.into.leave_out(rule.origin, f"{effect}: {'; '.join(parts)}")

    def allowed(case: _Case) -> _Rule | None:
        found = None
        for name in ("http_access", *(each for each in squid.lists if each != "http_access")):
            rules = squid.lists.get(name, [])
            end = _Rule(allows=False, terms=(), origin=Origin("", 0))
            if rules:  # what no rule matches has the opposite of the last one
                place = Origin(rules[-1].origin.path, rules[-1].origin.line, f"{name}: the opposite of the last rule")
                end = _Rule(not rules[-1].allows, (), place)
            by = squid.decide([*rules, end], case, told)
            if by is None:
                return None
            found = found or by
        return found

    def reach(host: Host, port: tuple[int, int]) -> _Rule | None:
        tunnel = allowed(_Case(client, host, port, "CONNECT"))
        if tunnel and not squid.opens_tunnels:
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
    by_host = [acl for acl in squid.acls.values() if acl.kind in ("dst", *_OF_NAMES)]
    for host in hosts:
        kind = (isinstance(host, str), *(squid.truth(acl.name, _Case(client, host, (80, 80), "CONNECT")) for acl in by_host))
        if kind not in known:
            found = {port: rule for port in sorted(ports) if (rule := reach(host, port))}
            rules = sorted((each.origin for each in found.values()), key=lambda each: (each.path, each.line))
            known[kind] = Verdict(frozenset(found), rules[0] if rules else None)
        verdicts[host] = known[kind]
    for table, why in ((some_methods, f"not all methods are allowed: {_TYPES['method']}"), (no_tunnels, "plain requests are allowed, and tunnels are not: an entry allows both")):
        for origin, among in table.items():
            squid.into.leave_out(origin, f"{port_text(frozenset(among), ports)}: {why}")
    return verdicts, _denied_addresses(squid, client, ports)


def _denied_addresses(squid: _Squid, client: frozenset[str], ports: Ports) -> list[Entry]:
    """The networks of rules that deny by `dst`: names that resolve there are refused, too."""
    found = []
    for rules in squid.lists.values():
        for at, rule in enumerate(rules):
            unknown = [
                name for is_not, name in rule.terms
                if squid.term((is_not, name), _Case(client, ANY_NAME, (80, 80), "CONNECT")) is None
            ]  # fmt: skip
            if rule.allows or not squid.is_by_address(rule, unknown):
                continue
            if squid.acls[unknown[0]].origin.line:  # the predefined ones are addresses that are not dialled anyway
                found.append(Entry(tuple(squid.acls[unknown[0]].networks), (), str(rule.origin)))
                if any(each.allows for each in rules[:at]):
                    squid.into.leave_out(rule.origin, "carried over, also for what earlier rules allow: deny beats allow")
    return found


def _is_written(entry: Entry, entries: list[Entry]) -> bool:
    return any(set(entry.hosts) <= set(each.hosts) and not each.ports for each in entries)


def _terms(words: list[str]) -> tuple[tuple[bool, str], ...]:
    return tuple((each.startswith("!"), each.removeprefix("!").lower()) for each in words)


def _covers(networks: dict[Network, Origin], host: Host) -> bool:
    assert not isinstance(host, str)
    return any(each.version == host.version and host.subnet_of(each) for each in networks)  # type: ignore[arg-type]


def _any(truths: list[bool | None]) -> bool | None:
    return True if True in truths else (None if None in truths else False)


def _all(truths: list[bool | None]) -> bool | None:
    return False if False in truths else (None if None in truths else True)


def _lines(path: Path) -> Iterator[tuple[Origin, list[str]]]:
    """The words of each directive; a backslash at the end of a line continues it. Raises ConvertError."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read: {error.strerror}") from None
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if begun else number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        words = re.findall(r'"[^"]*"|parameters\([^)]*\)|\S+', begun + line)
        begun = ""
        comment = next((at for at, word in enumerate(words) if word.startswith("#")), len(words))
        if words[:comment]:
            yield Origin(str(path), first), words[:comment]
