"""Trees of Python files, each parsed and walked once for all tests of this process that look into them."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from typing import Any


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def every(tree: ast.Module, *kinds: type[ast.AST]) -> list[Any]:
    """The nodes of these types in a whole file, outer ones first."""
    found = _by_type(tree)
    return [node for kind in kinds for node in found.get(kind, ())]


@cache
def _by_type(tree: ast.Module) -> dict[type, list[ast.AST]]:
    found: dict[type, list[ast.AST]] = defaultdict(list)
    left: list[ast.AST] = [tree]
    for node in left:  # which grows
        found[type(node)].append(node)
        for field in node._fields:
            value = None if field == "ctx" else getattr(node, field, None)
            if isinstance(value, list):
                left += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                left.append(value)
    return found
