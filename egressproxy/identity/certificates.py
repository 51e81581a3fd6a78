"""Who shows which certificate: by its subject, or by one of its subject alternative names.

Sources: RFC 4514 (subjects as text), RFC 5280 sections 4.1.2.6 and 4.2.1.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from egressproxy.ir.identity import CertificateClientIR
from egressproxy.model.exchange import CallerIdentity, service_account_name

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
        """Who shows this certificate, which was verified (as `ssl.SSLObject.getpeercert` gives it). None: nobody that
        is known, or several are.
        """
        subject = tuple(
            sorted(
                (_SHORT.get(name.lower(), name), value)
                for several in certificate.get("subject", ())
                for name, value in several
            )
        )
        shown: list[tuple[str, object]] = [("subject", subject)]
        for kind, value in certificate.get("subjectAltName", ()):
            shown.append((kind, value.lower() if kind == "DNS" else value))
        found = {self._known[each] for each in shown if each in self._known}
        return found.pop() if len(found) == 1 else None


def _value(client: CertificateClientIR) -> object:
    if client.kind == "subject":
        return read_subject(client.value)
    return client.value.lower() if client.kind == "DNS" else client.value
