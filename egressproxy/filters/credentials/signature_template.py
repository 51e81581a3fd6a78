"""Templates of what is signed, and of the fields in which a signature goes: `{method}`, `{body.sha256.hex}`.

A template is taken apart once. What stands in the request is put in as it is and never read as a template.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from egressproxy.filters.credentials.signed_request import SignedRequest
from egressproxy.filters.header_policy import is_protected
from egressproxy.model.encoding import rfc3339
from egressproxy.model.fields import TOKEN

#: What a variable stands for, in a request with this signature.
Part = Callable[[SignedRequest, bytes], bytes]

_TOKENS: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_ENCODINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "hex": lambda raw: raw.hex().encode(),
    "base64": b64encode,
    "base64url": lambda raw: urlsafe_b64encode(raw).rstrip(b"="),
}
_HASHES: Final = ("md5", "sha1", "sha256", "sha384", "sha512")
_VARIABLES: Final[dict[str, Part]] = {
    "method": lambda request, _: request.method,
    "scheme": lambda request, _: request.scheme,
    "host": lambda request, _: request.host,
    "target": lambda request, _: request.target,
    "path": lambda request, _: request.path,
    "query": lambda request, _: request.query,
    "nonce": lambda request, _: request.nonce,
    "body": lambda request, _: request.body,
    "timestamp": lambda request, _: b"%d" % request.now,
    "timestamp.ms": lambda request, _: b"%d" % (request.now * 1000),
    "timestamp.rfc3339": lambda request, _: rfc3339(request.now).encode(),
    "timestamp.http": lambda request, _: formatdate(int(request.now), usegmt=True).encode(),
    "signature": lambda _, signature: signature.hex().encode(),
}


class Template:
    """A template; `render` puts a request and its signature in. `variables` are the names of what stands in it."""

    __slots__ = ("_parts", "variables")

    def __init__(self, text: str) -> None:
        """Raises ValueError for a text that is no template."""
        parts: list[bytes | Part] = []
        names = []
        for found in _TOKENS.finditer(text):
            token, name = found[0], found[1]
            if name is not None:
                names.append(name)
                parts.append(_variable(name))
            elif token in ("{", "}"):
                raise ValueError(f"a single {token} stands for nothing: write {token * 2} for the character")
            else:
                parts.append(token[:1].encode() if token in ("{{", "}}") else token.encode())
        self._parts = parts
        self.variables = frozenset(names)

    @property
    def needs_body(self) -> bool:
        return any(name.partition(".")[0] == "body" for name in self.variables)

    @property
    def has_signature(self) -> bool:
        return any(name.partition(".")[0] == "signature" for name in self.variables)

    def render(self, request: SignedRequest, signature: bytes = b"") -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(request, signature) for part in self._parts)


def _variable(name: str) -> Part:
    found = _VARIABLES.get(name)
    if found is not None:
        return found
    kind, _, rest = name.partition(".")
    if kind == "header":
        if not TOKEN.fullmatch(rest.encode()) or is_protected(rest):
            raise ValueError(f"{{{name}}} is no field of the client that can be signed: {{host}} is Host")
        field = rest.lower().encode()
        return lambda request, _: request.value_of(field) or b""
    hashed, _, encoding = rest.partition(".")
    if kind == "body" and hashed in _HASHES and encoding in _ENCODINGS:
        encode = _ENCODINGS[encoding]
        return lambda request, _: encode(hashlib.new(hashed, request.body, usedforsecurity=False).digest())
    if kind == "signature" and rest in _ENCODINGS:
        shown = _ENCODINGS[rest]
        return lambda _, signature: shown(signature)
    known = ", ".join([*_VARIABLES, "header.NAME", "body.sha256.hex", "signature.base64"])
    raise ValueError(f"{{{name}}} is unknown; known are {known}")
