"""Smokescreen's ACL to EgressPolicies. Source of the semantics: stripe/smokescreen, pkg/smokescreen/acl/v1.

The domains of a service's own rule come first, then global_deny_list, then global_allow_list, then its action. A client
without a rule of its own has the default rule; EgressPolicies add up, so that rule is carried over as far as all
services have it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

import yaml

from egressproxy.operators.convert.destination_table import (
    ANY_ADDRESS,
    ANY_NAME,
    HOSTNAME,
    Host,
    Origin,
    Policy,
    Verdict,
    matches,
    port_ranges,
    write_entries,
)
from egressproxy.operators.convert.manifests import Converted, ConvertError

_ACTIONS: Final = ("open", "report", "enforce")
_ACCOUNT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEFT_OUT: Final = {
    "mitm_domains": "tunnels are looked into by `intercept`, and headers added by filters: docs/interception.md",
    "allowed_external_proxies": "clients do not name a proxy; `parent` of an EgressPolicy does: docs/parents.md",
}
_EVERY_PORT: Final = port_ranges(())


@dataclass(slots=True)
class _Service:
    """One rule: of a service, or the default."""

    name: str
    action: str
    origin: Origin
    domains: dict[Host, Origin] = field(default_factory=dict)


def convert_smokescreen(path: Path) -> Converted:
    """The policies for an ACL file. Raises ConvertError."""
    into = Converted(str(path), port=4750)
    try:
        root = yaml.compose(path.read_text("utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise ConvertError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConvertError(f"{path}: not YAML: {error}") from None
    top = _fields(root, path)
    version = top.pop("version", None)
    if version is None or version.value != "v1":
        raise ConvertError(f"{path}:{_line(version or root)}: version has to be v1")
    if "services" not in top:
        raise ConvertError(f"{path}: the list services is missing")
    services = [_rule(each, path, into) for each in _items(top.pop("services"), path)]
    for rule in services:
        if sum(each.name == rule.name for each in services) > 1:
            raise ConvertError(f"{rule.origin}: two rules for service {rule.name}")
        if not _ACCOUNT.fullmatch(rule.name):
            into.leave_out(rule.origin, "the name is no name of a service account: lower-case letters, digits and -")
    default = _rule(top.pop("default"), path, into, "default") if "default" in top else None
    denied = _globs(top.pop("global_deny_list", None), path, into)
    allowed = _globs(top.pop("global_allow_list", None), path, into)
    for key, node in top.items():
        into.leave_out(Origin(str(path), _line(node), key), "not known")
    hosts: dict[Host, Origin] = dict.fromkeys((ANY_NAME, *ANY_ADDRESS), Origin(str(path), 0))
    for each in (*(rule.domains for rule in (*services, *([default] if default else []))), denied, allowed):
        hosts = each | hosts

    def table_of(rule: _Service) -> dict[Host, Verdict]:
        return {host: _verdict(rule, host, denied, allowed) for host in hosts}

    tables = [(rule, table_of(rule)) for rule in services]
    for rule, own in tables:
        if _ACCOUNT.fullmatch(rule.name):
            into.policies.append(_policy(rule, own, hosts, into, rule.name))
    if default:
        table = table_of(default)
        lost: set[Host] = set()
        for _, own in tables:  # a policy for everybody is for the services, too
            lost |= {host for host, each in table.items() if each.ports and not own[host].ports}
            table = {host: Verdict(each.ports & own[host].ports, each.rule) for host, each in table.items()}
        if lost:
            text = ", ".join(sorted("every other host" if each == ANY_NAME else str(each) for each in lost))
            into.leave_out(default.origin, f"not for clients without a service: {text}: some service may not")
        policy = _policy(default, table, hosts, into, "")
        for host in (each for entry in policy.deny for each in entry.hosts):
            below = [each for each in hosts if _matches({host: default.origin}, each)]
            for rule, own in tables:
                if any(own[each].ports for each in below):
                    into.leave_out(rule.origin, f"{host}: the default rule denies it, and deny beats allow")
        into.policies.append(policy)
    if services:
        into.leave_out(
            Origin(str(path), services[0].origin.line, "services"),
            "who is which service: name the clients, as docs/identity.md says", is_rule=False,
        )  # fmt: skip
    return into


def _verdict(rule: _Service, host: Host, denied: dict[Host, Origin], allowed: dict[Host, Origin]) -> Verdict:
    is_left_open = not _matches(denied, host) and (_matches(allowed, host) or rule.action != "enforce")
    return Verdict(_EVERY_PORT, rule.origin) if _matches(rule.domains, host) or is_left_open else Verdict()


def _matches(patterns: dict[Host, Origin], host: Host) -> bool:
    return matches(patterns, host) if isinstance(host, str) else host in patterns


def _policy(
    rule: _Service, table: dict[Host, Verdict], hosts: dict[Host, Origin], into: Converted, account: str
) -> Policy:
    made = write_entries(table, _EVERY_PORT, hosts.get, lambda at, why: into.leave_out(at or rule.origin, why))
    if rule.action == "report" and made.mode == "Open" and not made.deny:
        listed = {host for host in hosts if host not in (ANY_NAME, *ANY_ADDRESS) and _matches(rule.domains, host)}
        own = {host: each if host in listed else Verdict() for host, each in table.items()}
        made = write_entries(own, _EVERY_PORT, hosts.get, lambda _at, _why: None)
        made.mode = "Report"
    elif rule.action == "report" and made.mode == "Open":
        why = "mode is Open, because Report would let pass what global_deny_list denies: it is not counted"
        into.leave_out(rule.origin, f"report: {why}")
    made.name, made.clients, made.comment = account or "default.rule", (account,) * bool(account), str(rule.origin)
    return made


def _rule(node: yaml.Node, path: Path, into: Converted, name: str = "") -> _Service:
    found = _fields(node, path)
    written = str(getattr(found.pop("name", None), "value", ""))
    name = name or written
    origin = Origin(str(path), _line(node), f"service {name}" if name != "default" else "default")
    action = str(getattr(found.pop("action", None), "value", ""))
    if action not in _ACTIONS:
        raise ConvertError(f"{origin}: action {action!r}: write one of {', '.join(_ACTIONS)}")
    rule = _Service(name, action, origin, _globs(found.pop("allowed_domains", None), path, into))
    found.pop("project", None)
    for key, each in found.items():
        if each.value:
            into.leave_out(Origin(str(path), _line(each), f"{name}: {key}"), _LEFT_OUT.get(key, "not known"))
    return rule


def _globs(node: yaml.Node | None, path: Path, into: Converted) -> dict[Host, Origin]:
    """Domains with their places. Raises ConvertError for one that Smokescreen refuses."""
    found: dict[Host, Origin] = {}
    for each in _items(node, path):
        origin = Origin(str(path), _line(each), str(each.value))
        glob = str(each.value).lower().rstrip(".")
        bare = glob.removeprefix("*.")
        try:
            found.setdefault(ip_network(ip_address(bare.strip("[]"))), origin)
            continue
        except ValueError:
            pass
        if "*" in bare or not bare:
            raise ConvertError(f"{origin}: write a name, or *. before a name: Smokescreen refuses this one")
        if not HOSTNAME.fullmatch(bare) or bare.rpartition(".")[2].isdigit():
            raise ConvertError(f"{origin}: not a hostname: write an international name in its xn-- form")
        found.setdefault(glob, origin)
    return found


def _fields(node: yaml.Node | None, path: Path) -> dict[str, yaml.Node]:
    """The fields of a mapping. Raises ConvertError."""
    if not isinstance(node, yaml.MappingNode):
        raise ConvertError(f"{path}:{_line(node)}: fields are expected here")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if key.value == "<<":
            raise ConvertError(f"{path}:{_line(key)}: merge keys are not read: write the fields out")
        if key.value in found:
            raise ConvertError(f"{path}:{_line(key)}: {key.value} is written twice")
        found[str(key.value)] = value
    return found


def _items(node: yaml.Node | None, path: Path) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif node is not None and node.value:
        raise ConvertError(f"{path}:{_line(node)}: a list is expected here")


def _line(node: yaml.Node | None) -> int:
    return int(node.start_mark.line) + 1 if node is not None else 1
