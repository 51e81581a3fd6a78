"""Who a client is by its connection: by its source address, or by its certificate, in which the subject, a subject
alternative name or a SPIFFE id of Kubernetes (`spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT`) says it.

Sources: RFC 4514 (subjects as text), RFC 5280 sections 4.1.2.6 and 4.2.1.6; SPIFFE-ID (trust domain and path),
X509-SVID section 2 (a certificate has exactly one URI), RFC 1123.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from egressproxy.ir.identity import AddressClientIR, CertificateClientIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity, namespace_in, service_account_name

#: What RFC 4514 and OpenSSL call an attribute, and what Python's ssl does.
_ATTRIBUTES: Final = {
    "CN": "commonName",
    "C": "countryName",
    "L": "localityName",
    "ST": "stateOrProvinceName",
    "O": "organizationName",
    "OU": "organizationalUnitName",
    "STREET": "streetAddress",
    "DC": "domainComponent",
    "UID": "userId",
    "SERIALNUMBER": "serialNumber",
    "EMAILADDRESS": "emailAddress",
}
_SHORT: Final = {long.lower(): short for short, long in _ATTRIBUTES.items()}
_PART: Final = re.compile(r"\s*([A-Za-z]+)\s*=((?:\\.|[^\\,+])*)(?:[,+]|$)")

_Subject = tuple[tuple[str, str], ...]


def read_subject(text: str) -> _Subject:
    """The attributes of a subject that is written as `CN=robot,O=team`, in whatever order. Raises ValueError."""
    found, at = [], 0
    while at < len(text):
        part = _PART.match(text, at)
        name = part[1].upper() if part is not None else ""
        if part is None or name not in _ATTRIBUTES:
            known = ", ".join(_ATTRIBUTES)
            raise ValueError(f"no subject: write attributes ({known}) with commas between, such as CN=robot,O=team")
        value = re.sub(r"\\(.)", r"\1", part[2].strip())
        if not value:
            raise ValueError(f"the attribute {name} of the subject is empty")
        found.append((name, value))
        at = part.end()
    if not found:
        raise ValueError("the subject is empty")
    return tuple(sorted(found))


class CertificateTable:
    """Looks up who shows a certificate; made once, asked once for each handshake."""

    __slots__ = ("_known",)

    def __init__(self, clients: Iterable[CertificateClientIR]) -> None:
        self._known: dict[tuple[str, object], CallerIdentity] = {}
        for client in clients:
            name = service_account_name(client.namespace, client.service_account)
            identity = CallerIdentity(client.namespace, client.service_account, name=name, source="certificate")
            self._known[client.kind, _value(client)] = identity

    def find(self, certificate: Mapping[str, Any]) -> CallerIdentity | None:
        """Who shows this certificate (`ssl.SSLObject.getpeercert`). None if no rule matches it, or several do."""
        attributes = (each for several in certificate.get("subject", ()) for each in several)
        subject = sorted((_SHORT.get(name.lower(), name), value) for name, value in attributes)
        shown: list[tuple[str, object]] = [("subject", tuple(subject))]
        for kind, value in certificate.get("subjectAltName", ()):
            shown.append((kind, value.lower() if kind == "DNS" else value))
        found = {self._known[each] for each in shown if each in self._known}
        return found.pop() if len(found) == 1 else None


def _value(client: CertificateClientIR) -> object:
    if client.kind == "subject":
        return read_subject(client.value)
    return client.value.lower() if client.kind == "DNS" else client.value


class AddressTable:
    """Looks up who has an address; made once, asked once for each connection."""

    __slots__ = ("_by_length",)

    def __init__(self, clients: Iterable[AddressClientIR]) -> None:
        by_length: dict[tuple[int, int], dict[int, CallerIdentity]] = {}
        for client in clients:
            name = service_account_name(client.namespace, client.service_account)
            identity = CallerIdentity(client.namespace, client.service_account, name=name, source="address")
            for network in client.networks:
                by_length.setdefault((network.version, network.prefixlen), {}).setdefault(
                    int(network.network_address), identity
                )
        #: Longest first: at most 33 and 129 dictionaries.
        self._by_length = sorted(by_length.items(), key=lambda each: each[0][1], reverse=True)

    def find(self, peer: str) -> CallerIdentity | None:
        """Who has this address, of `address:port`; None: nobody that is known."""
        try:
            address: IPv4Address | IPv6Address = ip_address(peer.rpartition(":")[0].strip("[]").partition("%")[0])
        except ValueError:
            return None  # a Unix socket, for one
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        number, bits = int(address), address.max_prefixlen
        for (version, length), known in self._by_length:
            if version == address.version:
                found = known.get(number >> (bits - length) << (bits - length))
                if found is not None:
                    return found
        return None


#: The name of a trust domain, without its scheme.
TRUST_DOMAIN: Final = re.compile(r"[a-z0-9._-]{1,255}")
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_WORKLOAD: Final = re.compile(
    rf"spiffe://(?P<domain>{TRUST_DOMAIN.pattern})/ns/(?P<namespace>{_LABEL})"
    r"/sa/(?P<account>[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?)"
)


def workload(uris: Sequence[str], trust_domains: Sequence[str]) -> CallerIdentity:
    """Who shows a verified certificate with these URIs (subject alternative names). ANONYMOUS where it has another
    number of them than one, or its id is that of no workload in one of these trust domains, of which the first is the
    gateway's own.
    """
    found = _WORKLOAD.fullmatch(uris[0]) if len(uris) == 1 else None
    if found is None or found["domain"] not in trust_domains:
        return ANONYMOUS
    namespace = namespace_in(found["domain"], found["namespace"], trust_domains[0])
    return CallerIdentity(namespace, found["account"], name=found[0], source="certificate")
