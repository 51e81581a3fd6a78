"""Checks the configs of built-in types and of packages, and tells what is wrong with them at their fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from egressproxy.config.compile.interface import FilterTypeInfo, problem_at
from egressproxy.config.explanations import UNKNOWN_FIELD, explain, field_path, path_text
from egressproxy.config.reading.problems import Problem
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.policy import FieldFault

#: For the types of catalogues, which are part of the program: there are few.
ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def config_problems(
    owner: Resource, found: FilterTypeInfo, error: ValidationError, path: str, field: str
) -> Iterator[Problem]:
    """The problems of a config that `owner` has at `path` in this field, and that does not fit the type's schema."""
    for detail in error.errors(include_url=False, include_input=True):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # there are entries, and what is wrong with them is said of each
        loc, on_key = field_path(detail["loc"])
        at_fault = detail.get("ctx", {}).get("error")
        if isinstance(at_fault, FieldFault):
            loc = (*loc, *at_fault.path)
        # Text is not shown: a credential may be written where its reference belongs.
        value = detail["input"]
        written = json.dumps(value) if isinstance(value, bool | int | float) else None
        message, remedy = explain(detail, found.config_model, loc, written, show=written is not None)
        on_key = on_key or detail["type"] in UNKNOWN_FIELD
        remedy = remedy or f"`egressproxy filters` shows the fields of {found.name}"
        yield problem_at(owner, f"{path}.{path_text((field, *loc))}", message, remedy, on_key=on_key)


def first_error(error: ValidationError) -> str:
    """The first of what is wrong, in one line: its field, and why."""
    detail = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def settings_adapter(model: type[Any]) -> TypeAdapter[Any]:
    """What checks the configs of a type: made once, at the first config."""
    if model not in ADAPTERS:
        ADAPTERS[model] = TypeAdapter(model)
    return ADAPTERS[model]
