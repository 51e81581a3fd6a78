"""Masking: finds a secret in text, in the forms in which an upstream may echo it, and overwrites it with asterisks.

The length never changes, so the framing stays right. Besides the bytes themselves these forms are found:
percent-encoded (in both cases of the digits, "+" or "%20"), escaped for JSON and HTML as common libraries do it, in
UTF-16, hexadecimal, and base64 in both alphabets at every alignment, so that base64 of a text *around* the secret is
found as well. What is encoded twice, compressed or split is not found.
"""

from __future__ import annotations

import html
import json
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from egressproxy.model.secret import SecretBytes

#: In bytes: a shorter secret would be found in innocent text.
MIN_SECRET = 8


class Mask:
    """The forms of some secrets. Raises ValueError for a secret of fewer than MIN_SECRET bytes."""

    __slots__ = ("_forms", "_longest", "_shown")

    def __init__(self, *secrets: SecretBytes, shown: bytes = b"") -> None:
        """`shown` is written instead of a secret that stands there as it is, or percent-encoded."""
        if min(map(len, secrets)) < MIN_SECRET:
            raise ValueError(f"a secret of fewer than {MIN_SECRET} bytes cannot be told from other text in a response")
        found = {form for secret in secrets for form in _forms(secret.reveal())}
        # The longest first: if one form contains another, all of it is masked.
        self._forms = sorted(found, key=len, reverse=True)
        self._longest = len(self._forms[0])
        plain = {form for secret in secrets for form in (secret.reveal(), quote(secret.reveal(), safe="").encode())}
        self._shown = dict.fromkeys(plain, shown) if shown else {}

    def apply(self, data: bytes) -> bytes:
        """The data with every form overwritten; the same object if there is none. Without `shown` the length stays."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, self._shown.get(form) or b"*" * len(form))
        return data

    def feed(self, held: bytes, data: bytes, last: bool) -> tuple[bytes, bytes]:
        """Mask a piece of a stream. Returns what to send, and what may begin a form: the next `held`."""
        data = self.apply(held + data if held else data)
        if last:
            return data, b""
        keep = self._open_end(data)
        return (data[:-keep], data[-keep:]) if keep else (data, b"")

    def _open_end(self, data: bytes) -> int:
        """How many bytes at the end are the beginning of some form."""
        tail = data[-(self._longest - 1) :]
        keep = 0
        for form in self._forms:
            first = form[:1]
            at = tail.find(first, max(0, len(tail) - len(form) + 1))
            while at >= 0 and len(tail) - at > keep:
                if form.startswith(tail[at:]):
                    keep = len(tail) - at
                    break
                at = tail.find(first, at + 1)
        return keep


def _forms(value: bytes) -> set[bytes]:
    found = {value, value.hex().encode(), value.hex().upper().encode()}
    for encode in (quote, quote_plus):
        for safe in ("", "/"):
            encoded = encode(value, safe=safe).encode()
            found |= {encoded, _lower_escapes(encoded)}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    found |= {form.encode() for form in (*_json_forms(text), *_html_forms(text))}
    found |= {text.encode("utf-16-le"), text.encode("utf-16-be")}
    return found | base64_forms(value)


def base64_forms(value: bytes) -> set[bytes]:
    """This value in base64 at every alignment, in both alphabets (RFC 4648 sections 4 and 5)."""
    found = set()
    for before in range(3):
        whole = b64encode(b"\0" * before + value).rstrip(b"=")
        # Only digits that depend on the value alone: the ones at both ends mix in its neighbours.
        core = whole[(before * 8 + 5) // 6 : (before + len(value)) * 8 // 6]
        found |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def _json_forms(text: str) -> Iterator[str]:
    """As Python, PHP ("/" escaped) and Go (what HTML would take for markup escaped) write it, with and without "é"."""
    for is_ascii in (True, False):
        escaped = json.dumps(text, ensure_ascii=is_ascii)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")
        yield escaped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _html_forms(text: str) -> Iterator[str]:
    """As Python and Go write it; Go's templates escape "+", too."""
    bare = html.escape(text, quote=False)
    yield bare
    yield html.escape(text)
    numeric = bare.replace('"', "&#34;").replace("'", "&#39;")
    yield numeric
    yield numeric.replace("+", "&#43;")


def _lower_escapes(encoded: bytes) -> bytes:
    parts = encoded.split(b"%")
    return b"%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])
