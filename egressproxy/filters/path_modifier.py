"""PathReplacement: replaces the whole path, or the prefix that matched. The query is kept.

Source: Gateway API HTTPPathModifier, and its table of slashes for ReplacePrefixMatch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.filters.settings import FilterConfig, matching

#: RFC 3986 section 3.3 (path); neither query nor fragment.
_PATH = re.compile(rb"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?")
_NOT_A_PATH = "{!r} is not a path: a path begins with / and has no query, fragment or blanks"


@dataclass(frozen=True, slots=True)
class PathReplacement(FilterConfig):
    """HTTPPathModifier; `value` "" removes the prefix, or the whole path."""

    type: Literal["ReplaceFullPath", "ReplacePrefixMatch"]
    value: Annotated[str, matching(_PATH, _NOT_A_PATH)] = ""


def modify_path(modifier: PathReplacement, path: bytes, prefix: bytes) -> bytes:
    """The new origin-form target for `path` (with its query), of which `prefix` matched.

    As many path elements are removed as the prefix has, so an element that matched in another spelling (`%61` for `a`)
    is removed whole. If no prefix matched, ReplacePrefixMatch changes nothing.
    """
    value = modifier.value.encode()
    rest, mark, query = path.partition(b"?")
    query = mark + query
    if modifier.type == "ReplaceFullPath":
        return (value or b"/") + query
    if not prefix or not path.startswith(b"/"):
        return path
    for _ in range(prefix.rstrip(b"/").count(b"/")):
        slash = rest.find(b"/", 1)
        rest = rest[slash:] if slash > 0 else b""
    return (value.rstrip(b"/") + rest if rest else value or b"/") + query
