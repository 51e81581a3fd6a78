"""Masking: finds a secret in text, in the forms in which an upstream may echo it, and overwrites it with asterisks.

The length never changes, so the framing stays right. Besides the bytes themselves these forms are found: each character
percent-encoded, as a reference of HTML or escaped as in JSON and JavaScript, in any mixture and either case of digits
("+" for a blank, too); in UTF-16, hexadecimal, and base64 in both alphabets at every alignment, so that base64 of a
text *around* the secret is found as well, and so is base64 of which a "+" or "/" is escaped. What else is encoded
twice, compressed or split is not found.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from egressproxy.model.secret import SecretBytes

#: In bytes: a shorter secret would be found in innocent text.
MIN_SECRET = 8


#: One character that is not written as it is (source text); `%b` takes what may stand behind a backslash by itself. The
#: class in front lets the engine skip what begins none. Each is short, since `_character` remembers it.
#: RFC 3986 section 2.1; HTML, character references; RFC 8259 section 7; ECMA-262, string literals.
_ESCAPE: Final = (
    rb"[%%&\\](?:(?<=%%)[0-9a-fA-F]{2}|(?<=&)(?:#(?:[xX][0-9a-fA-F]{1,8}|[0-9]{1,10});?|[A-Za-z]{2,10};)"
    rb"|(?<=\\)(?:u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|u\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}%b))"
)
#: The beginning of one, at the end of a piece.
_OPEN_ESCAPE: Final = re.compile(
    rb"(?:%[0-9a-fA-F]?|&(?:#[xX]?[0-9a-fA-F]{0,10}|[A-Za-z]{0,10})|\\(?:u\{?[0-9a-fA-F]{0,6}|x[0-9a-fA-F]?)?)\Z"
)
#: Bytes of the longest escape that is looked for.
_LONGEST_ESCAPE: Final = 14


class Mask:
    """The forms of some secrets. Raises ValueError for a secret of fewer than MIN_SECRET bytes."""

    __slots__ = ("_escape", "_forms", "_longest", "_plain", "_shown", "_texts")

    def __init__(self, *secrets: SecretBytes, shown: bytes = b"") -> None:
        """`shown` is written instead of a secret that stands there as it is, or percent-encoded."""
        if min(map(len, secrets)) < MIN_SECRET:
            raise ValueError(f"a secret of fewer than {MIN_SECRET} bytes cannot be told from other text in a response")
        values = [secret.reveal() for secret in secrets]
        in_base64 = {form for value in values for form in base64_forms(value) if b"+" in form or b"/" in form}
        self._escape = _escapes_of(b"".join((*values, *in_base64)))
        texts = {text for value in values for text in (*_texts(value), *_texts(self._read(value)))}
        # The longest first: if one form contains another, all of it is masked.
        self._forms = sorted(texts.union(*map(_forms, values)), key=len, reverse=True)
        self._longest = len(self._forms[0])
        self._plain = texts
        self._texts = sorted(texts | in_base64, key=len, reverse=True)
        self._shown = shown

    def apply(self, data: bytes) -> bytes:
        """The data with every form overwritten; the same object if there is none. Without `shown` the length stays."""
        for form in self._forms:
            if form in data:
                data = data.replace(form, self._instead(form))
        read = self._read(data)
        for text in self._texts if read is not data else ():
            if text in read:
                data = self._without(text, data)
                read = self._read(data)
        return data

    def _instead(self, form: bytes) -> bytes:
        is_plain = self._shown and self._read(form) in self._plain
        return self._shown if is_plain and b"&" not in form and b"\\" not in form else b"*" * len(form)

    def _without(self, text: bytes, data: bytes) -> bytes:
        read, offsets = self._with_offsets(data)
        made, done, at = list[bytes](), 0, read.find(text)
        while at >= 0:
            begin, end = offsets[at], offsets[at + len(text)]
            made += (data[done:begin], self._instead(data[begin:end]))
            done, at = end, read.find(text, at + len(text))
        return b"".join((*made, data[done:]))

    def feed(self, held: bytes, data: bytes, last: bool) -> tuple[bytes, bytes]:
        """Mask a piece of a stream. Returns what to send, and what may begin a form: the next `held`."""
        data = held + data if held else data
        if last:
            return self.apply(data), b""
        found = _OPEN_ESCAPE.search(data, max(0, len(data) - _LONGEST_ESCAPE))
        end = found.start() if found is not None else len(data)
        data, rest = self.apply(data[:end]), data[end:]
        keep = max(_open_end(data, self._forms), self._open_escapes(data))
        return (data[:-keep], data[-keep:] + rest) if keep else (data, rest)

    def _open_escapes(self, data: bytes) -> int:
        """How many bytes at the end are the beginning of a secret of which a character is escaped."""
        tail = data[-_LONGEST_ESCAPE * self._longest :]
        read = self._read(tail)
        if read is tail:
            return 0  # as `_open_end` of the forms says
        read, offsets = self._with_offsets(tail)
        return len(tail) - offsets[len(read) - _open_end(read, self._texts)]

    def _read(self, data: bytes) -> bytes:
        """What is written there, without escapes; the same object where there are none."""
        if b"%" in data:
            data = unquote_to_bytes(data)  # ten times as fast as what follows
        if b"&" not in data and b"\\" not in data:
            return data
        return self._escape.sub(lambda escape: _character(escape[0]), data)

    def _with_offsets(self, data: bytes) -> tuple[bytes, list[int]]:
        """The same, and where each of its bytes is written, with the end of all behind them."""
        made, offsets, done = bytearray(), list[int](), 0
        for escape in self._escape.finditer(data):
            character = _character(escape[0])
            made += data[done : escape.start()] + character
            offsets += [*range(done, escape.start()), *[escape.start()] * len(character)]
            done = escape.end()
        return bytes(made + data[done:]), [*offsets, *range(done, len(data) + 1)]


def _open_end(data: bytes, forms: list[bytes]) -> int:
    """How many bytes at the end are the beginning of some form. `forms`: the longest first."""
    tail = data[-(len(forms[0]) - 1) :]
    keep = 0
    for form in forms:
        first = form[:1]
        at = tail.find(first, max(0, len(tail) - len(form) + 1))
        while at >= 0 and len(tail) - at > keep:
            if form.startswith(tail[at:]):
                keep = len(tail) - at
                break
            at = tail.find(first, at + 1)
    return keep


def _escapes_of(secrets: bytes) -> re.Pattern[bytes]:
    """Behind a backslash alone stand those characters that these have: texts of JSON are full of others."""
    named = {b"\n": b"n", b"\r": b"r", b"\t": b"t"}
    marks = {each for each in re.findall(rb"[^0-9A-Za-z]", secrets) if each < b"\x7f"}
    behind = b"".join(sorted(re.escape(named.get(each, each)) for each in marks))
    return re.compile(_ESCAPE % (b"|[%b]" % behind if behind else b""))


@lru_cache(maxsize=4096)
def _character(escape: bytes) -> bytes:
    """In UTF-8; of a percent-encoded byte the byte. An escape that means nothing stays."""
    if escape[:1] == b"%":
        return bytes((int(escape[1:], 16),))
    text = escape.decode("latin-1")
    if text[0] == "&":
        read = html.unescape(text)
    elif text[1] == "x" or text[1:3] == "u{":
        number = int(text[2:].strip("{}"), 16)
        read = chr(number) if number <= 0x10FFFF else text
    else:
        read = str(json.loads(f'"{text}"')) if text[1] in 'bfnrtu"\\/' else text[1:]
    return read.encode("utf-8", "surrogatepass")


def _texts(value: bytes) -> set[bytes]:
    """What a text says that has this value in escapes. A "+" may stand for a blank."""
    forms = {value}
    try:
        value.decode()
    except UnicodeDecodeError:
        forms.add(value.decode("latin-1").encode())
    return forms | {each.replace(b" ", b"+") for each in forms}


def _forms(value: bytes) -> set[bytes]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.decode("latin-1")
    found = {value.hex().encode(), value.hex().upper().encode()}
    return found | {text.encode("utf-16-le"), text.encode("utf-16-be")} | base64_forms(value)


def base64_forms(value: bytes) -> set[bytes]:
    """This value in base64 at every alignment, in both alphabets (RFC 4648 sections 4 and 5)."""
    found = set()
    for before in range(3):
        whole = b64encode(b"\0" * before + value).rstrip(b"=")
        # Only digits that depend on the value alone: the ones at both ends mix in its neighbours.
        core = whole[(before * 8 + 5) // 6 : (before + len(value)) * 8 // 6]
        found |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return found
