"""Which client certificates were signed by the CAs of `identity.certificate.caCertificateRefs` where others are let in,
too: the chain that OpenSSL has verified tells it, which a resumed session has not. So it is remembered, for as long as
the settings are equal, under which alone a session is resumed.
"""

from __future__ import annotations

import re
import ssl
from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import Final

from egressproxy.ir.gateway import ClientCertificatesIR

#: Certificates of which is remembered that one of the CAs has signed them, for each set of settings.
MAX_REMEMBERED: Final = 16_384
_MAX_SETTINGS: Final = 64
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def is_for_identity(peer: ssl.SSLObject, clients: ClientCertificatesIR) -> bool:
    """Whether the verified certificate may say who the client is; of a resumed session, if it is still remembered."""
    if not clients.identity_ca_pem or not clients.ca_pem:
        return True  # there is one set of CAs, by which it was verified
    return _known_chains(clients).has_verified(peer)


class _KnownChains:
    """Of one set of settings."""

    __slots__ = ("_authorities", "_remembered")

    def __init__(self, pem: str) -> None:
        self._authorities = frozenset(map(ssl.PEM_cert_to_DER_cert, _PEM.findall(pem)))
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # digests of certificates of clients

    def has_verified(self, peer: ssl.SSLObject) -> bool:
        shown = peer.getpeercert(binary_form=True)
        if shown is None:
            return False
        digest = sha256(shown).digest()
        if peer.session_reused:
            if digest not in self._remembered:
                return False
        elif self._authorities.isdisjoint(_verified_chain(peer)):
            return False
        self._remembered[digest] = None
        self._remembered.move_to_end(digest)
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return True


@lru_cache(maxsize=_MAX_SETTINGS)
def _known_chains(clients: ClientCertificatesIR) -> _KnownChains:
    return _KnownChains(clients.identity_ca_pem)


def _verified_chain(peer: ssl.SSLObject) -> tuple[bytes, ...]:
    """From the client's certificate to the CA that is trusted, DER. Python has a name for it from 3.13 on."""
    chain = peer._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain or ())
