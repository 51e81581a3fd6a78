"""Validates configs of filters. Imports pydantic, so it is imported only where something is validated."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter, ValidationError

from egressproxy.ir.policy import FieldFault, spelling

#: A file of filters that changes brings models of its own each time.
MAX_ADAPTERS: Final = 8

_SCHEMAS: Final[dict[type[Any], dict[str, Any]]] = {}
_ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def validated(model: type[Any], text: str) -> Any:
    """Reads a config from JSON; returns an instance of the model or dataclass. Raises ValueError with every fault."""
    try:
        return _adapter(model).validate_json(text)
    except ValidationError as error:
        raise ValueError(faults(error, model)) from None


def schema(model: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a config, the same object each time. Made once: it takes milliseconds."""
    if model not in _SCHEMAS:
        _SCHEMAS[model] = _adapter(model).json_schema(by_alias=True)
    return _SCHEMAS[model]


def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    """The adapter of a model. The latest ones are kept: to make one takes milliseconds."""
    if model not in _ADAPTERS:
        if len(_ADAPTERS) >= MAX_ADAPTERS:
            _ADAPTERS.clear()
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


def faults(error: ValidationError, model: type[Any]) -> str:
    """Every fault, as `config.FIELD: …`, joined by "; ". Only our own validators repeat values of the config."""
    known = _known(model)
    messages = []
    for detail in error.errors(include_url=False, include_input=False):
        at_fault = detail.get("ctx", {}).get("error")
        where = ".".join(map(str, (*detail["loc"], *(at_fault.path if isinstance(at_fault, FieldFault) else ()))))
        what = detail["msg"].removeprefix("Value error, ")
        if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            near = difflib.get_close_matches(where, known, 1, 0.6)
            listed = f" (known are {', '.join(known)})" if known and len(detail["loc"]) == 1 else ""
            what = f"unknown field (did you mean {near[0]}?)" if near else f"unknown field{listed}"
        elif detail["type"] == "missing":
            what = "missing: add it"
        messages.append(f"config.{where}: {what}" if where else f"config: {what}")
    return "; ".join(messages)


def _known(model: type[Any]) -> list[str]:
    if issubclass(model, BaseModel):
        return [str(info.alias or name) for name, info in model.model_fields.items()]
    return [spelling(field.name) for field in fields(model)]
