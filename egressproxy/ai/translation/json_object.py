"""JsonObject: an object of the client's JSON that is read field by field, and refused if unread fields remain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn, TypeVar

from egressproxy.ai.translation.errors import Untranslatable
from egressproxy.ai.translation.tuning import Losses

T = TypeVar("T")

#: The first is Anthropic's; gateways accept it anywhere in requests of OpenAI's APIs.
_CACHE_HINTS: Final = ("cache_control", "prompt_cache_breakpoint")


class JsonObject:
    """Reads the known fields; `end` refuses the others. A null field is absent, in all three APIs. Every method raises
    `Untranslatable` with the path of the field. `losses` records dropped fields of the whole request.
    """

    __slots__ = ("_left", "losses", "path")

    def __init__(self, value: Any, losses: Losses, path: str = "") -> None:
        if type(value) is not dict:
            raise Untranslatable(path, "must be an object" if path else "the body must be a JSON object")
        self._left = dict(value)
        self.losses = losses
        self.path = path

    def where(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def refuse(self, name: str, why: str) -> NoReturn:
        """Raises Untranslatable for this field."""
        raise Untranslatable(self.where(name), why)

    def drop_or_refuse(self, name: str, why: str) -> None:
        """Drop this field if it only tunes and drops are allowed. Raises Untranslatable otherwise."""
        if not self.losses.drop(self.where(name)):
            self.refuse(name, why)

    def any(self, name: str) -> Any:
        """The value of this field of any type; None if absent."""
        return self._left.pop(name, None)

    def peek(self, name: str) -> Any:
        """The value of this field, which stays unread."""
        return self._left.get(name)

    def _of_type(self, name: str, type_: type[T], what: str) -> T | None:
        value = self._left.pop(name, None)
        if value is not None and type(value) is not type_:
            self.refuse(name, f"must be {what}")
        return value

    def text(self, name: str) -> str | None:
        """A string; None if the field is not there."""
        return self._of_type(name, str, "a string")

    def needed(self, name: str, value: T | None) -> T:
        """The value that was read of this field, which has to be there."""
        if value is None:
            self.refuse(name, "is missing")
        return value

    def needed_text(self, name: str) -> str:
        return self.needed(name, self.text(name))

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        """One of these words. Unknown words are refused, since their meaning is unknown."""
        value = self.text(name)
        if value is not None and value not in words:
            self.refuse(name, f"cannot be translated: {value[:80]!r} is none of {', '.join(words)}")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false."""
        return self._of_type(name, bool, "true or false")

    def limit(self, name: str) -> int | None:
        """A whole number of at least 1. Some clients write -1 for none, which may be left out."""
        if self._left.get(name) == -1 and self.losses.drop(self.where(name)):
            self._left.pop(name)
        return self.whole_number(name, 1)

    def whole_number(self, name: str, least: int = 0) -> int | None:
        """A whole number of at least `least`."""
        value = self._left.pop(name, None)
        if value is not None and (type(value) is not int or value < least):
            self.refuse(name, f"must be a whole number of at least {least}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """A number in a range, its ends included."""
        value = self._left.pop(name, None)
        if value is not None and (type(value) not in (int, float) or not least <= value <= most):
            self.refuse(name, f"must be a number from {least} to {most}")
        return value  # type: ignore[no-any-return]

    def array(self, name: str) -> list[Any]:
        """An array; an empty one if the field is not there."""
        return self._of_type(name, list, "an array") or []

    def each(self, name: str) -> Iterator[JsonObject]:
        """The elements of an array, each to be read field by field."""
        return self.elements(self.array(name), name)

    def elements(self, values: list[Any], name: str) -> Iterator[JsonObject]:
        """These elements of the array that this field holds."""
        path = self.where(name)
        for index, value in enumerate(values):
            yield JsonObject(value, self.losses, f"{path}[{index}]")

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings; an empty one if the field is not there."""
        values = self.array(name)
        for index, value in enumerate(values):
            if type(value) is not str:
                self.refuse(f"{name}[{index}]", "must be a string")
        return tuple(values)

    def plain_object(self, name: str) -> dict[str, Any] | None:
        """An object that is passed on as it is: a JSON schema, for instance."""
        return self._of_type(name, dict, "an object")

    def object(self, name: str) -> JsonObject | None:
        """An object to be read field by field."""
        value = self._left.pop(name, None)
        return None if value is None else JsonObject(value, self.losses, self.where(name))

    def without_meaning(self, *names: str) -> None:
        """Fields that are left out, since their loss changes nothing of what is asked for (docs/translation.md)."""
        for name in names:
            self._left.pop(name, None)

    def only(
        self, name: str, *harmless: Any, why: str = "cannot be translated: the other API has nothing like it"
    ) -> None:
        """Drop a field with a `harmless` value. Another value is refused, or reported as a loss if the field only tunes
        the answer.
        """
        value = self._left.pop(name, None)
        if value is not None and not any(type(value) is type(one) and value == one for one in harmless):
            self.drop_or_refuse(name, why)

    @property
    def has_more(self) -> bool:
        """Whether an unread field remains."""
        return any(value is not None for value in self._left.values())

    def end(self) -> None:
        """Raises Untranslatable for a remaining unread field, unless it only tunes or is a cache hint, which changes
        only the price.
        """
        for name, value in self._left.items():
            if value is not None and name not in _CACHE_HINTS:
                self.drop_or_refuse(name[:80], "cannot be translated: it is not a field that the gateway knows")
