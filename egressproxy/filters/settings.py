"""What the configs of filters share: camelCase keys, unknown keys refused, names and values checked once."""

from __future__ import annotations

import difflib
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from egressproxy.model.authority import AuthorityError, parse_host
from egressproxy.model.fields import TOKEN, VALUE

__all__ = ["FieldName", "FieldValue", "FilterConfig", "Hostname", "SecretRef", "faults", "validated"]


class FilterConfig(BaseModel):
    """Base of a built-in's config."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


class SecretRef(FilterConfig):
    """One key of a Secret in the namespace of the object that declares the filter."""

    name: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]


def _field_name(text: str) -> str:
    if not TOKEN.fullmatch(text.encode()):
        raise ValueError(f"{text!r} is not a field name")
    return text


def _field_value(text: str) -> str:
    if not VALUE.fullmatch(text.encode()):
        raise ValueError("the value holds an octet that a field cannot carry, or blanks at an end")
    return text


def _hostname(text: str) -> str:
    try:
        return parse_host(text.encode())[0]
    except AuthorityError as error:
        raise ValueError(f"{text!r}: {error}") from None


def validated(model: type[BaseModel], text: str) -> BaseModel:
    """A config from JSON. Raises ValueError with every fault."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(faults(error, model)) from None


def faults(error: ValidationError, model: type[BaseModel]) -> str:
    """What a config has wrong, field by field, as in `config.limit: …`; a value stands in validators' words alone."""
    known = [str(info.alias or name) for name, info in model.model_fields.items()]
    said = []
    for detail in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, detail["loc"]))
        what = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            near = difflib.get_close_matches(where, known, 1, 0.6)
            listed = f" (known are {', '.join(known)})" if known and len(detail["loc"]) == 1 else ""
            what = f"unknown field (did you mean {near[0]}?)" if near else f"unknown field{listed}"
        elif detail["type"] == "missing":
            what = "missing: add it"
        said.append(f"config.{where}: {what}" if where else f"config: {what}")
    return "; ".join(said)


FieldName = Annotated[str, AfterValidator(_field_name)]
FieldValue = Annotated[str, AfterValidator(_field_value)]
Hostname = Annotated[str, AfterValidator(_hostname)]
