"""What checks the configs of built-in types and of packages: pydantic's adapters, made once for each type."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

#: For the types of catalogues, which are part of the program: there are few.
ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


def settings_adapter(model: type[Any]) -> TypeAdapter[Any]:
    """What checks the configs of a type: made once, at the first config."""
    if model not in ADAPTERS:
        ADAPTERS[model] = TypeAdapter(model)
    return ADAPTERS[model]
