"""RawJsonEditor: a body of JSON that is scanned as one text, because nothing that is looked for goes on behind a
string.

One scan of the body costs a small part of a scan of each of its strings, and what is found is replaced where it stands.
Where that is not enough (a name, a number, arguments that are JSON themselves), the texts are looked at one by one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from egressproxy.ai.content.binary_text import finding_binary, may_be_binary
from egressproxy.ai.content.bodies import BodyTexts, JsonDocument
from egressproxy.ai.content.spans import Replace, Scanner, Span, replaced
from egressproxy.model.work import Work, at_once

#: Escapes of which each stands for one character, none of which is in anything that is looked for. That of the
#: backslash is the first: what follows it is no escape.
_PARTING: Final = ("\\\\", '\\"', "\\n", "\\r", "\\t", "\\b", "\\f")
#: The same of few of them: a pass for each of these takes as long as so many matches, by 2 to this power characters.
_parting = re.compile(r'\\[\\"nrtbf]').sub
_FEW: Final = 4
_OTHER_ESCAPE = re.compile(r"\\(?:/|u([dD][89ABab][0-9A-Fa-f]{2})\\u([0-9A-Fa-f]{4})|u([0-9A-Fa-f]{4}))")
#: A number that may have other digits than are written: `4.1e15`, or more than a double has.
_odd_number = re.compile(r"[0-9](?:[Ee]|\.(?<=[0-9]{9}.))").search
_ODD_NUMBER_INSIDE = re.compile(r"[:,\[][ \1]*-?(?:[0-9.]+[Ee]|[0-9]{9,}\.)")
#: A string with its ends that is no name, cannot be JSON or data, and is not all base64.
_ordinary_string = re.compile(r"\0(?![ \1]*[{\[]|data:|[0-9A-Za-z+/=_\1-]{64,}+\0)[^\0]*+\0(?![ \t\r\n]*:)").match
#: Members that are signed by a provider, or say again what others say.
_bound = re.compile("\0(?:thinking|reasoningText|logprobs|logprobsResult|top_logprobs)\0").search
#: Bytes of a body of which `strings_of` is looked at as a whole.
SEEN_AT_A_GLANCE: Final = 64 * 1024
#: Bytes of a body that becomes one text, and escapes in it that are undone one by one: none of it yields.
_MAX_BYTES: Final = 512 * 1024
_MAX_ESCAPES: Final = 4096
_HOLDERS: Final = (dict, list)
#: Characters of a string that is worth a look at what it is.
_LONG: Final = 4096

#: A whole number that is not written as one: `str` of its value is not there to be found. For RE2: `re` takes ten times
#: as long for it.
_ROUND_NUMBER: Final = rb"[:,\[]\s*-?[0-9]+(?:\.[0-9]+)?[eE]|[0-9]{8}\.[0-9]"
#: Source: RFC 8259 section 7.
_ESCAPES: Final = (
    (rb"\n", b"\n"), (rb"\"", b'"'), (rb"\t", b"\t"), (rb"\/", b"/"), (rb"\r", b"\r"), (rb"\b", b"\b"),
    (rb"\f", b"\f"), (b"\0", b"\\"),
)  # fmt: skip


@dataclass(slots=True, eq=False, repr=False)
class RawJsonEditor:
    """`text` has a NUL for each quotation mark that begins or ends a string, and U+0001 for what escapes stand for that
    part words and numbers; JSON itself has neither.
    """

    _body: bytes
    _source: str  # what the body says
    text: str
    _index: list[int] | None  # of each character, and of the end, in the source

    @classmethod
    def of(cls, document: BodyTexts, scanner: Scanner) -> Work[RawJsonEditor | None]:
        """That of a document, made in turns. None for other bodies, and where a scan of the whole may find something
        else than those of its texts.
        """
        if type(document) is not JsonDocument or not scanner.stays_in_strings:
            return None
        message = document.message
        body = message.source
        if type(message.value) not in _HOLDERS or len(body) > _MAX_BYTES:
            return None
        source = text = body.decode()
        index = None
        has_inner_escapes = False
        if "\\" in text:
            has_inner_escapes = "\\\\" in text
            if text.count("\\") < len(text) >> _FEW:
                text = _parting("\1\1", text)
            else:
                for escape in _PARTING:
                    text = text.replace(escape, "\1\1")
            yield
            if "\\" in text:
                if text.count("\\") > _MAX_ESCAPES:
                    return None
                text, index = _unescaped(text)
                has_inner_escapes |= "\\" in text
                yield
        text = text.replace('"', "\0")
        if ("\0arguments\0" in text or "\0input\0" in text) and (
            has_inner_escapes or (scanner.sees_digits and _ODD_NUMBER_INSIDE.search(text) is not None)
        ):
            return None
        if scanner.sees_digits and _odd_number("".join(text.split("\0")[::2])) is not None:
            return None
        yield
        if len(text) > _LONG and document.is_ai:
            text = _without_binary(text)
        return cls(body, source, text, index)

    def replaced(self, found: list[Span], replace: Replace) -> bytes | None:
        """The body with these spans of the text replaced by texts without escapes. None, and nothing is replaced, if a
        span is not within a string, or the string cannot be replaced in place.
        """
        text = self.text
        end = 0  # behind the string that the span is in
        for start, _, entity, _ in found:
            if start >= end:
                if text.count("\0", end, start) % 2 == 0:
                    return None  # a number
                string = _ordinary_string(text, text.rfind("\0", 0, start))
                if string is None:
                    return None
                end = string.end()
            if entity == "PRIVATE_KEY":
                return None  # its lines are parted by escapes, and it has a greatest length
        if _bound(text) is not None:
            return None
        source, index = self._source, self._index
        if index is None:
            made = replaced(source, found, replace)
            return self._body if made == source else made.encode()
        pieces: list[str] = []
        done = 0
        for start, stop, entity, _ in found:
            value = text[start:stop]
            replacement = replace(entity, value)
            if replacement != value:
                pieces.append(source[done : index[start]])
                pieces.append(replacement)
                done = index[stop]
        pieces.append(source[done:])
        return "".join(pieces).encode() if done else self._body


def _without_binary(text: str) -> str:
    """The text with U+0001 for what is not looked at in a conversation, such as images."""
    pieces = text.split("\0")
    for at in [at for at, piece in enumerate(pieces) if len(piece) > _LONG]:
        piece = pieces[at]
        if at % 2 and at > 1:
            name = pieces[at - 2] if pieces[at - 1].strip(" \t\r\n") == ":" else ""
            if may_be_binary(name, piece) and at_once(finding_binary(name, piece.replace("\1\1", "\n"))):
                pieces[at] = "\1" * len(piece)
    return "\0".join(pieces)


def _unescaped(text: str) -> tuple[str, list[int]]:
    """The text with characters for their escapes, and the index of each in what came; U+0001 for those that part."""
    parts: list[str] = []
    index: list[int] = []
    at = 0
    for match in _OTHER_ESCAPE.finditer(text):
        begin = match.start()
        parts.append(text[at:begin])
        index.extend(range(at, begin))
        index.append(begin)
        at = match.end()
        high, low, code = match.groups()
        if high is not None:
            parts.append(chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)))
        elif code is None:
            parts.append("/")
        else:
            character = chr(int(code, 16))
            parts.append("\1" if character < " " or character == '"' else character)
    parts.append(text[at:])
    index.extend(range(at, len(text) + 1))
    return "".join(parts), index


def strings_of(body: bytes) -> str | None:
    """A text that has each string, name and whole number of this JSON (in UTF-8) in it, and what stands between them.

    None where it cannot be told so: there are code points in escapes, numbers in another form, or strings that may be
    JSON themselves, as arguments of calls are.
    """
    if b"arguments" in body or b'"input"' in body or _round_number().search(body) is not None:
        return None
    if b"\\" in body:
        if b"\\u" in body:
            return None
        body = body.replace(rb"\\", b"\0")  # which no string of JSON holds
        for escape, character in _ESCAPES:
            body = body.replace(escape, character)
    return body.decode()


@cache
def _round_number() -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    return re2.compile(_ROUND_NUMBER, options)
