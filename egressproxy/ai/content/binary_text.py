"""Strings of JSON that are no text: base64, such as images."""

from __future__ import annotations

import re
from typing import Final

from egressproxy.model.work import Work

#: Members that hold binary data in messages of AI providers.
_BINARY: Final = frozenset((
    "b64_json", "bytes", "data", "encrypted_content", "file_data", "signature", "thoughtSignature", "thought_signature",
))  # fmt: skip
#: The alphabets of RFC 4648 sections 4 and 5. A string with blanks or long numbers is text, not base64.
_ALPHABETS: Final = (re.compile(r"[0-9A-Za-z+/\r\n]*"), re.compile(r"[0-9A-Za-z_\r\n-]*"))
_LONG_NUMBER = re.compile(r"[0-9-]{13}")
_OVERLAP: Final = 12
#: The most characters of base64 to check without a pause, and the most before the end of `;base64,` in a data URL.
_LOOKED_AT: Final = 32 * 1024
_DATA_HEAD: Final = 107
_MIN_BINARY: Final = 64


def may_be_binary(key: str, text: str) -> bool:
    """Whether the beginning of a string alone does not rule out binary data."""
    return key in _BINARY or text.startswith("data:")


def finding_binary(key: str, text: str) -> Work[bool]:
    """Whether a string in a conversation, the member `key`, is base64 such as an image, as cooperative work."""
    begin = 0
    if key in _BINARY:
        if len(text) < _MIN_BINARY:
            return False
    else:
        mark = text.find(";base64,", 0, _DATA_HEAD) if text.startswith("data:") else -1
        if mark < 0 or " " in text[:mark]:
            return False
        begin = mark + len(";base64,")
    end = len(text.rstrip("\r\n="))
    alphabets: tuple[re.Pattern[str], ...] = _ALPHABETS
    for start in range(begin, end, _LOOKED_AT):
        yield
        piece = text[max(begin, start - _OVERLAP) : min(start + _LOOKED_AT, end)]
        alphabets = tuple(each for each in alphabets if each.fullmatch(piece) is not None)
        if not alphabets or _LONG_NUMBER.search(piece) is not None:
            return False
    return begin < end
