"""What fields mean, in their own words: the docstrings that stand below them in the models.

They are read from the source, since Python keeps no docstrings of attributes, and only when a schema is made, so that
reading manifests does not pay for them (pydantic's `use_attribute_docstrings` would parse the source at import).
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from egressproxy.config.resources.meta import Model


def models_by_name() -> dict[str, type[Model]]:
    """Every model that is loaded, by the name of its class, which is also its name in a JSON Schema."""
    found: dict[str, type[Model]] = {}
    left = [Model]
    while left:
        for model in left.pop().__subclasses__():
            found.setdefault(model.__name__, model)
            left.append(model)
    return found


def field_descriptions(model: type[Model]) -> dict[str, str]:
    """The description of each field that has one, by the field's name in a manifest; its own goes before a base's."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        for attribute, text in _of_module(each.__module__).get(each.__qualname__, {}).items():
            info = model.model_fields.get(attribute)
            if info is not None:
                found[info.alias or attribute] = text
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Class -> attribute -> docstring, of a module; empty where its source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for pair in pairwise(node.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
