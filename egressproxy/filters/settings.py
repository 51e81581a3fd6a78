"""The base of built-in filters' configs: camelCase keys, refusal of unknown keys, one check of names and values.

A config is a frozen dataclass with pydantic's annotations. The compiler checks it (`validation`); the serving process
gets the values without importing pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from egressproxy.ir.policy import FilterSettings, settings_in, spelling
from egressproxy.model.authority import AuthorityError, parse_host
from egressproxy.model.fields import TOKEN, VALUE

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


class FilterConfig(FilterSettings):
    """Base of a built-in filter's config, a frozen dataclass. A ValueError of its `__post_init__` is a fault of the
    config, a FieldFault is one of its field.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid", "alias_generator": spelling, "populate_by_name": True}


@dataclass(frozen=True, slots=True)
class Checked:
    """In an annotation: a function that returns the value to keep, or raises ValueError."""

    _check: Callable[[str], str]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._check, handler(source))


def matching(pattern: re.Pattern[bytes], message: str) -> Checked:
    """A check that the pattern matches the whole text; else it raises `message`, in which `{!r}` is the text."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text.encode()):
            raise ValueError(message.format(text))
        return text

    return Checked(check)


class Within:
    """In an annotation: bounds under pydantic's names for them (`ge`, `min_length`, `pattern` …)."""

    __slots__ = ("_bounds",)

    def __init__(self, **bounds: Any) -> None:
        self._bounds = bounds

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> CoreSchema:
        return {**handler(source), **self._bounds}


@dataclass(frozen=True, slots=True)
class SecretRef(FilterConfig):
    """A reference to one key of a Secret.

    `key` "": the Secret's only key, or the first of `token`, `apiKey`, `api-key`. `namespace` "": that of the object
    that declares the filter; another one needs a ReferenceGrant there. Source: Gateway API v1 SecretObjectReference.
    """

    name: Annotated[str, Within(min_length=1)]
    key: Annotated[str, Within(min_length=1)] = ""
    namespace: Annotated[str, Within(min_length=1)] = ""
    group: Literal[""] = ""
    kind: Literal["Secret"] = "Secret"
    is_document: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The key of the value in `FilterContext.secrets`: `name/key`, or `namespace/name/key`, as written."""
        return f"{self.namespace}/{self.name}/{self.key}" if self.namespace else f"{self.name}/{self.key}"


@dataclass(frozen=True, slots=True)
class CalledBackendRef(FilterConfig):
    """A reference to a backend that the filter calls: a Backend, or a Service with its port.

    `namespace` "": that of the object that declares the filter; another one needs a ReferenceGrant there. Source:
    Gateway API v1 BackendObjectReference.
    """

    name: Annotated[str, Within(min_length=1)]
    namespace: Annotated[str, Within(min_length=1)] = ""
    group: str = ""
    kind: Annotated[str, Within(min_length=1)] = "Service"
    port: Annotated[int, Within(ge=1, le=65535)] | None = None
    is_grpc: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.port is None and not self.group and self.kind == "Service":
            raise ValueError(
                "a reference to a Service has to name a port: add `port`; or, if a Backend is meant, write"
                " `group: egressproxy.io` and `kind: Backend`"
            )

    @property
    def label(self) -> str:
        """The key of the call in `FilterContext.calls`, as written: `Kind name`, with namespace and port."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {name}" + (f":{self.port}" if self.port is not None else "")


@dataclass(frozen=True, slots=True)
class DocumentRef(SecretRef):
    """A reference to a Secret whose value may have more than one line: a key in PEM, a file in JSON."""

    is_document: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CalledGrpcBackendRef(CalledBackendRef):
    """A reference to a backend that the filter calls over gRPC."""

    is_grpc: ClassVar[bool] = True


def secret_refs(config: object) -> tuple[SecretRef, ...]:
    """The Secrets that a config refers to."""
    return tuple(value for _, value in settings_in(config) if isinstance(value, SecretRef))


def backend_refs(config: object) -> tuple[tuple[str, CalledBackendRef], ...]:
    """The backends that a config refers to, each with its path in a manifest."""
    return tuple((path, value) for path, value in settings_in(config) if isinstance(value, CalledBackendRef))


def _hostname(text: str) -> str:
    try:
        return parse_host(text.encode())[0]
    except AuthorityError as error:
        raise ValueError(f"{text!r}: {error}") from None


def _hostname_pattern(text: str) -> str:
    wildcard = "*." if text.startswith("*.") else ""
    try:
        name, address = parse_host(text.removeprefix(wildcard).encode())
    except AuthorityError as error:
        raise ValueError(f"{text!r}: {error}; write api.example.com or *.example.com") from None
    if wildcard and address is not None:
        raise ValueError(f"{text!r}: addresses have no wildcard")
    return wildcard + name


def _call_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text or "#" in text:
        raise ValueError(f"{text!r} is not a path: write it as /check")
    return text


def seconds(text: str) -> float:
    """The seconds of a checked duration; 0.0 for ""."""
    return sum(int(number) * _SECONDS[unit] for number, unit in _PART.findall(text))


def duration_of_at_most(longest_s: float, words: str) -> Checked:
    """A check of durations; `words` is the longest one for people."""

    def check(text: str) -> str:
        if not _DURATION.fullmatch(text):
            raise ValueError(f"{text!r} is not a duration: write it as 500ms, 5s, 1m or 1h30m")
        if seconds(text) > longest_s:
            raise ValueError(f"{text!r} is more than {words}")
        return text

    return Checked(check)


#: GEP-2257, as every duration of a manifest.
_DURATION = re.compile(r"(?:[0-9]{1,5}(?:h|ms|m|s)){1,4}")
_PART = re.compile(r"([0-9]+)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

_VALUE_FAULT = "the value contains a byte that a field value cannot have, or begins or ends with blanks"

FieldName = Annotated[str, matching(TOKEN, "{!r} is not a field name")]
FieldValue = Annotated[str, matching(VALUE, _VALUE_FAULT)]
Hostname = Annotated[str, Checked(_hostname)]
#: A hostname, or `*.` and the end of one.
HostnamePattern = Annotated[str, Checked(_hostname_pattern)]
#: The path and query of a call that the filter makes.
CallPath = Annotated[str, Checked(_call_path), Within(max_length=2048)]
HostnameOrNone = Annotated[str, Checked(lambda text: _hostname(text) if text else "")]
