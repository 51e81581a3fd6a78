"""Destinations as a finite table, and the entries of `destinations` that allow no more than the table does.

A rule set names finitely many hosts and ports, so all hosts fall into finitely many classes: each name that is written,
the names below a written suffix that nothing more specific covers, and the rest; addresses likewise. A converter
decides each class once, in its source's own order. `write_entries` then writes entries for deny-beats-allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import pairwise
from typing import Final, NamedTuple

Network = IPv4Network | IPv6Network
#: A name, `*.suffix` (the names below it), a network, or ANY_NAME.
Host = str | Network
#: Port ranges, both ends included.
Ports = frozenset[tuple[int, int]]

ANY_NAME: Final = "*"
ANY_ADDRESS: Final = (ip_network("0.0.0.0/0"), ip_network("::/0"))
_LABEL: Final = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
#: A name that an entry can have, in lower case, without a trailing dot.
HOSTNAME: Final = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
MAX_PORT: Final = 65535
#: Longer lists of ports are left out: entries have single ports, and a list of thousands is no policy.
_LISTED_PORTS: Final = 32


class Origin(NamedTuple):
    """A place in a source file: path, line (from 1), and what stands there."""

    path: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        return (f"{self.path}:{self.line}" if self.line else self.path) + (f" {self.text}" if self.text else "")


class Verdict(NamedTuple):
    """The ports of a class of hosts that may be reached, and the rule that says so."""

    ports: Ports = frozenset()
    rule: Origin | None = None


class Entry(NamedTuple):
    """One entry of `allow` or `deny`: hosts, ports (none: every port), and the reason for its presence."""

    hosts: tuple[Host, ...]
    ports: tuple[int, ...]
    why: str


@dataclass(slots=True)
class Policy:
    """One EgressPolicy. `mode` Open allows all that no entry of `deny` names. `clients`: service accounts; else all."""

    name: str = "default"
    mode: str = "Enforce"
    allow: list[Entry] = field(default_factory=list)
    deny: list[Entry] = field(default_factory=list)
    clients: tuple[str, ...] = ()
    comment: str = ""


def port_ranges(bounds: Iterable[tuple[int, int]]) -> Ports:
    """All ports, cut at the ends of these ranges. Port 80 is always a range of its own."""
    cuts = {0, 80, 81, MAX_PORT + 1, *(cut for low, high in bounds for cut in (low, high + 1) if 0 <= cut <= MAX_PORT)}
    return frozenset((low, high - 1) for low, high in pairwise(sorted(cuts)))


def ancestors(host: Host) -> Iterator[Host]:
    """The classes above a class, the widest last: the suffixes above a name; networks have `covering`."""
    assert isinstance(host, str)
    name = host.removeprefix("*.")
    while name := name.partition(".")[2]:
        yield f"*.{name}"


def matches(patterns: Container[Host], host: Host) -> bool:
    """Whether the patterns cover a class of names."""
    return host in patterns or (host != ANY_NAME and any(each in patterns for each in ancestors(host)))


def write_entries(
    verdicts: Mapping[Host, Verdict], every_port: Ports, origin_of: Callable[[Host], Origin | None],
    left_out: Callable[[Origin | None, str], None],
) -> Policy:  # fmt: skip
    """The entries for this table. What they cannot say is left out, and told to `left_out` with its rule."""
    is_open = all(verdicts[each].ports == every_port for each in (ANY_NAME, *ANY_ADDRESS))
    others, rule = verdicts[ANY_NAME]
    if not is_open and others:
        told = f"every other host on {port_text(others, every_port)} is not allowed: no entry means all names: name the"
        more = ", which allows addresses, too" if others == every_port else " for every port"
        left_out(rule, f"{told} hosts, or take mode: Open{more}")
        verdicts = {**verdicts, **dict.fromkeys(ANY_ADDRESS, Verdict())}  # of no use without names
    none: tuple[Ports, Ports] = every_port if is_open else frozenset(), frozenset()
    in_force: dict[Host, tuple[Ports, Ports]] = {}  # the allowed and the denied ports below a class
    allow: dict[tuple[tuple[int, ...], str], list[Host]] = {}
    deny: dict[tuple[tuple[int, ...], str], list[Host]] = {}
    names = sorted((each for each in verdicts if isinstance(each, str) and each != ANY_NAME), key=_depth)
    networks = sorted((each for each in verdicts if not isinstance(each, str)), key=lambda each: each.prefixlen)
    for host in [*names, *networks]:
        allowed, denied = next((in_force[each] for each in _above(host, networks) if each in in_force), none)
        verdict = verdicts[host]
        wanted = verdict.ports
        if wanted != every_port and not wanted <= allowed and _count(wanted) > _LISTED_PORTS:
            wanted = frozenset(each for each in wanted if each[1] - each[0] < _LISTED_PORTS) | (wanted & allowed)
            if dropped := verdict.ports - wanted:
                left_out(verdict.rule, f"{host}: {port_text(dropped, every_port)}: too many ports to list: name them")
        if extra := allowed - denied - wanted:
            listed = listed_ports(extra, every_port) if extra != allowed else ()
            denied |= extra if listed else every_port
            origin = origin_of(host)
            deny.setdefault((listed, str(origin) if origin else ""), []).append(host)
        if lost := wanted & denied:
            covered = "an entry of deny covers it, and deny beats allow"
            left_out(verdict.rule, f"{host} on {port_text(lost, every_port)}: {covered}")
            wanted -= lost
        if wanted - allowed:
            listed = listed_ports(wanted, every_port)
            allow.setdefault((listed, _why(origin_of(host), verdict.rule)), []).append(host)
            allowed |= wanted
        in_force[host] = (allowed, denied)
    allowing, denying = ([Entry(tuple(hosts), *key) for key, hosts in each.items()] for each in (allow, deny))
    return Policy("default", "Open" if is_open else "Enforce", allowing, denying)


def port_text(ports: Ports, every_port: Ports) -> str:
    """Ports for people."""
    if ports == every_port:
        return "every port"
    joined: list[list[int]] = []
    for low, high in sorted(ports):
        if joined and joined[-1][1] + 1 == low:
            joined[-1][1] = high
        else:
            joined.append([low, high])
    listed = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in joined)
    return ("port " if "," not in listed and "-" not in listed else "ports ") + listed


def _depth(host: Host) -> tuple[int, bool, str]:
    assert isinstance(host, str)
    return host.removeprefix("*.").count("."), not host.startswith("*"), host


def _above(host: Host, networks: list[Network]) -> Iterator[Host]:
    if isinstance(host, str):
        yield from ancestors(host)
    else:
        wider = (each for each in reversed(networks) if each != host and each.version == host.version)
        yield from (each for each in wider if host.subnet_of(each))  # type: ignore[arg-type]


def _count(ports: Ports) -> int:
    return sum(high - low + 1 for low, high in ports)


def listed_ports(ports: Ports, every_port: Ports) -> tuple[int, ...]:
    """The ports one by one; () for every port, and for more than entries list."""
    if ports == every_port or _count(ports) > _LISTED_PORTS:
        return ()
    return tuple(sorted(port for low, high in ports for port in range(low, high + 1)))


def _why(origin: Origin | None, rule: Origin | None) -> str:
    if origin is None or rule is None or origin == rule:
        return str(rule or origin or "")
    return f"{origin}; allowed by line {rule.line}" if rule.path == origin.path else f"{origin}; allowed by {rule}"
