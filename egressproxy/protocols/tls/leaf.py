"""Leaf: a certificate that was minted for one name. Here without what mints, which few processes have imported."""

from __future__ import annotations

from dataclasses import dataclass, field

from egressproxy.model.secret import SecretBytes


@dataclass(frozen=True, slots=True)
class Leaf:
    """`chain_pem`: it, and then what leads to the root of its CA, which is none of it (RFC 8446 section 4.4.2).
    `key_pem` is its private key. `expires_at`: seconds since the epoch.
    """

    chain_pem: str
    key_pem: SecretBytes = field(repr=False)
    expires_at: float
