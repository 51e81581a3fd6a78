"""Servers and unsupported fields of a DNS section: `dns` of an EgressPolicy, `resolver` of a Backend."""

from __future__ import annotations

from collections.abc import Iterator

from egressproxy.config.resources.policy import Dns

__all__ = ["dns_blockers", "dns_notes", "plain_servers"]


def plain_servers(dns: Dns) -> tuple[str, tuple[str, ...]]:
    """Transport and servers in the form of DnsIR; those over HTTPS are left out."""
    transport = "tcp" if any(server.startswith("tcp://") for server in dns.servers) else dns.transport
    servers = [server for server in dns.servers if not server.startswith("https://")]
    return transport, tuple(server.removeprefix("udp://").removeprefix("tcp://") for server in servers)


def dns_notes(dns: Dns, section: str) -> Iterator[str]:
    """Fields of a `dns` or `resolver` section that have no effect, as sentences for status."""
    if dns.reverse_check == "Report":
        yield f"{section}.reverseCheck is not supported yet and does nothing."
    if any(server.startswith("https://") for server in dns.servers):
        yield f"{section}.servers over HTTPS are not supported yet and left out."


def dns_blockers(dns: Dns, owner: str) -> Iterator[str]:
    """What the section asks for that is not enforced: a place where it holds is closed. `owner` says whose it is."""
    over_https = [server for server in dns.servers if server.startswith("https://")]
    if dns.transport == "https" or (over_https and len(over_https) == len(dns.servers)):
        yield f"dns of {owner}: DNS over HTTPS is not supported yet"
    if dns.reverse_check == "Enforce":
        yield f"dns.reverseCheck of {owner} is not enforced yet"
