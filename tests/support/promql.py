"""What expressions of PromQL name: metrics and labels. No parser: it knows how the files in deploy/ are written."""

from __future__ import annotations

import re
from typing import Final

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR: Final = re.compile(r"\b((?:egress|process|python|gen_ai)_\w+)\s*(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
#: What Prometheus adds itself, or Grafana puts in.
GIVEN: Final = frozenset({"job", "instance"})


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric that is named, with the labels that are matched."""
    bare = _STRING.sub('""', expression)
    return [(name, set(_MATCHER.findall(matchers or "")) - GIVEN) for name, matchers in _SELECTOR.findall(bare)]


def groupings(expression: str) -> set[str]:
    """The labels by which something is grouped or joined."""
    found = {each.strip() for words in _GROUPING.findall(_STRING.sub('""', expression)) for each in words.split(",")}
    return found - GIVEN - {""}
