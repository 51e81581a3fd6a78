"""Keys that sign: tokens (JWS), and requests. Messages never have the content of a key."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from egressproxy.model.secret import SecretBytes

Signer = Callable[[bytes], bytes]

#: The lifetime of an assertion in seconds (RFC 7523 section 3: servers may refuse a long one).
ASSERTION_S: Final = 300
#: The least bytes of a shared secret (RFC 7518 section 3.2).
MIN_SHARED: Final = 32


class AssertionKey:
    """A key that signs tokens: RSA (RS256, PS256), P-256 (ES256), P-384 (ES384), Ed25519 (EdDSA), or a shared secret
    (HS256).
    """

    __slots__ = ("_header", "_sign", "algorithm")

    def __init__(self, key: SecretBytes, key_id: str = "", algorithm: str = "", thumbprint: str = "") -> None:
        """`algorithm` as for `private_signer`, or HS256. `thumbprint` is that of a certificate (RFC 7515 section
        4.1.8). Raises ValueError for an unsupported key.
        """
        self.algorithm, self._sign = (
            ("HS256", shared_signer(key)) if algorithm == "HS256" else private_signer(key, algorithm)
        )
        named = {"kid": key_id, "x5t#S256": thumbprint}
        self._header = {"alg": self.algorithm, "typ": "JWT"} | {name: value for name, value in named.items() if value}

    def sign(self, claims: Mapping[str, Any], life_s: int = ASSERTION_S, back_s: int = 0) -> str:
        """The token with these claims and `iat`, `exp` and `jti`. It is valid from `back_s` ago for `life_s` from now,
        in seconds.
        """
        now = int(time.time())
        times = {"iat": now - back_s, "exp": now + life_s, "jti": secrets.token_hex(16)}
        text = b".".join(_encoded(json.dumps(part).encode()) for part in (self._header, {**claims, **times}))
        return (text + b"." + _encoded(self._sign(text))).decode()

    def __repr__(self) -> str:
        return f"AssertionKey({self.algorithm})"


def _encoded(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def shared_signer(secret: SecretBytes) -> Signer:
    """What signs with HMAC-SHA256. Raises ValueError for a secret that is short, or a key in PEM: it would let anybody
    who has the public key sign (RFC 8725 section 2.1).
    """
    if b"-----BEGIN " in secret.reveal():
        raise ValueError("it is a key in PEM, and HMAC needs a shared secret")
    if len(secret) < MIN_SHARED:
        raise ValueError(f"it has less than {MIN_SHARED} bytes (RFC 7518 section 3.2)")
    return lambda text: hmac.digest(secret.reveal(), text, "sha256")


def private_signer(pem: SecretBytes, algorithm: str = "", names: Mapping[str, str] | None = None) -> tuple[str, Signer]:
    """The algorithm of a private key (RFC 7518 section 3.1, RFC 8037), and what signs with it.

    `algorithm`: RS256, PS256, PS512, ES256, ES384 or EdDSA, which has to fit the key; "": the usual one of the key.
    `names`: what they are called in messages. Raises ValueError.
    """
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
    signers: dict[str, Signer] = {}
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
        signers["RS256"] = lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())
        for name, hashed in (("PS256", hashes.SHA256()), ("PS512", hashes.SHA512())):
            salted = padding.PSS(padding.MGF1(hashed), hashed.digest_size)
            signers[name] = lambda text, salted=salted, hashed=hashed: key.sign(text, salted, hashed)  # type: ignore[misc]
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        signers["EdDSA"] = key.sign
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        curves: dict[str, tuple[str, int, hashes.HashAlgorithm]] = {
            "secp256r1": ("ES256", 32, hashes.SHA256()),
            "secp384r1": ("ES384", 48, hashes.SHA384()),
        }
        if key.curve.name in curves:
            name, size, digest = curves[key.curve.name]

            def sign(text: bytes) -> bytes:
                parts = decode_dss_signature(key.sign(text, ec.ECDSA(digest)))
                return b"".join(part.to_bytes(size, "big") for part in parts)  # RFC 7518 section 3.4

            signers[name] = sign
    if not signers:
        raise ValueError("the key is not RSA of 2048 bits or more, P-256, P-384 or Ed25519")
    chosen = algorithm or next(iter(signers))
    if chosen not in signers:
        shown = names or {name: name for name in (algorithm, *signers)}
        fitting = " or ".join(shown[name] for name in signers if name in shown)
        raise ValueError(f"the key cannot be used for {shown[algorithm]}; it is one for {fitting}")
    return chosen, signers[chosen]
