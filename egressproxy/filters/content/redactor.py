"""Redactor: takes out of text what looks like a credential or personal data, before a person or a file sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from egressproxy.filters.content.entities import ENTITIES, scanner_of
from egressproxy.filters.content.spans import Scanner

#: The value of a member of JSON, or of a form, whose name says that it is a secret.
_NAMED: Final = re.compile(
    r"""((?:password|passwd|secret|api[-_]?key|apikey|authorization|credential|access[-_]?token|auth[-_]?token|"""
    r"""refresh[-_]?token|client[-_]?secret|private[-_]?key)[\w-]{0,32}["']?\s{0,8}[:=]\s{0,8})("(?:[^"\\]|\\.)*"|[^\s,;&}"]+)""",
    re.IGNORECASE,
)


class Redactor:
    """Of text, the values that are one of these `entities`, or whose name says that they are secret."""

    __slots__ = ("_scanner",)

    def __init__(self, entities: Iterable[str] = ENTITIES) -> None:
        self._scanner: Scanner = scanner_of(entities)

    def __call__(self, text: str) -> str:
        """The text with `[ENTITY]` for each, and `[SECRET]` for values whose name says it."""
        named = _NAMED.sub(lambda found: f'{found.group(1)}"[SECRET]"', text)
        return self._scanner.replaced(named, lambda entity, _value: f"[{entity}]")
