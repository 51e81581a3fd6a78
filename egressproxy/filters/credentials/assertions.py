"""Assertions: JSON Web Tokens that the gateway signs to say who it is (RFC 7519, RFC 7523)."""

from __future__ import annotations

import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from egressproxy.model.secret import SecretBytes

#: How long an assertion is valid, in seconds (RFC 7523 section 3: the server may refuse one that is valid for long).
ASSERTION_S: Final = 300


class AssertionKey:
    """A private key that signs assertions: RSA (RS256), P-256 (ES256), P-384 (ES384) or Ed25519 (EdDSA)."""

    __slots__ = ("_key_id", "_sign", "algorithm")

    def __init__(self, pem: SecretBytes, key_id: str = "") -> None:
        """Raises ValueError for what is no such key; the message has nothing of it."""
        self.algorithm, self._sign = _signer(pem)
        self._key_id = key_id

    def sign(self, claims: Mapping[str, Any]) -> str:
        """The token with these claims and `iat`, `exp` and `jti`."""
        now = int(time.time())
        header = {"alg": self.algorithm, "typ": "JWT"} | ({"kid": self._key_id} if self._key_id else {})
        times = {"iat": now, "exp": now + ASSERTION_S, "jti": secrets.token_hex(16)}
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (header, {**claims, **times}))
        return (text + b"." + _encoded(self._sign(text))).decode()

    def __repr__(self) -> str:
        return f"AssertionKey({self.algorithm})"


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def _signer(pem: SecretBytes) -> tuple[str, Callable[[bytes], bytes]]:
    # Here, since few processes need it.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem.reveal(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("it is not a private key in PEM without a password") from None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
        return "RS256", lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA", key.sign
    if isinstance(key, ec.EllipticCurvePrivateKey):
        curves: dict[str, tuple[str, int, hashes.HashAlgorithm]] = {
            "secp256r1": ("ES256", 32, hashes.SHA256()),
            "secp384r1": ("ES384", 48, hashes.SHA384()),
        }
        if key.curve.name in curves:
            name, size, digest = curves[key.curve.name]

            def sign(text: bytes) -> bytes:
                parts = decode_dss_signature(key.sign(text, ec.ECDSA(digest)))
                return b"".join(part.to_bytes(size, "big") for part in parts)  # RFC 7518 section 3.4

            return name, sign
    raise ValueError("the key is not RSA of 2048 bits or more, P-256, P-384 or Ed25519")
