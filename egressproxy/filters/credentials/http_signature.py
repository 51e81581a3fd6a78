"""HTTP Message Signatures of requests (RFC 9421): what is signed, and how it is told. Pure: values in, values out."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from egressproxy.filters.credentials.signed_request import SignedRequest

#: The names of algorithms (section 6.2.2), with those of RFC 7518.
ALGORITHMS: Final = {
    "rsa-pss-sha512": "PS512", "rsa-v1_5-sha256": "RS256", "ecdsa-p256-sha256": "ES256", "ecdsa-p384-sha384": "ES384",
    "ed25519": "EdDSA", "hmac-sha256": "HS256",
}  # fmt: skip
#: The hashes of Content-Digest (RFC 9530 section 7.2).
DIGESTS: Final = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}

_QUERY_PARAM: Final = re.compile(r'@query-param;name="([A-Za-z0-9*._%-]+)"')
_DERIVED: Final[dict[str, Callable[[SignedRequest], bytes]]] = {
    "@method": lambda request: request.method,
    "@scheme": lambda request: request.scheme,
    "@authority": lambda request: request.host.lower().removesuffix(b":443" if request.is_secure else b":80"),
    "@target-uri": lambda request: request.scheme + b"://" + request.host + request.target,
    "@request-target": lambda request: request.target,
    "@path": lambda request: request.path or b"/",
    "@query": lambda request: b"?" + request.query,
}
#: A name of a field, as a component has it.
_FIELD: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


def identifier(component: str) -> str:
    """A component (`@method`, `date`, `@query-param;name="id"`) as a signature has it. Raises ValueError."""
    if component in _DERIVED or _FIELD.fullmatch(component):
        return f'"{component}"'
    found = _QUERY_PARAM.fullmatch(component)
    if found is None:
        known = ", ".join([*_DERIVED, '@query-param;name="NAME"'])
        raise ValueError(f"{component!r} cannot be signed: write the name of a field in lower case, or one of {known}")
    return f'"@query-param";name="{found[1]}"'


def signature_base(
    request: SignedRequest, components: Iterable[str], parameters: Mapping[str, int | str]
) -> tuple[bytes, bytes]:
    """What is signed, and the value of Signature-Input without its label (section 2.5).

    Components that the request does not have are left out. Raises ValueError for a parameter of the query that is there
    twice (section 2.2.8).
    """
    lines, covered = [], []
    for component in components:
        value = _value(request, component)
        if value is not None:
            name = identifier(component).encode()
            covered.append(name)
            lines.append(b"%s: %s" % (name, value))
    told = "".join(
        f";{name}={value if isinstance(value, int) else _quoted(value)}" for name, value in parameters.items()
    )
    signed = b"(" + b" ".join(covered) + b")" + told.encode()
    return b"\n".join((*lines, b'"@signature-params": ' + signed)), signed


def content_digest(body: bytes, algorithm: str) -> bytes:
    """The value of Content-Digest (RFC 9530 section 2)."""
    return b"%s=:%s:" % (algorithm.encode(), b64encode(DIGESTS[algorithm](body).digest()))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _value(request: SignedRequest, component: str) -> bytes | None:
    derived = _DERIVED.get(component)
    if derived is not None:
        return derived(request)
    found = _QUERY_PARAM.fullmatch(component)
    if found is None:
        return request.value_of(component.encode())
    pairs = [pair.partition(b"=") for pair in request.query.split(b"&")]
    values = [_encoded(value) for name, _, value in pairs if _encoded(name) == found[1].encode()]
    if len(values) > 1:
        raise ValueError(f"the parameter {found[1]} of the query stands there {len(values)} times")
    return values[0] if values else None


def _encoded(text: bytes) -> bytes:
    """A part of a query, decoded and encoded again as section 2.2.8 says."""
    decoded = unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")
    return quote(decoded, safe="*").replace("~", "%7E").encode()
