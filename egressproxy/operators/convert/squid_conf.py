"""A squid.conf, read: its ACLs and the rules that name them. Source: squid-cache/squid, src/cf.data.pre."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob
from ipaddress import ip_address, ip_network, summarize_address_range
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from egressproxy.operators.convert.destination_table import ANY_ADDRESS, HOSTNAME, Host, Network, Origin
from egressproxy.operators.convert.manifests import Converted, ConvertError

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
_HINTS: Final = {name: hint for names, hint in (
    ("cache_peer never_direct", "a proxy on the way is `parent` of an EgressPolicy: docs/parents.md"),
    ("ssl_bump", "name the tunnels to look into in `intercept` of an EgressPolicy: docs/interception.md"),
    ("auth_param", "users and tokens are `identity` of an EgressPolicy: docs/identity.md"),
    ("external_acl_type", "a decision of another program is ExternalAuth or a Webhook: docs/filters.md"),
    ("url_rewrite_program redirect_program", "filters change requests: docs/filters.md"),
    ("http_port", "one listener is written; for others, and clients that do not know of the proxy: docs/ways-in.md"),
    ("ecap_service icap_service", "a Webhook or an ExternalProcessor: docs/filters.md"),
    ("request_header_access", "filters of routes change header fields: docs/filters.md"),
    ("tcp_outgoing_address", "`sourceAddress` of an EgressPolicy: docs/policies.md#source-address"),
    ("dns_nameservers", "`dns.servers` of an EgressPolicy: docs/policies.md#dns"),
    ("access_log", "`run --access-log`: docs/access-log.md"),
    ("cache_dir cache_mem refresh_pattern", "web pages are not cached: docs/migrate/squid.md#what-is-missing"),
    ("deny_info", "`message` of an EgressPolicy: docs/policies.md#messages"),
    ("client_ip_max_connections", "`limits.connectionsPerClient`: docs/policies.md#limits"),
    ("request_body_max_size", "`limits.maxBodyBytes`: docs/policies.md#limits"),
    ("delay_pools", "limits count requests and bytes, and slow nothing down: docs/policies.md#limits"),
    ("follow_x_forwarded_for", "the address in X-Forwarded-For is not read, so no rule with `src` allows"),
    ("proxy_protocol_access", "`identity.proxyProtocol`: docs/identity.md; no rule with `src` allows here"),
) for name in names.split()}  # fmt: skip
#: Directives by which something else may refuse a request.
_MAY_REFUSE: Final = (
    "url_rewrite_program", "redirect_program", "icap_service", "ecap_service", "adaptation_access", "cache_peer",
)  # fmt: skip
_ANY: Final = {"all": ANY_ADDRESS, "ipv4": ANY_ADDRESS[:1], "ipv6": ANY_ADDRESS[1:]}
#: Types that match names of destinations.
OF_NAMES: Final = ("dstdomain", "dstdom_regex", "ssl::server_name", "ssl::server_name_regex")
#: Expressions that mean a name, or a suffix: what may stand before it, the name, and its end.
_REGEX: Final = re.compile(
    r"(\^\(\.\*\\\.\)\?|\(\^\|\\\.\)|\(\\\.\|\^\)|\^\.\*\\\.|\.\*\\\.|\\\.|\^|)((?:[a-z0-9-]|\\\.)+)\$"
)
_SAYS_BOTH: Final = ("(^|\\.)", "(\\.|^)", "^(.*\\.)?")


@dataclass(slots=True)
class SquidAcl:
    """One named ACL: its type, and its values with their places."""

    name: str
    kind: str
    origin: Origin
    patterns: dict[Host, Origin] = field(default_factory=dict)  # names and suffixes
    networks: dict[Network, Origin] = field(default_factory=dict)  # of dst and src, and literals of dstdomain
    doubtful: dict[Network, Origin] = field(default_factory=dict)  # those of src and dst that contain others
    ports: list[tuple[int, int]] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    groups: list[list[tuple[bool, str]]] = field(default_factory=list)  # of any-of and all-of, one for each line
    looks_up: bool = True  # without -n
    is_exact: bool = True  # no other value matches

    @property
    def has_every_address(self) -> bool:
        return all(each in self.networks for each in ANY_ADDRESS)

    def destinations(self) -> Iterable[tuple[Host, Origin]]:
        """The hosts that it names with their places; none of an ACL of clients."""
        found = (self.patterns.items(), self.networks.items(), self.doubtful.items())
        return chain(*found) if self.kind != "src" else ()

    def covers(self, network: Network) -> float:
        """1 for a part of its networks, a half for one of those that are doubtful, else 0."""
        is_covered = any(_is_within(network, each) for each in self.networks)
        return 1 if is_covered else any(_is_within(network, each) for each in self.doubtful) / 2


class SquidRule(NamedTuple):
    allows: bool
    terms: tuple[tuple[bool, str], ...]  # whether it is negated, and the name
    origin: Origin


class SquidConf:
    def __init__(self, into: Converted) -> None:
        self.into = into
        self.acls: dict[str, SquidAcl] = {}
        self.lists: dict[str, list[SquidRule]] = {}
        self.opens_tunnels = False
        self.src_is_known = True
        self._listens = False
        for name, (kind, values) in _PREDEFINED.items():
            self._define(name, kind, values.split(), Origin("Squid's own", 0), Path())

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
                    self.lists.setdefault(name, []).append(SquidRule(rest[0] == "allow", _terms(rest[1:]), place))
            elif name in ("if", "else", "endif") or "${" in " ".join(words):
                raise ConvertError(f"{origin}: conditions and macros are not read: write what one process reads")
            elif name in ("http_port", "https_port"):
                self._listener(name, rest, Origin(origin.path, origin.line, " ".join(words)))
            else:
                self._directive(name, rest, origin)

    def _include(self, pattern: str, origin: Origin, path: Path, seen: tuple[Path, ...]) -> None:
        found = sorted(path.parent / each for each in glob(pattern, root_dir=path.parent))
        if not found and not any(char in pattern for char in "*?["):
            raise ConvertError(f"{origin}: include {pattern}: there is no such file, and it may deny something")
        if not found:
            self.into.leave_out(origin, f"include {pattern}: no file matches here: convert where Squid runs")
        for each in found:
            self.read(each, seen)

    def _listener(self, name: str, rest: list[str], origin: Origin) -> None:
        """The first one for clients that know of the proxy is the Gateway's; others are told."""
        address, _, port = rest[0].rpartition(":") if len(rest) == 1 else ("", "", "")
        address = address.strip("[]")
        if name != "http_port" or self._listens or not port.isdigit() or not (not address or _is_address(address)):
            self.into.leave_out(origin, _HINTS["http_port"], is_rule=False)
            return
        self.into.port, self.into.address, self._listens = int(port), address, True

    def _directive(self, name: str, rest: list[str], origin: Origin) -> None:
        if name == "ssl_bump" and len(rest) > 1:
            self.opens_tunnels |= rest[0] not in ("none", "splice", "terminate", "peek")
            if rest[0] not in ("peek", "stare"):  # these two decide nothing yet
                place = Origin(origin.path, origin.line, " ".join((name, *rest)))
                self.lists.setdefault(name, []).append(SquidRule(rest[0] != "terminate", _terms(rest[1:]), place))
        if name in ("follow_x_forwarded_for", "proxy_protocol_access") and rest[:1] == ["allow"]:
            self.src_is_known = False
        if any(each.origin.text == name for each in self.into.left_out):
            return
        hint = _HINTS.get(name, "not about what may leave: see docs/configuration.md")
        self.into.leave_out(Origin(origin.path, origin.line, name), hint, is_rule=name in _MAY_REFUSE)

    def _define(self, name: str, kind: str, values: list[str], origin: Origin, base: Path) -> None:
        acl = self.acls.get(name.lower())  # names are compared without regard to case
        if acl is not None and acl.kind == kind and acl.origin.line == 0:
            acl.origin = origin  # a predefined one is written again: values add up
        elif acl is None or acl.origin.line == 0:
            acl = self.acls[name.lower()] = SquidAcl(name.lower(), kind, origin)
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

    def _values(self, acl: SquidAcl, values: list[str], origin: Origin, base: Path) -> Iterator[tuple[Origin, str]]:
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

    def _value(self, acl: SquidAcl, value: str, origin: Origin, *, ignores_case: bool) -> None:
        """One value. One that cannot be carried over makes the ACL inexact."""
        done = True
        if acl.kind in ("dstdomain", "ssl::server_name"):
            done = self._name(acl, value.lower(), origin)
        elif acl.kind in OF_NAMES:
            done = self._regex(acl, value.lower() if ignores_case else value, origin)
        elif acl.kind in ("src", "dst"):
            done = self._network(acl, value, origin)
        elif acl.kind == "port":
            done = (found := re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", value)) is not None
            acl.ports += [(int(found[1]), int(found[2] or found[1]))] if found else []
        elif acl.kind in ("method", "proto", "proxy_auth"):
            acl.words.add(value if acl.kind == "proxy_auth" else value.upper())
        if not done:
            acl.is_exact = False
            self.into.leave_out(origin, f"the value {value} of type {acl.kind} becomes no entry")

    def _name(self, acl: SquidAcl, value: str, origin: Origin) -> bool:
        try:
            acl.networks.setdefault(ip_network(ip_address(value.strip("[]"))), origin)
        except ValueError:
            bare = value.removeprefix(".").removesuffix(".")
            if not HOSTNAME.fullmatch(bare) or bare.rpartition(".")[2].isdigit():
                return False
            acl.patterns.setdefault(bare, origin)
            if value.startswith("."):
                acl.patterns.setdefault("*." + bare, origin)
        return True

    def _regex(self, acl: SquidAcl, value: str, origin: Origin) -> bool:
        match = _REGEX.fullmatch(value)
        name = match[2].replace("\\.", ".") if match else ""
        if not match or not HOSTNAME.fullmatch(name):
            return False
        if match[1] in ("^", "", *_SAYS_BOTH):
            acl.patterns.setdefault(name, origin)
        if match[1] != "^":
            acl.patterns.setdefault("*." + name, origin)
        return match[1] != ""  # without a beginning it also matches the end of a longer label

    def _network(self, acl: SquidAcl, value: str, origin: Origin) -> bool:
        first, sign, last = value.partition("-")
        try:
            if sign:
                found: Sequence[Network] = [*summarize_address_range(ip_address(first), ip_address(last))]
            else:
                found = _ANY.get(value.lower()) or [ip_network(value, strict=False)]
        except (ValueError, TypeError):
            return False  # a name of a host, among others
        acl.networks |= {**dict.fromkeys(found, origin), **acl.networks}
        return True

    def used(self) -> list[SquidAcl]:
        """The ACLs that rules name, and those of their groups. Raises ConvertError for one that is not defined."""
        found: dict[str, None] = {}
        todo = [(rule.origin, name) for rules in self.lists.values() for rule in rules for _, name in rule.terms]
        while todo:
            origin, name = todo.pop(0)
            if name not in self.acls:
                raise ConvertError(f"{origin}: there is no acl {name}")
            if name not in found:
                found[name] = None
                acl = self.acls[name]
                todo += [(acl.origin, each) for group in acl.groups for _, each in group]
        acls = [self.acls[name] for name in found]
        for acl in (each for each in acls if each.kind in ("src", "dst") and not each.has_every_address):
            # Squid ignores one of two networks with an overlap, so a match of the wider alone is unknown.
            for wide, origin in acl.networks.items():
                inner = next((each for each in acl.networks if each != wide and _is_within(each, wide)), None)
                if inner is not None:
                    acl.doubtful[wide] = origin
                    rest = f"Squid ignores one of the two: the rest of {wide} is unknown"
                    self.into.leave_out(origin, f"{inner} is a part of {wide}, and {rest}")
            acl.networks = {each: at for each, at in acl.networks.items() if each not in acl.doubtful}
        return acls


def _is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def _is_within(network: Network, wider: Network) -> bool:
    """Whether a network is a part of another, or the same."""
    return network.version == wider.version and network.subnet_of(wider)  # type: ignore[arg-type]


def _terms(words: list[str]) -> tuple[tuple[bool, str], ...]:
    return tuple((each.startswith("!"), each.removeprefix("!").lower()) for each in words)


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
