"""Path: what an origin may make of the path of a request target. Pure; nothing is repaired here, only seen."""

from __future__ import annotations

import re
from typing import Final

#: A slash as some origin may read it: plain, a backslash, or either in percent-encoding, once or more often.
_SLASH = rb"(?:/|\\|%(?:25)*(?:2[fF]|5[cC]))"
#: One or two dots, plain or encoded, that end at a slash, at the end, or at a ";" (path parameters).
_DOT_SEGMENT = re.compile(rb"%s(?:\.|%%(?:25)*2[eE]){1,2}(?:\Z|;|%%(?:25)*3[bB]|(?=%s))" % (_SLASH, _SLASH))

#: Bytes are looked for by their numbers: `in` takes a second look at anything else.
_PERCENT: Final = 0x25
_BACKSLASH: Final = 0x5C


def has_dot_segment(path: bytes) -> bool:
    """Whether some origin may read a segment of this path (without query) as `.` or `..`.

    Source: RFC 3986 section 5.2.4, and the spellings that origins have been tricked with: `%2e`, `%252e`, `..%2f`,
    `..;` and backslashes.
    """
    if path.find(b"/.") < 0 and _PERCENT not in path and _BACKSLASH not in path:
        return False
    return _DOT_SEGMENT.search(path) is not None
