"""Servers and unsupported fields of a DNS section: `dns` of an EgressPolicy, `resolver` of a Backend."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from egressproxy.config.resources.policy import Dns

_HTTPS = "https://"


def plain_servers(dns: Dns) -> tuple[str, tuple[str, ...]]:
    """Transport and servers in the form of DnsIR, without HTTPS servers that have no address."""
    transport = "tcp" if any(server.startswith("tcp://") for server in dns.servers) else dns.transport
    servers = (_with_address(server, dns) for server in dns.servers)
    return transport, tuple(
        server.removeprefix("udp://").removeprefix("tcp://") for server in servers if server is not None
    )


def dns_notes(dns: Dns, section: str) -> Iterator[str]:
    """Fields of a `dns` or `resolver` section that have no effect, as sentences for status."""
    for server in dns.servers:
        if _with_address(server, dns) is None:
            yield f"{section}.servers: {server} does nothing: {_REMEDY}."
    is_encrypted = dns.transport in ("tls", "https") or any(
        server.startswith(("tls://", _HTTPS)) for server in dns.servers
    )
    if dns.ca_certificate_refs and not (dns.servers and is_encrypted):
        yield f"{section}.caCertificateRefs does nothing: {section}.servers has no server over TLS (tls://) or HTTPS."


def dns_blockers(dns: Dns, owner: str) -> Iterator[str]:
    """The unenforceable settings of the section, which close its places. `owner` names the object for people."""
    if dns.servers and all(_with_address(server, dns) is None for server in dns.servers):
        yield f"dns of {owner}: no server in dns.servers has an address: {_REMEDY}"


_REMEDY = (
    "no server can be asked for its name, so write the address and the name (https://192.0.2.1/dns-query#dns.example), "
    "or the address of the name in dns.hosts"
)


def _with_address(server: str, dns: Dns) -> str | None:
    """The server in the form of DnsIR: over HTTPS by address, with the name after a #. None: no address is known."""
    if not server.startswith(_HTTPS):
        return server
    rest, _, name = server.removeprefix(_HTTPS).partition("#")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority, "", ""
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
    elif ":" in authority:
        host, colon, port = authority.partition(":")
    try:
        ip_address(host)
    except ValueError:
        known = dns.hosts.get(host.lower().removesuffix("."))
        if not known:
            return None
        address = f"[{known[0]}]" if known[0].version == 6 else str(known[0])
        return f"{_HTTPS}{address}{colon}{port}{slash}{path}#{name or host.lower().removesuffix('.')}"
    return server
