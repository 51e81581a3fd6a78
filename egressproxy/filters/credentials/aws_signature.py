"""Signatures of AWS: Signature Version 4 (HMAC) and 4A (ECDSA, for several regions). Pure: values in, values out.

Source: AWS, "Create a signed AWS API request" and, for S3, "Signature calculations for the Authorization header:
transferring payload in multiple chunks".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from egressproxy.model.secret import SecretBytes

EMPTY_SHA256: Final = hashlib.sha256().hexdigest().encode()
V4: Final = b"AWS4-HMAC-SHA256"
V4A: Final = b"AWS4-ECDSA-P256-SHA256"
_UNRESERVED: Final = "-_.~"
#: The order of the P-256 group (FIPS 186-4 D.1.2.3).
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """An access key. `token` belongs to temporary ones (X-Amz-Security-Token)."""

    access_key_id: str
    secret: SecretBytes = field(repr=False)
    token: SecretBytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a signature is for. `is_s3`: paths are encoded once and taken as they are, as S3 wants it."""

    service: str
    region: str
    is_s3: bool = False


def canonical_request(
    method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]], payload: bytes, *, is_s3: bool
) -> tuple[bytes, bytes]:
    """The canonical request, and the names of its fields joined by ";".

    `target` is the path with its query as it is sent; `fields` are those to sign, Host among them, with names in lower
    case; `payload` is the hexadecimal SHA-256 of the body, or the word that stands for it.
    """
    path, _, query = target.partition(b"?")
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        by_name.setdefault(name, []).append(b" ".join(value.split()))
    names = sorted(by_name)
    lines = [b"%s:%s" % (name, b",".join(by_name[name])) for name in names]
    signed = b";".join(names)
    parts = (method, _path(path, is_s3=is_s3), _query(query), b"\n".join(lines) + b"\n", signed, payload)
    return b"\n".join(parts), signed


def _path(path: bytes, *, is_s3: bool) -> bytes:
    """S3: as it is sent. The others: without dot segments and double slashes, and encoded once more."""
    if is_s3:
        return path or b"/"
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment not in (b"", b"."):
            kept.append(segment)
    normal = b"/" + b"/".join(kept)
    if kept and path.endswith(b"/"):
        normal += b"/"
    return quote(normal, safe="/" + _UNRESERVED).encode()


def _query(query: bytes) -> bytes:
    """Each name and value decoded and encoded again, in the order of their encoded forms."""
    if not query:
        return b""
    pairs = [pair.partition(b"=")[::2] for pair in query.split(b"&") if pair]
    return b"&".join(b"%s=%s" % pair for pair in sorted((_encoded(name), _encoded(value)) for name, value in pairs))


def _encoded(text: bytes) -> bytes:
    return quote(unquote_to_bytes(text), safe=_UNRESERVED).encode()


@dataclass(slots=True, eq=False, repr=False)
class SigV4:
    """Signs with one access key for one scope. The key that is derived for a day is kept for that day."""

    algorithm = V4

    _keys: AwsKeys
    _scope: Scope
    _day: bytes = b""
    _key: bytes = b""

    def authorization(
        self, method: bytes, target: bytes, fields: Iterable[tuple[bytes, bytes]], payload: bytes, time: bytes
    ) -> tuple[bytes, bytes]:
        """The value of Authorization, and the signature alone. `time`: X-Amz-Date. Others: see `canonical_request`."""
        canonical, signed = canonical_request(method, target, fields, payload, is_s3=self._scope.is_s3)
        scope = self.scope(time)
        name, digest = self.algorithm, hashlib.sha256(canonical).hexdigest().encode()
        signature = self.sign(b"\n".join((name, time, scope, digest)), time)
        credential = self._keys.access_key_id.encode() + b"/" + scope
        return b"%s Credential=%s, SignedHeaders=%s, Signature=%s" % (name, credential, signed, signature), signature

    def scope(self, time: bytes) -> bytes:
        return b"/".join((time[:8], self._scope.region.encode(), self._scope.service.encode(), b"aws4_request"))

    def sign(self, text: bytes, time: bytes) -> bytes:
        """The signature of a string to sign, in hexadecimal."""
        day = time[:8]
        if day != self._day:
            key = b"AWS4" + self._keys.secret.reveal()
            for part in (day, self._scope.region.encode(), self._scope.service.encode(), b"aws4_request"):
                key = hmac.digest(key, part, "sha256")
            self._day, self._key = day, key
        return hmac.digest(self._key, text, "sha256").hex().encode()


class SigV4A(SigV4):
    """Signs with a key pair of one access key. `region`: a set (`eu-*,us-east-1`). Needs X-Amz-Region-Set signed."""

    __slots__ = ("_private_key",)

    algorithm = V4A

    def __init__(self, keys: AwsKeys, scope: Scope) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        super().__init__(keys, scope)
        self._private_key = ec.derive_private_key(derive_v4a_key(keys), ec.SECP256R1())

    def scope(self, time: bytes) -> bytes:
        return b"/".join((time[:8], self._scope.service.encode(), b"aws4_request"))

    def sign(self, text: bytes, time: bytes) -> bytes:
        """The signature (DER) of a string to sign, in hexadecimal. It is another one each time."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        return self._private_key.sign(text, ec.ECDSA(hashes.SHA256())).hex().encode()


def derive_v4a_key(keys: AwsKeys) -> int:
    """The private key (a number) of an access key: NIST SP 800-108 in counter mode with HMAC-SHA256."""
    secret = b"AWS4A" + keys.secret.reveal()
    for counter in range(1, 255):
        context = keys.access_key_id.encode() + bytes((counter,))
        text = b"\x00\x00\x00\x01" + V4A + b"\x00" + context + b"\x00\x00\x01\x00"
        candidate = int.from_bytes(hmac.digest(secret, text, "sha256"), "big")
        if candidate <= _ORDER - 2:
            return candidate + 1
    raise ValueError("no key of SigV4A can be derived from this access key")
