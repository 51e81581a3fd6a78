"""The rules of a ToolPolicy: which tools, resources and prompts may be used, and with which arguments. Pure.

A call is allowed if no entry of `deny` holds, and one of `allow` does, where there is an `allow`. What is denied is
denied in every case of letters; what is allowed is written as the server writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from egressproxy.ai.content.own_patterns import Expression, compiled
from egressproxy.filters.settings import FilterConfig, Within, matching

#: Longer names are no names: they are denied.
MAX_NAME: Final = 1024
#: Values of one argument that are looked at, and characters of each.
MAX_VALUES: Final = 1000
MAX_TEXT: Final = 64 * 1024

_PATH: Final = re.compile(rb"[^.\[\]]+(?:\[(?:[0-9]{1,6}|\*)\])*(?:\.[^.\[\]]+(?:\[(?:[0-9]{1,6}|\*)\])*)*")
#: Every element of an array.
_EVERY: Final = object()
#: What some servers take for a value: its name is spelled in another case.
_UNSURE: Final = object()
_STEP: Final = re.compile(r"([^.\[\]]+)|\[([0-9]+|\*)\]")

Glob = Annotated[str, Within(min_length=1, max_length=256)]
ArgumentPath = Annotated[str, matching(_PATH, "{!r} is no path: write names joined by dots, as order.items[*].price")]
#: A value of JSON that is no object or array.
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Condition(FilterConfig):
    """What an argument has to be. All set fields must match.

    Attributes:
        path: where it is in the arguments: names joined by dots, `[2]` and `[*]` for elements of arrays.
        matches: an expression of RE2 that the whole text matches.
        one_of: values, one of which it is.
        min: the least number.
        max: the largest number.
        max_length: the most characters of a text, or elements of an array.
    """

    path: ArgumentPath
    matches: Annotated[Expression, Within(max_length=1024)] | None = None
    one_of: tuple[Scalar, ...] | None = None
    min: float | None = None
    max: float | None = None
    max_length: Annotated[int, Within(ge=0)] | None = None

    def __post_init__(self) -> None:
        if all(each is None for each in (self.matches, self.one_of, self.min, self.max, self.max_length)):
            raise ValueError(f"{self.path}: say what it has to be: matches, oneOf, min, max or maxLength")


@dataclass(frozen=True, slots=True)
class ToolEntry(FilterConfig):
    """Tools by name (`*` stands for any characters, `?` for one), and what their arguments have to be."""

    names: Annotated[tuple[Glob, ...], Within(min_length=1)]
    arguments: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Tools(FilterConfig):
    """`allow` None: every tool that `deny` does not have."""

    allow: tuple[ToolEntry, ...] | None = None
    deny: tuple[ToolEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class NameEntry(FilterConfig):
    """URIs of resources, or names of prompts."""

    names: Annotated[tuple[Glob, ...], Within(min_length=1)]


@dataclass(frozen=True, slots=True)
class Names(FilterConfig):
    """`allow` None: everything that `deny` does not have."""

    allow: tuple[NameEntry, ...] | None = None
    deny: tuple[NameEntry, ...] = field(default=())


class _NamedRule:
    """An entry, compiled."""

    __slots__ = ("_conditions", "_names", "has_conditions")

    def __init__(self, names: Sequence[str], conditions: Sequence[Condition], *, ignores_case: bool) -> None:
        self._names = _glob(names, ignores_case=ignores_case)
        self._conditions = [_Check(condition) for condition in conditions]
        self.has_conditions = bool(conditions)

    def names(self, name: str) -> bool:
        return len(name) <= MAX_NAME and self._names.fullmatch(name) is not None

    def surely_holds(self, arguments: Any) -> bool:
        """Of `allow`: every value that a condition is about is there, and is as it has to be."""
        return all(check.holds_for_all(arguments) for check in self._conditions)

    def may_hold(self, arguments: Any) -> bool:
        """Of `deny`: each condition holds for a value, or what the arguments are cannot be told."""
        return type(arguments) is not dict or all(check.holds_for_any(arguments) for check in self._conditions)


class ToolRules:
    __slots__ = ("_allow", "_deny")

    def __init__(self, tools: Tools) -> None:
        self._deny = [_NamedRule(entry.names, entry.arguments, ignores_case=True) for entry in tools.deny]
        self._allow = None
        if tools.allow is not None:
            self._allow = [_NamedRule(entry.names, entry.arguments, ignores_case=False) for entry in tools.allow]

    def may_be_offered(self, name: str) -> bool:
        """Whether any call of this tool may be allowed."""
        if len(name) > MAX_NAME or any(not entry.has_conditions and entry.names(name) for entry in self._deny):
            return False
        return self._allow is None or any(entry.names(name) for entry in self._allow)

    def asks_arguments(self, name: str) -> bool:
        """Whether the arguments decide on a call of this tool."""
        if any(entry.has_conditions and entry.names(name) for entry in self._deny):
            return True
        allowing = [entry for entry in self._allow or () if entry.names(name)]
        return bool(allowing) and all(entry.has_conditions for entry in allowing)

    def allows(self, name: str, arguments: Any) -> bool:
        """Whether this call is allowed. Arguments that are no object are the worst that they could be."""
        if len(name) > MAX_NAME or any(entry.names(name) and entry.may_hold(arguments) for entry in self._deny):
            return False
        if self._allow is None:
            return True
        return any(entry.names(name) and entry.surely_holds(arguments) for entry in self._allow)


class NameRules:
    """The rules of resources, or of prompts. None: everything."""

    __slots__ = ("_allow", "_deny")

    def __init__(self, names: Names | None) -> None:
        deny = [name for entry in names.deny for name in entry.names] if names is not None else []
        self._deny = _glob(deny, ignores_case=True) if deny else None
        self._allow: re.Pattern[str] | None = None
        if names is not None and names.allow is not None:
            self._allow = _glob([name for entry in names.allow for name in entry.names], ignores_case=False)

    def allows(self, name: object) -> bool:
        """Whether this may be read, or asked for, and is shown. What is no name is not."""
        if self._deny is None and self._allow is None:
            return True
        if type(name) is not str or len(name) > MAX_NAME:
            return False
        if self._deny is not None and self._deny.fullmatch(name) is not None:
            return False
        return self._allow is None or self._allow.fullmatch(name) is not None


class _Check:
    """A condition, compiled."""

    __slots__ = ("_expression", "_max", "_max_length", "_min", "_one_of", "_steps")

    def __init__(self, condition: Condition) -> None:
        self._steps = [
            name or (_EVERY if index == "*" else int(index)) for name, index in _STEP.findall(condition.path)
        ]
        self._expression = compiled(condition.matches) if condition.matches is not None else None
        self._one_of = condition.one_of
        self._min, self._max, self._max_length = condition.min, condition.max, condition.max_length

    def holds_for_all(self, arguments: Any) -> bool:
        found = list(self._values(arguments))
        return 0 < len(found) <= MAX_VALUES and all(self._holds(value) for value in found)

    def holds_for_any(self, arguments: Any) -> bool:
        found = list(self._values(arguments))
        return len(found) > MAX_VALUES or any(self._holds(value, is_doubtful=True) for value in found)

    def _values(self, value: Any, at: int = 0) -> Iterator[Any]:
        if at == len(self._steps):
            yield value
            return
        step = self._steps[at]
        if step is _EVERY:
            for each in value[: MAX_VALUES + 1] if type(value) is list else ():
                yield from self._values(each, at + 1)
        elif type(step) is int:
            if type(value) is list and step < len(value):
                yield from self._values(value[step], at + 1)
        elif type(value) is dict and isinstance(step, str):
            folded = step.casefold()
            for key, each in value.items():
                if key == step:
                    yield from self._values(each, at + 1)
                elif key.casefold() == folded:
                    yield _UNSURE

    def _holds(self, value: Any, *, is_doubtful: bool = False) -> bool:
        if value is _UNSURE:
            return is_doubtful
        if self._one_of is not None and not any(_is_same(value, each) for each in self._one_of):
            return is_doubtful and any(str(value) == str(each) for each in self._one_of)
        if self._min is not None or self._max is not None:
            if not _is_number(value):
                return is_doubtful  # a text that a server reads as a number
            if (self._min is not None and value < self._min) or (self._max is not None and value > self._max):
                return False
        if self._max_length is not None and (type(value) not in (str, list) or len(value) > self._max_length):
            return False
        if self._expression is not None:
            if type(value) is not str or len(value) > MAX_TEXT:
                return is_doubtful
            return self._expression.fullmatch(value) is not None
        return True


def _is_same(value: Any, other: Scalar) -> bool:
    """As JSON has it: 1 and 1.0 are one number, and `true` is none."""
    return value == other and (type(value) is type(other) or (_is_number(value) and _is_number(other)))


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _glob(names: Sequence[str], *, ignores_case: bool) -> re.Pattern[str]:
    escaped = (re.escape(name).replace(r"\*", ".*").replace(r"\?", ".") for name in names)
    return re.compile("|".join(escaped), re.DOTALL | (re.IGNORECASE if ignores_case else 0))
