"""Schema errors for users: pydantic's errors as message and remedy.

A remedy names the nearest valid value. Values are shown only if the caller passes the written text, which it does not
for Secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from egressproxy.config.resources.kinds import BY_API_VERSION, LIKE_GROUP, LIKE_KIND
from egressproxy.config.resources.object_references import LocalObjectReference
from egressproxy.config.resources.values import RefusedValue
from egressproxy.config.served_kinds import is_experiment
from egressproxy.model.near_names import did_you_mean

#: The most characters of a value in messages.
_SHOWN = 60
#: User name and password of a URL (RFC 3986 section 3.2.1), which users may copy from HTTPS_PROXY.
_USERINFO = re.compile(r"(?<=//)[^/\s@]*@|[^/\s@:]{1,256}:[^/\s@]*@")
_LOOKED_AT = 1024
#: References to Secrets.
_OF_SECRETS = ("credentialsRef", "identityKeyRef", "secretRef")
_NO_LIST = ("{shown} stands where a list is expected", "write it as [value], or as lines that start with -")
#: Errors with a limit from pydantic: message and remedy.
_TEXTS = {
    "missing": ("{field} is missing", "add {field}"),
    "bool_type": ("{shown} is not a truth value", "write true or false, without quotes"),
    "tuple_type": _NO_LIST,
    "list_type": _NO_LIST,
    "greater_than_equal": ("{shown} is less than {ge}", "write {ge} or more"),
    "less_than_equal": ("{shown} is more than {le}", "write {le} or less"),
    "too_long": ("{actual_length} entries, at most {max_length} are possible", "split it"),
    "too_short": ("the list is empty", "write at least {min_length}"),
    "string_too_long": ("longer than {max_length} characters", "shorten it"),
    "string_too_short": ("the text is empty", "write a value, or remove the field"),
    "string_pattern_mismatch": ("{shown} does not have the form that is expected here", "it has to match {pattern}"),
}
#: The first match wins: a bool is an int, too.
_TYPE_NAMES = {"a truth value": bool, "a number": int | float, "a mapping": dict, "a list": list, "text": str}
_IN_EXTENSIONS = "credentials for a backend are extensions of that Backend: type egressproxy.io/CredentialInjector:v1"
_IN_BACKENDS = "write a Backend of group egressproxy.io, with protocolOptions.ai.apis, and an HTTPRoute"
#: The equivalents of other gateways' kinds (Envoy Gateway, Envoy AI Gateway, Istio).
_ELSEWHERE = {
    "BackendTrafficPolicy": "write its settings into spec.traffic of an EgressPolicy, where most have the same names",
    "ClientTrafficPolicy": "write an EgressPolicy for the Gateway: limits, traffic.timeouts",
    "BackendSecurityPolicy": _IN_EXTENSIONS,
    "AIGatewayRoute": _IN_BACKENDS,
    "AIServiceBackend": _IN_BACKENDS,
    "ServiceEntry": "write a Backend of type Fqdn, and a route to it or destinations.allow of an EgressPolicy",
    "DestinationRule": "write spec.traffic of an EgressPolicy, and tls into the port of the Backend",
}
#: The equivalents of fields of Envoy Gateway's BackendTrafficPolicy.
_OTHER_FIELDS = {
    "numRetries": "write attempts",
    "numAttemptsPerPriority": "write attempts",
    "httpStatusCodes": "write codes, beside retryOn",
    "perRetry": "write backoff and maxBackoff; timeouts.backendRequest is the time for an attempt",
}
#: The types of such an error, in a model and in a dataclass.
UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def unknown_kind(api_version: str, kind: str) -> tuple[str, str, str]:
    """The field at fault, message and remedy for an unknown apiVersion and kind."""
    group = api_version.rpartition("/")[0]
    versions = [version for version, known in BY_API_VERSION if known == kind]
    versions = [version for version in versions if version.rpartition("/")[0] == group] or versions
    if versions:
        return "apiVersion", f"{kind} is not known in {_cut(api_version)}", f"use {' or '.join(versions)}"
    kinds = sorted({known for _, known in BY_API_VERSION})
    remedy = _ELSEWHERE.get(kind) or did_you_mean(kind, kinds, f"known kinds are {', '.join(kinds)}", 0.5)
    return "kind", f"unknown kind {_cut(kind)}", remedy


#: Fields of a spec by which an object attaches to a gateway (GEP-713, GEP-1713).
_ATTACHES = frozenset({"targetRef", "targetRefs", "parentRef", "parentRefs"})


def foreign_kind(api_version: str, kind: str, spec: object) -> tuple[str, bool]:
    """The remedy for an object of a vendor's kind, and whether it attaches to a gateway."""
    if kind in _ELSEWHERE:
        return _ELSEWHERE[kind], True
    nothing, group = "this kind is unknown here, and its settings have no effect", api_version.rpartition("/")[0]
    if is_experiment(group):
        groups = {version: version.rpartition("/")[0] for version, known in BY_API_VERSION if known == kind}
        near = [version for version, known in groups.items() if did_you_mean(group, (known,), "", LIKE_GROUP)]
        if near:
            return f"use {' or '.join(near)}", True
        return did_you_mean(kind, sorted({known for _, known in BY_API_VERSION}), nothing, LIKE_KIND), True
    attaches = isinstance(spec, dict) and not spec.keys().isdisjoint(_ATTACHES)
    if attaches or "k8s.io/" in api_version or any(kind == known for _, known in BY_API_VERSION):
        return nothing, True
    return "objects of this kind do nothing here", False


def field_path(loc: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], bool]:
    """The field path of an error, and whether it is about a mapping's key."""
    if loc and loc[-1] == "[key]":
        return loc[:-1], True
    return loc, False


def path_text(path: Sequence[str | int]) -> str:
    """The path as text: `spec.rules[0].matches` or `data["ca.crt"]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif "." in step or "/" in step:
            text += f"[{json.dumps(step)}]"
        else:
            text += f".{step}" if text else step
    return text


def explain(
    details: ErrorDetails, kind: type[Any], path: tuple[str | int, ...], written: str | None, show: bool
) -> tuple[str, str]:
    """Message and remedy. `kind` is the model of the object (or filter config) in which `path` starts.

    `written` is the scalar in the file, None if it must not be shown.
    """
    error, context, value = details["type"], details.get("ctx", {}), details["input"]
    if show and isinstance(value, str) and field_path(details["loc"])[1]:
        written = value  # a key, which has no node
    shown = _cut(written) if written else '""' if value == "" and show else _type_name(value)
    field = str(path[-1]) if path else ""
    match error:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return _unknown_field(field, _model_at(kind, path[:-1]))
        case "value_error":
            refused = context.get("error")
            prefix = f"{shown}: " if isinstance(value, str | int | float) and show else ""
            if isinstance(refused, RefusedValue):
                return prefix + refused.message, refused.remedy
            return prefix + str(refused), ""
        case "string_type":
            if value is None:
                remedy = 'write a value ("" for an empty one), or remove the field'
                return "nothing is written where text is expected", remedy
            quoted = f'quote it: "{shown}"' if show and not isinstance(value, dict | list) else "quote the value"
            return f"{shown} is {_type_name(value)}, not text", quoted
        case "int_type" | "int_from_float" | "int_parsing":
            return f"{shown} is not a whole number", _number_remedy(value)
        case "float_type" | "float_parsing":
            return f"{shown} is not a number", _number_remedy(value)
        case "model_type" | "dataclass_type" | "dict_type" | "model_attributes_type" | "mapping_type":
            if field in _OF_SECRETS:
                shown = _type_name(value)  # a user may write a credential in place of a reference
            return f"{shown} stands where a mapping is expected", _mapping_remedy(kind, path)
        case "literal_error" | "enum":
            return _not_one_of(shown, value, kind, path, str(context.get("expected", "")))
    if error not in _TEXTS:
        return details["msg"], ""
    message, remedy = _TEXTS[error]
    if error == "too_short" and not _is_required(kind, path):
        remedy += ", or remove the field"
    values = {**context, "shown": shown, "field": field}
    return message.format_map(values), remedy.format_map(values)


def _unknown_field(name: str, model: type[Any] | None) -> tuple[str, str]:
    known = sorted(spelling for spelling, _ in _fields(model)) if model is not None else []
    listed = f"known fields here are {', '.join(known)}" if known else ""
    otherwise = f"the only field here is {known[0]}" if len(known) == 1 else listed
    below = [f"{field}.{name}" for field, inner in _models_below(model) if name in dict(_fields(inner))]
    if below:
        otherwise = f"did you mean {' or '.join(below)}?"
    if name == "namespace" and model is not None and issubclass(model, LocalObjectReference):
        return "unknown field namespace", "remove it: the object is in the namespace of the one that refers to it"
    return f"unknown field {_cut(name)}", _OTHER_FIELDS.get(name) or did_you_mean(name, known, otherwise)


def _models_below(model: type[Any] | None) -> Iterator[tuple[str, type[Any]]]:
    """The models that fields of a model hold, with the field's path below it: `name`, or `name[]` for a list."""
    for spelling, annotation in _fields(model) if model is not None else ():
        for each in _unwrap(annotation):
            if _is_model(each):
                yield spelling, each
            elif get_origin(each) in (tuple, list):
                items = (inner for item in get_args(each)[:1] for inner in _unwrap(item))
                yield from ((f"{spelling}[]", inner) for inner in items if _is_model(inner))


def _mapping_remedy(kind: type[Any], path: tuple[str | int, ...]) -> str:
    model = _model_at(kind, path)
    known = ", ".join(spelling for spelling, _ in _fields(model)) if model is not None else ""
    return f"write its fields as key: value; known are {known}" if known else "write its fields as key: value"


def _fields(model: type[Any]) -> Iterator[tuple[str, Any]]:
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            yield str(info.alias or name), info.annotation
    else:
        hints = get_type_hints(model)
        for field in fields(model):
            yield to_camel(field.name), hints[field.name]


def _is_required(kind: type[Any], path: tuple[str | int, ...]) -> bool:
    """Whether the field at this path is required in its model."""
    model = _model_at(kind, path[:-1])
    if model is None or not path or not issubclass(model, BaseModel):
        return False
    return any(info.is_required() for name, info in model.model_fields.items() if (info.alias or name) == path[-1])


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def _number_remedy(value: Any) -> str:
    if isinstance(value, bool):
        return "write a number"
    if isinstance(value, str) and re.fullmatch("[1-9][0-9]{0,18}|0", value):
        return "remove the quotes"
    if isinstance(value, str) and (":" in value or value.startswith("0")):
        return "write it in plain decimal digits; some YAML readers take this for a number in base 60 or 8"
    return "write it in decimal digits, without quotes and unit"


def _not_one_of(shown: str, value: Any, kind: type[Any], path: tuple[str | int, ...], expected: str) -> tuple[str, str]:
    choices = [choice for choice in _choices(kind, path) if isinstance(choice, str) and choice]
    if isinstance(value, bool | int | float) and choices:
        return f"{shown} is {_type_name(value)}, not text", f"quote it; possible are {', '.join(choices)}"
    possible = ", ".join(choices) if choices else expected.replace("'", "").replace(" or ", ", ")
    remedy = did_you_mean(value if isinstance(value, str) else "", choices, f"possible are {possible}")
    return f"{'this ' if shown == 'text' else ''}{shown} is not possible here", remedy


def _choices(kind: type[Any], path: tuple[str | int, ...]) -> list[Any]:
    found: list[Any] = []
    for annotation in _annotations_at(kind, path):
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            found += [member.value for member in annotation]
        elif not isinstance(annotation, type):
            found += get_args(annotation)
    return found


def _model_at(kind: type[Any], path: tuple[str | int, ...]) -> type[Any] | None:
    return next(filter(_is_model, _annotations_at(kind, path)), None)


def _annotations_at(kind: type[Any], path: tuple[str | int, ...]) -> list[Any]:
    """The types at this path, without Optional, Annotated, tuple and dict."""
    current: list[Any] = [kind]
    for step in path:
        below: list[Any] = []
        for annotation in current:
            if _is_model(annotation):
                below += [inner for spelling, inner in _fields(annotation) if spelling == step]
            else:
                below += get_args(annotation)
        current = [each for annotation in below for each in _unwrap(annotation)]
    return current


def _unwrap(annotation: Any) -> list[Any]:
    """The members of unions and the base of Annotated; a tuple or dict stays as it is."""
    if hasattr(annotation, "__metadata__"):
        return _unwrap(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [part for argument in get_args(annotation) for part in _unwrap(argument)]
    return [annotation]


def _type_name(value: Any) -> str:
    return next((name for name, kind in _TYPE_NAMES.items() if isinstance(value, kind)), "nothing")


def _cut(text: str) -> str:
    text = _USERINFO.sub("…@", text[:_LOOKED_AT])
    text = "".join(c if c.isprintable() else "?" for c in text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
