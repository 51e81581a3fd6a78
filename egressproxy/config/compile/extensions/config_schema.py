"""Checks the configs of extensions, and reports faults by field.

Pydantic reads configs of built-in and packaged types (`settings_adapter`). The JSON Schema of a FilterType checks
configs of its type (`ConfigSchemaChecker`). The cost of applying a schema is bounded: patterns are RE2, which never
backtracks, keywords are counted, and only references within the schema are followed. Errors never show a config's
values, since a user may write a credential in place of a reference.
Source: JSON Schema 2020-12 (the default), and the drafts that `$schema` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError

from egressproxy.config.compile.interface import FilterTypeInfo, problem_at
from egressproxy.config.explanations import UNKNOWN_FIELD, explain, field_path, path_text
from egressproxy.config.reading.problems import Problem
from egressproxy.config.reading.yaml import levels_of
from egressproxy.config.resources.meta import Resource
from egressproxy.ir.policy import FieldFault
from egressproxy.model.near_names import did_you_mean

#: The most keyword applications in one check. A config of a thousand values with a usual schema takes ten thousand.
MAX_STEPS: Final = 100_000
#: The most characters of a schema as JSON.
MAX_SCHEMA: Final = 262_144
#: The most levels of objects and lists in a schema. YAML has its own bound, JSON in a ConfigMap has none.
MAX_LEVELS: Final = 100
#: The most reported faults of one config.
MAX_FAULTS: Final = 20
#: Source: JSON Schema Validation 2020-12 section 6: keywords with one limit, in words.
_LIMITS: Final = {
    "minimum": "less than {limit}",
    "maximum": "more than {limit}",
    "exclusiveMinimum": "not more than {limit}",
    "exclusiveMaximum": "not less than {limit}",
    "multipleOf": "no multiple of {limit}",
    "minLength": "shorter than {limit} characters",
    "maxLength": "longer than {limit} characters",
    "minItems": "fewer than {limit} entries",
    "maxItems": "more than {limit} entries",
    "minProperties": "fewer than {limit} fields",
    "maxProperties": "more than {limit} fields",
    "pattern": "not of the form {limit}",
}
#: The remaining applications in the current check: a process checks one config at a time.
_steps = [0]
#: The adapters of catalogue types, which are few.
ADAPTERS: Final[dict[type[Any], TypeAdapter[Any]]] = {}


class SchemaError(ValueError):
    """An invalid schema, or one that exceeds the bounds."""


class ConfigFault(NamedTuple):
    """A fault of a config: the path to the value, message, remedy, and whether the key is at fault."""

    loc: tuple[str | int, ...]
    message: str
    remedy: str
    on_key: bool = False


class ConfigSchemaChecker:
    """One compiled schema. Raises SchemaError for an invalid schema."""

    __slots__ = ("_validator", "schema")

    def __init__(self, schema: Any) -> None:
        import jsonschema
        from referencing import Registry

        if not isinstance(schema, dict):
            raise SchemaError("a schema of a config is an object")
        if any(depth > MAX_LEVELS for depth, _ in enumerate(levels_of(schema), 1)):
            raise SchemaError(f"the schema is nested deeper than {MAX_LEVELS} levels")
        if len(json.dumps(schema, default=str)) > MAX_SCHEMA:
            raise SchemaError(f"the schema is longer than {MAX_SCHEMA} characters")
        # Draft 3, which no schema uses, serves as marker for an unknown draft.
        draft = jsonschema.validators.validator_for(schema, default=jsonschema.Draft3Validator)
        if "$schema" not in schema:
            draft = jsonschema.Draft202012Validator
        if draft is jsonschema.Draft3Validator:
            raise SchemaError("$schema names a draft that is not known; leave it out for 2020-12")
        try:
            draft.check_schema(schema, format_checker=jsonschema.FormatChecker(()))  # type: ignore[call-arg]
        except jsonschema.SchemaError as error:
            # For a wrong name of `type`, one of the alternatives lists the valid names.
            nearest = next((each for each in error.context or () if each.validator == "enum"), error)
            raise SchemaError(f"{'.'.join(map(str, error.absolute_path)) or 'the schema'}: {nearest.message}") from None
        except RecursionError:
            raise SchemaError("the schema is nested too deeply") from None
        for pattern in _patterns(schema):
            _expression(pattern)
        if {"unevaluatedProperties", "patternProperties"} <= {keyword for each in _objects(schema) for keyword in each}:
            raise SchemaError("unevaluatedProperties and patternProperties in one schema are not supported")
        self.schema: dict[str, Any] = schema
        self._validator = _bounded(draft)(schema, registry=Registry())

    def faults(self, config: Mapping[str, Any]) -> list[ConfigFault]:
        """The faults of this config, at most MAX_FAULTS. Raises SchemaError if the schema cannot be applied."""
        _steps[0] = MAX_STEPS
        found: dict[ConfigFault, None] = {}
        try:
            for error in self._validator.iter_errors(config):
                found.update(dict.fromkeys(_faults(error)))
                if len(found) >= MAX_FAULTS:
                    break
        except RecursionError:
            raise SchemaError("the schema refers to itself without end, or is nested too deeply") from None
        except SchemaError:
            raise
        except Exception as error:  # for one, an unresolvable reference, in several classes of the library
            raise SchemaError(f"the schema cannot be applied: {type(error).__name__}: {error}") from None
        return list(found)


def config_problems(
    owner: Resource, found: FilterTypeInfo, error: ValidationError, path: str, field: str
) -> Iterator[Problem]:
    """The problems of a config in this field at `path` of `owner`, by the type's schema."""
    for detail in error.errors(include_url=False, include_input=True):
        if detail["type"] == "too_short" and detail["input"]:
            continue  # the entries have problems of their own
        loc, on_key = field_path(detail["loc"])
        at_fault = detail.get("ctx", {}).get("error")
        if isinstance(at_fault, FieldFault):
            loc = (*loc, *at_fault.path)
        # Never show text: a user may write a credential in place of a reference.
        value = detail["input"]
        written = json.dumps(value) if isinstance(value, bool | int | float) else None
        message, remedy = explain(detail, found.config_model, loc, written, show=written is not None)
        on_key = on_key or detail["type"] in UNKNOWN_FIELD
        remedy = remedy or f"`egressproxy filters` shows the fields of {found.name}"
        yield problem_at(owner, f"{path}.{path_text((field, *loc))}", message, remedy, on_key=on_key)


def first_error(error: ValidationError) -> str:
    """The first fault in one line: field and reason. Of values only numbers are shown."""
    detail = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] in ("greater_than_equal", "less_than_equal"):
        message = "{} ({})".format(*explain(detail, object, (), str(detail["input"]), False))
    return f"{where}: {message}" if where else message


def settings_adapter(model: type[Any]) -> TypeAdapter[Any]:
    """The adapter that checks configs of a type, created at the first config."""
    if model not in ADAPTERS:
        ADAPTERS[model] = TypeAdapter(model)
    return ADAPTERS[model]


@lru_cache
def _bounded(draft: Any) -> Any:
    """The draft with every keyword counted, and patterns by RE2."""
    from jsonschema import validators

    keywords = {
        **draft.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    }
    return validators.extend(  # type: ignore[no-untyped-call]
        draft, {name: _counted(apply) for name, apply in keywords.items()}
    )


def _counted(apply: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        # `uniqueItems` and `enum` compare entries with each other: their number counts.
        _steps[0] -= 1
        if apply.__name__ == "uniqueItems" and isinstance(instance, list):
            _steps[0] -= len(instance) ** 2 // 64
        elif apply.__name__ == "enum" and isinstance(value, list):
            _steps[0] -= len(value) // 64
        if _steps[0] < 0:
            raise SchemaError(f"the schema takes more than {MAX_STEPS} steps for this config")
        yield from apply(validator, value, instance, schema) or ()

    return counted


@lru_cache(maxsize=256)
def _expression(pattern: str) -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        message = error.args[0] if error.args else ""
        message = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
        raise SchemaError(f"pattern {pattern!r}: {message} (RE2's syntax: github.com/google/re2/wiki/Syntax)") from None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _expression(pattern).search(instance):
        yield ValidationError("")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, subschema in patterns.items():
            for name, value in instance.items():
                if _expression(pattern).search(name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_expression(pattern).search(name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError("", path=(name,))
        elif isinstance(allowed, dict):
            yield from validator.descend(value, allowed, path=name)


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    return (each for level in levels_of(schema) for each in level if isinstance(each, dict))


def _patterns(schema: Any) -> Iterator[str]:
    for each in _objects(schema):
        if isinstance(each.get("pattern"), str):
            yield each["pattern"]
        named = each.get("patternProperties")
        yield from named if isinstance(named, dict) else ()


def _faults(error: Any) -> Iterator[ConfigFault]:
    """An error of the library in our words: the schema may be shown, the value may not."""
    loc, keyword, limit = tuple(error.absolute_path), error.validator, error.validator_value
    match keyword:
        case "required":
            for name in limit:
                if name not in error.instance:
                    yield ConfigFault((*loc, name), f"{name} is missing", f"add {name}")
        case "additionalProperties" | "unevaluatedProperties":
            known = list(error.schema.get("properties", {}))
            name = str(loc[-1]) if loc else ""
            yield ConfigFault(loc, "unknown field", did_you_mean(name, known, f"known are {', '.join(known)}"), True)
        case "type":
            kinds = " or ".join(limit) if isinstance(limit, list) else limit
            yield ConfigFault(loc, f"not of type {kinds}", f"write a value of type {kinds}")
        case "enum" | "const":
            listed = ", ".join(json.dumps(each) for each in (limit if keyword == "enum" else [limit]))
            yield ConfigFault(loc, "not one of the possible values", f"possible are: {listed}")
        case _ if keyword in _LIMITS:
            yield ConfigFault(loc, _LIMITS[keyword].format(limit=limit), "")
        case "anyOf" | "oneOf":
            number = "none" if keyword == "anyOf" else "none or several"
            yield ConfigFault(loc, f"fits {number} of the {len(limit)} possible forms", "")
        case _:
            yield ConfigFault(loc, f"does not fit {keyword or 'the schema'}", "")
