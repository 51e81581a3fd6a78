"""Converted: policies with their clients, as YAML with the source of each entry as a comment."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from egressproxy.operators.convert.destination_table import Entry, Host, Network, Origin, Policy
from egressproxy.telemetry.diagnostics import escaped

_PLAIN: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*|[0-9.]+/[0-9]+|[1-9][0-9]{0,4}")
_WORDS: Final = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
_GATEWAY: Final = """\
# Written by `egressproxy convert` from {source}.
# The end lists the parts without a counterpart.
# Names that resolve to private addresses are refused, until addresses.allow of a policy names them.
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: egress, namespace: {namespace}}}
spec:
  gatewayClassName: egressproxy
{address}
  listeners:
  - {{name: forward, port: {port}, protocol: egressproxy.io/forward-proxy}}"""
_POLICY: Final = """\
---
{}apiVersion: egressproxy.io/v1alpha1
kind: EgressPolicy
metadata: {{name: {}, namespace: {}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: egress}}]"""
_PASSWORDS: Final = """\
  # One line for each user, as in Squid's file: run --secret {}/users:.htpasswd=FILE
  identity: {{basic: {{secretRef: {{name: users}}}}}}"""


class ConvertError(ValueError):
    """The source cannot be read; the message names the file, the line and the remedy."""


class LeftOut(NamedTuple):
    """A part of the source without a policy, and the reason. `is_rule`: a part of the access rules."""

    origin: Origin
    why: str
    is_rule: bool = True


@dataclass(slots=True)
class Converted:
    """The policies for one source. `networks`: the clients known by address, by service account. `address`: that of the
    listener, "" for the gateway's default.
    """

    source: str
    policies: list[Policy] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    networks: dict[str, list[Network]] = field(default_factory=dict)
    has_passwords: bool = False
    port: int = 3128
    address: str = ""

    def leave_out(self, origin: Origin, why: str, *, is_rule: bool = True) -> None:
        """Each once."""
        told = LeftOut(origin, why, is_rule)
        if told not in self.left_out:
            self.left_out.append(told)

    def written(self, namespace: str) -> str:
        """The manifests, and what was left out as comments at the end."""
        namespace = _quoted(namespace)
        address = "  # For this machine alone: `addresses`, or `run --bind`, lets others in."
        if self.address:
            address = f"  addresses: [{{type: IPAddress, value: {_quoted(self.address)}}}]"
        lines = [_GATEWAY.format(source=escaped(self.source), namespace=namespace, address=address, port=self.port)]
        if self.networks:
            lines += [_head("clients.identity", namespace), "  identity:", "    address:", "      clients:"]
            for account, networks in self.networks.items():
                lines += [f"      - namespace: {namespace}", f"        serviceAccount: {_quoted(account)}"]
                lines += _flow(" " * 8, "cidrs", networks)
        if self.has_passwords:
            lines += [_head("clients.identity", namespace), _PASSWORDS.format(namespace)]
        for policy in self.policies:
            lines += _policy_lines(policy, namespace)
        if self.left_out:
            lines += ["", "# Not carried over:", *(f"# {line}" for line in self.told())]
        return "\n".join(lines) + "\n"

    def told(self) -> list[str]:
        """What was left out, a line each, in the order of the source."""
        ordered = sorted(self.left_out, key=lambda each: (not each.is_rule, each.origin.path, each.origin.line))
        return [escaped(f"{each.origin}: {each.why}") for each in ordered]


def _head(name: str, namespace: str, comment: str = "") -> str:
    return _POLICY.format(f"# {escaped(comment)}\n" if comment else "", name, namespace)


def _policy_lines(policy: Policy, namespace: str) -> list[str]:
    lines = [_head(policy.name, namespace, policy.comment)]
    if policy.clients:
        lines.append("  subjects:")
        lines += [f"  - {{namespace: {namespace}, serviceAccount: {_quoted(each)}}}" for each in policy.clients]
    if policy.mode != "Enforce":
        lines.append(f"  mode: {policy.mode}")
    lines += ["  destinations:", "    allow:" if policy.allow else "    allow: []"]
    lines += [line for each in policy.allow for line in _entry_lines(each)]
    lines += ["    deny:"] * bool(policy.deny)
    return [*lines, *(line for each in policy.deny for line in _entry_lines(each))]


def _entry_lines(entry: Entry) -> list[str]:
    names = [each for each in entry.hosts if isinstance(each, str)]
    networks = [each for each in entry.hosts if not isinstance(each, str)]
    values: dict[str, Sequence[Host]] = {"hostnames": names, "cidrs": networks, "ports": [*map(str, entry.ports)]}
    first, *more = (line for key, listed in values.items() if listed for line in _flow(" " * 6, key, listed))
    return [*([f"    # {escaped(entry.why)}"] if entry.why else []), "    - " + first.lstrip(), *more]


def _flow(indent: str, key: str, values: Sequence[Host]) -> list[str]:
    """`key: [values]` in lines of 116 characters."""
    listed = ", ".join(map(_quoted, values))
    return textwrap.wrap(
        f"{key}: [{listed}]", 116, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _quoted(value: Host) -> str:
    """Quoted where YAML would read something else than this text, such as a number or a boolean."""
    return str(value) if _PLAIN.fullmatch(str(value)) and value not in _WORDS else f'"{value}"'
