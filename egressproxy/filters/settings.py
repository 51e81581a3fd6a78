"""What the configs of built-in filters share: camelCase keys, unknown keys refused, names and values checked once."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from egressproxy.model.authority import AuthorityError, parse_host
from egressproxy.model.fields import TOKEN, VALUE

__all__ = ["FieldName", "FieldValue", "FilterConfig", "Hostname", "SecretRef"]


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


FieldName = Annotated[str, AfterValidator(_field_name)]
FieldValue = Annotated[str, AfterValidator(_field_value)]
Hostname = Annotated[str, AfterValidator(_hostname)]
