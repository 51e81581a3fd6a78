"""Key sets: the public keys of an issuer of tokens, as JSON (JWKS), and with which algorithm each may sign.

The algorithm follows from the key, never from the token alone: so no token is verified with a public key as if that
were a shared secret (CVE-2016-10555). Sources: RFC 7517 (JWK), RFC 7518 sections 3 and 6, RFC 8037 (Ed25519), RFC 8725.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import InvalidKeyError
from jwt.utils import base64url_decode

MAX_KEY_SET_BYTES: Final = 256 * 1024
MAX_KEYS: Final = 64
#: The most keys that are tried for a key or token without `kid`.
MAX_TRIED: Final = 4
MIN_RSA_BITS: Final = 2048
#: Above these a check of a signature takes milliseconds.
MAX_RSA_BITS: Final = 8192
MAX_RSA_EXPONENT: Final = 2**32
#: The most characters of a key's name in a message.
MAX_SHOWN: Final = 80

_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
#: By type and curve.
_OF_CURVE: Final = {
    ("EC", "P-256"): "ES256", ("EC", "P-384"): "ES384", ("EC", "P-521"): "ES512", ("OKP", "Ed25519"): "EdDSA",
}  # fmt: skip


class UnusableKeySet(ValueError):
    """An unusable key set; the text gives the reason, never a key."""


class _UnusableKey(ValueError):
    """One unusable key of a usable set; the text gives the reason, never the key."""


class KeySet:
    """The keys of one issuer. `text` is the JWKS, `fingerprints` identify the keys. `unusable` names each signature key
    that was left out, with the reason ("keys[0] (kid old): ...").
    """

    __slots__ = ("_by_kid", "_unnamed", "_unusable_kids", "fingerprints", "text", "unusable")

    def __init__(
        self,
        text: str,
        by_kid: Mapping[str, tuple[Any, frozenset[str]]],
        unnamed: list[Any],
        fingerprints: frozenset[str],
        unusable: Sequence[tuple[str | None, str]] = (),
    ) -> None:
        """`unusable`: the `kid` (None: none) and the reason of each key that was left out."""
        self.text = text
        self.unusable = tuple(message for _, message in unusable)
        self._unusable_kids = frozenset(kid for kid, _ in unusable if kid is not None)
        self.fingerprints = fingerprints
        self._by_kid = by_kid
        self._unnamed: list[tuple[Any, frozenset[str]]] = unnamed

    def candidates(self, kid: str | None, algorithm: str) -> list[Any]:
        """The keys that may have signed a token with this `kid` (None: none) and algorithm."""
        if kid is not None and kid in self._by_kid:
            found = [self._by_kid[kid]]
        elif kid is not None:
            found = self._unnamed
        else:
            found = [*self._by_kid.values(), *self._unnamed]
        return [key for key, algorithms in found if algorithm in algorithms][:MAX_TRIED]

    def leaves_out(self, kid: str | None) -> bool:
        """Whether the key of this `kid` is listed but unusable."""
        return kid in self._unusable_kids and kid not in self._by_kid

    def __len__(self) -> int:
        return len(self._by_kid) + len(self._unnamed)


def read_key_set(text: bytes | str, *, may_be_empty: bool = False) -> KeySet:
    """The keys of a JWKS. Keys of unknown kinds or for other uses than verification are left out, and so are malformed
    or weak keys, which `unusable` names. Raises UnusableKeySet for a malformed set, a set without usable keys (except
    an empty list, if `may_be_empty`), and a set with a forbidden key: a shared secret or a private key.
    """
    if len(text) > MAX_KEY_SET_BYTES:
        raise UnusableKeySet(f"the key set is longer than {MAX_KEY_SET_BYTES} bytes")
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            raise UnusableKeySet("the key set is no JSON") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise UnusableKeySet("the key set is no JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UnusableKeySet('the key set has no list "keys" (RFC 7517 section 5)')
    if len(entries) > MAX_KEYS:
        raise UnusableKeySet(f"the key set has more than {MAX_KEYS} keys")
    by_kid: dict[str, tuple[Any, frozenset[str]]] = {}
    unnamed = []
    unusable: list[tuple[str | None, str]] = []
    for number, entry in enumerate(entries):
        kid, where = entry.get("kid"), f"keys[{number}]"
        try:
            found = _read_key(entry, where)
            if found is not None and not isinstance(kid, str | None):
                raise _UnusableKey("its kid is no text")
        except _UnusableKey as problem:
            named = isinstance(kid, str) and len(kid) <= MAX_SHOWN and kid.isprintable()
            message = f"{where} (kid {kid}): {problem}" if named else f"{where}: {problem}"
            unusable.append((kid if isinstance(kid, str) else None, message))
            continue
        if found is None:
            continue
        if kid is None:
            unnamed.append(found)
        elif kid in by_kid:
            raise UnusableKeySet(f"{where}: another key has the same kid")
        else:
            by_kid[kid] = found
    if not by_kid and not unnamed and unusable:
        raise UnusableKeySet(
            f"the key set has no key that can be used: {'; '.join(message for _, message in unusable[:3])}"
        )
    if not by_kid and not unnamed and not may_be_empty:
        raise UnusableKeySet("the key set has no key for signatures (kty RSA, EC or OKP with use sig)")
    fingerprints = frozenset(json.dumps(entry, sort_keys=True) for entry in entries)
    return KeySet(text, by_kid, unnamed, fingerprints, unusable)


def _read_key(entry: dict[str, Any], where: str) -> tuple[Any, frozenset[str]] | None:
    kind = entry.get("kty")
    if kind == "oct":
        raise UnusableKeySet(f"{where} is a shared secret (kty oct): who can verify with it can sign with it, too")
    if "d" in entry:
        raise UnusableKeySet(f"{where} is a private key: publish the public one alone")
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if entry.get("use", "sig") != "sig" or kind not in ("RSA", "EC", "OKP"):
        return None
    try:
        if kind == "RSA":
            key, algorithms = _rsa(entry)
        else:
            algorithm = _OF_CURVE.get((kind, entry["crv"]))
            if algorithm is None:
                return None
            key = (ECAlgorithm if kind == "EC" else OKPAlgorithm).from_jwk(entry)
            algorithms = frozenset((algorithm,))
    except _UnusableKey:
        raise
    except (InvalidKeyError, ValueError, TypeError, KeyError, AttributeError):
        raise _UnusableKey("it is malformed") from None
    written = entry.get("alg")
    if written is not None:
        algorithms &= {written if isinstance(written, str) else ""}
    return (key, algorithms) if algorithms else None


def _rsa(entry: dict[str, Any]) -> tuple[Any, frozenset[str]]:
    modulus, exponent = (int.from_bytes(base64url_decode(entry[name]), "big") for name in ("n", "e"))
    bits = modulus.bit_length()
    if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS:
        raise _UnusableKey(f"it has {bits} bits, and an RSA key has to have {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    if exponent > MAX_RSA_EXPONENT:
        raise _UnusableKey("its public exponent is above 2**32")
    return RSAAlgorithm.from_jwk(entry), _RSA
