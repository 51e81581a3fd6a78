"""An issuer of tokens: its keys, and whatever it may sign."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.support import manifests as m
from tests.support.manifests import Manifest

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = "egress"


def b64(value: bytes | dict[str, Any]) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class TokenIssuer:
    """`keys` are private keys by kid; the first signs unless another is named."""

    def __init__(self, issuer: str = ISSUER, algorithm: str = "ES256", kid: str = "one") -> None:
        self.issuer = issuer
        self.keys: dict[str, tuple[str, Any]] = {}
        self.add(kid, algorithm)

    def add(self, kid: str, algorithm: str = "ES256") -> None:
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        key: Any
        if algorithm in curves:
            key = ec.generate_private_key(curves[algorithm])
        elif algorithm == "EdDSA":
            key = ed25519.Ed25519PrivateKey.generate()
        else:
            key = rsa.generate_private_key(65537, 2048)
        self.keys[kid] = algorithm, key

    def jwk(self, kid: str) -> dict[str, Any]:
        algorithm, key = self.keys[kid]
        of = ECAlgorithm if algorithm.startswith("ES") else OKPAlgorithm if algorithm == "EdDSA" else RSAAlgorithm
        return {**of.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}  # type: ignore[attr-defined]

    def jwks(self) -> str:
        return json.dumps({"keys": [self.jwk(kid) for kid in self.keys]})

    def token(
        self, subject: str = "system:serviceaccount:team:robot", *, kid: str = "", head: Any = None, **claims: Any
    ) -> str:
        """A token that holds for an hour. `head` adds to its head; a claim None is left out."""
        kid = kid or next(iter(self.keys))
        algorithm, key = self.keys[kid]
        now = int(time.time())
        said = {
            "iss": self.issuer,
            "sub": subject,
            "aud": [AUDIENCE],
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
            **claims,
        }
        said = {name: value for name, value in said.items() if value is not None}
        return jwt.encode(said, key, algorithm=algorithm, headers={"kid": kid, **(head or {})})

    def unsigned(self, algorithm: str = "none", **claims: Any) -> str:
        now = int(time.time())
        said = {
            "iss": self.issuer,
            "sub": "system:serviceaccount:team:robot",
            "aud": AUDIENCE,
            "exp": now + 60,
            **claims,
        }
        return f"{b64({'alg': algorithm, 'kid': next(iter(self.keys))})}.{b64(said)}."

    @property
    def written(self) -> Manifest:
        """This issuer in `identity.token.issuers`; its keys are in the ConfigMap `keys`."""
        return {
            "issuer": self.issuer,
            "audiences": [AUDIENCE],
            "jwksRef": {"kind": "ConfigMap", "name": "keys"},
            "serviceAccounts": True,
        }

    @property
    def config_map(self) -> Manifest:
        return m.config_map("keys", {"jwks.json": self.jwks()})
