"""JsonMessage: a body of JSON that is looked at and changed. What is not changed stays as it came, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from egressproxy.ai.apis.long_json import decoding, encoding, reading
from egressproxy.ai.apis.member_names import CALL, CALL_KEYS, spelling_fault
from egressproxy.ai.apis.splice import Path, splicing, splicing_text
from egressproxy.ai.apis.texts import Found, TextKind, TextRole, found_texts, inner_json, where
from egressproxy.model.strict_json import Unreadable, dumps, has_too_many_parts, loads_strictly
from egressproxy.model.work import Work, at_once

#: Objects and arrays of a body that is read, and its commas: a tenth of a second.
MAX_PARTS: Final = 50_000
MAX_COMMAS: Final = 200_000
#: Bytes of a body that is read in one go: it cannot have so many, since each of them is one byte at least.
READ_AT_ONCE: Final = MAX_PARTS
#: Bytes of a body that is scanned in one go, text by text: ten milliseconds at the very worst.
SCANNED_AT_ONCE: Final = 8 * 1024

#: Texts that are searched for in the whole body, each of them. Of more of them the body is read once.
_AT_A_GLANCE: Final = 8

#: Elements of an array that may all be without a call.
_PASSED_ELEMENTS: Final = 64
#: Members without calls: definitions of tools; in calls what these are made with.
_PASSED: Final = frozenset(("tools", "functions", "toolConfig"))
_PASSED_IN_CALLS: Final = _PASSED | {"arguments", "input", "args"}
_CALL_TYPES: Final = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
_ANY_CALL_TYPE: Final = _CALL_TYPES | {"custom_tool_call"}
_ITEM_TYPES: Final = ("function_call", "custom_tool_call")
_FOLDED: Final = str.casefold
_CALL_KEYS: Final = frozenset(("functionCall", "function_call", "toolUse"))


class CalledTool(NamedTuple):
    """A call of a tool, of a model or a client of MCP. `arguments` is parsed; a string where they are no JSON. `path`
    leads to the object that has the name. `fault`: what is wrong with a call that only readers without regard to case
    see, or see as another; "" for nothing.
    """

    name: str
    id: str
    arguments: Any
    path: Path
    fault: str = ""


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text of a message. `where` is its place, for people; what a `is_signed` one says cannot be replaced."""

    message: JsonMessage
    found: Found

    @property
    def text(self) -> str:
        return self.found.text

    @property
    def role(self) -> TextRole:
        return self.found.role

    @property
    def kind(self) -> TextKind:
        return self.found.kind

    @property
    def is_signed(self) -> bool:
        """Whether the provider has signed the text, which must not be changed then."""
        return self.found.is_signed

    @property
    def where(self) -> str:
        """`messages[2].content[0].text`; for arguments that are a string of JSON, of that string."""
        return where(self.found.path)

    def replace(self, text: str) -> None:
        """Have the message say this instead. Raises ValueError for a text that is signed."""
        if self.found.is_signed:
            raise ValueError(f"{self.where} is signed by the provider: it goes as it is, or not at all")
        self.message.replace_text(self.found, text)


class JsonMessage:
    """`value` is what the body says; it must not be changed but through the methods here. `source` is the body."""

    __slots__ = ("_changed", "_inner", "source", "value")

    def __init__(self, source: bytes, value: Any) -> None:
        self.source = source
        self.value = value
        self._changed: dict[Path, str | None] = {}  # what stood there, where that was a text
        self._inner: dict[Path, Any] = {}  # what strings of JSON say that were changed

    @classmethod
    def parse(cls, body: bytes) -> Any:
        """What a body says. Raises Unreadable: no JSON, JSON with two meanings, or of too many parts."""
        if len(body) > READ_AT_ONCE and has_too_many_parts(body, MAX_PARTS, MAX_COMMAS):
            raise Unreadable("it has too many parts to be read here")
        return loads_strictly(body)

    @classmethod
    def parsing(cls, body: bytes) -> Work[Any]:
        """`parse` in turns."""
        return reading(body, MAX_PARTS, MAX_COMMAS)

    @property
    def is_changed(self) -> bool:
        """Whether `body` has something to write."""
        return bool(self._changed)

    def texts(self) -> Iterator[TextPart]:
        """Each text, in the order of the JSON. They are found while one iterates: a text may be replaced meanwhile."""
        for found in found_texts(self.value):
            yield TextPart(self, found)

    def tool_calls(self) -> list[CalledTool]:
        """The calls of tools, in the order of the JSON."""
        return at_once(self.finding_calls())

    def finding_calls(self) -> Work[list[CalledTool]]:
        """`tool_calls` in turns."""
        calls: list[CalledTool] = []
        for call in _calls(self.value, (), ""):
            if call is None:
                yield
            else:
                calls.append(call)
        return calls

    def put(self, path: Path, value: Any) -> None:
        """Replace the value at this path, or add a member. Raises Unreadable where the path leads nowhere."""
        holder = self.value
        for step, following in itertools.pairwise(path):
            if type(holder) is dict and step not in holder and type(following) is str:
                holder[step] = {}
            try:
                holder = holder[step]
            except (LookupError, TypeError):
                raise Unreadable(f"`{where(path)}` leads nowhere") from None
        step = path[-1]
        if type(step) is str and isinstance(holder, dict):
            before = holder.get(step)
        elif type(step) is int and isinstance(holder, list):
            before = holder[step]
        else:
            holder_type = "object" if type(step) is str else "array"
            raise Unreadable(f"`{where(path)}` leads nowhere: what should hold it is no {holder_type}")
        holder[step] = value  # a name for an object, an index for an array
        self._inner.pop(path, None)
        self._changed.setdefault(path, before if type(before) is str else None)

    def replace_text(self, found: Found, text: str) -> None:
        """Replace a text that was found here."""
        if not found.inner:
            self.put(found.path, text)
            return
        inner = self._inner.get(found.path)
        if inner is None:
            inner = inner_json(self.at(found.path))
        holder = inner
        for step in found.inner[:-1]:
            holder = holder[step]
        holder[found.inner[-1]] = text
        self._inner[found.path] = inner
        if found.path not in self._changed:
            self._changed[found.path] = self.at(found.path)  # what it is now is written when all is known

    def body(self) -> bytes:
        """The body with what was changed; the very object that came where nothing was."""
        return at_once(self.writing()) if self._changed else self.source

    def writing(self) -> Work[bytes]:
        """`body` in turns."""
        if self._changed:
            for path, inner in self._inner.items():  # strings of JSON: each once, however many of its texts there are
                yield
                if path in self._changed and not self._is_inside_another(path):
                    self.at(path[:-1])[path[-1]] = dumps(inner).decode()
            made = yield from self._with_texts()
            if made is None:
                changes = {}
                for path in self._changed:
                    yield
                    if not self._is_inside_another(path):
                        changes[path] = self.at(path)
                source = yield from decoding(self.source)
                made = yield from encoding((yield from splicing(source, changes)))
            self.source = made
            self._changed.clear()
        return self.source

    def _with_texts(self) -> Work[bytes | None]:
        """The body where few texts alone have become others; None where that cannot be told at a glance."""
        if len(self._changed) > _AT_A_GLANCE:
            return None
        made = self.source
        if len(self._changed) > 1 and any(map(self._is_inside_another, self._changed)):
            return None
        for path, before in self._changed.items():
            after = self.at(path)
            if before is None or type(after) is not str:
                return None
            found = yield from splicing_text(made, before, after)
            if found is None:
                return None
            made = found
        return made

    def _is_inside_another(self, path: Path) -> bool:
        return any(path[:length] in self._changed for length in range(len(path)))

    def at(self, path: Path) -> Any:
        """The value at a path that is there."""
        value = self.value
        for step in path:
            value = value[step]
        return value


def in_object(value: Any, *names: str) -> Any:
    """What stands at the end of these names; None where something is missing."""
    for name in names:
        if type(value) is not dict:
            return None
        value = value.get(name)
    return value


def _calls(value: Any, path: Path, key: str) -> Iterator[CalledTool | None]:
    """The calls in a value. None stands for values without one: a place to yield."""
    if type(value) is list:
        for index, each in enumerate(value):
            if type(each) is dict or type(each) is list:
                yield from _calls(each, (*path, index), key)
            if index % _PASSED_ELEMENTS == _PASSED_ELEMENTS - 1:
                yield None
    elif type(value) is dict:
        if "name" in map(_FOLDED, value):  # few objects
            yield from _calls_spelled_otherwise(value, path, key)
        name, passed = value.get("name"), _PASSED
        if type(name) is str:
            arguments: Any = None
            if "arguments" in value:
                arguments = value["arguments"]
            elif str(value.get("type")) in _CALL_TYPES or key in _CALL_KEYS or _is_custom(value, key):
                arguments = value.get("input", value.get("args", {}))
            elif name and (value.get("type") in _ITEM_TYPES or _is_in_calls(path)):
                arguments = {}  # arguments may follow in a stream, or are none
            if arguments is not None:
                yield CalledTool(name, _id_of(value), _parsed(arguments), path)
                passed = _PASSED_IN_CALLS  # another call may be beside its arguments: a client takes which it likes
        for each_key, each in value.items():
            if (type(each) is dict or type(each) is list) and each_key not in passed:
                outer = value if each_key in ("function", "custom") else None
                for call in _calls(each, (*path, each_key), each_key):
                    yield call if call is None or call.id or outer is None else call._replace(id=_id_of(outer))


def _calls_spelled_otherwise(value: dict[str, Any], path: Path, key: str) -> Iterator[CalledTool]:
    """The calls, one for each name, that this object is for who takes `Name` for `name`."""
    members = [(CALL.name_of(each), each) for each in value]
    other = next(((name, each) for name, each in members if name is not None and name != each), None)
    holder = CALL_KEYS.name_of(key)
    where = path
    if other is None:
        if holder is None or holder == key:
            return
        other, where = (holder, key), path[:-1]
    has = {name for name, _ in members}
    is_call = "arguments" in has or holder in _CALL_KEYS or (holder == "custom" and "input" in has)
    if is_call or any(name == "type" and str(value[each]) in _ANY_CALL_TYPE for name, each in members):
        fault = spelling_fault(other[1], other[0], where)
        for name, each in members:
            if name == "name" and type(value[each]) is str:
                yield CalledTool(value[each], _id_of(value), None, path, fault)


def _is_custom(value: Mapping[str, Any], key: str) -> bool:
    return "input" in value and (key == "custom" or value.get("type") == "custom_tool_call")


def _is_in_calls(path: Path) -> bool:
    """Whether this is the function, or the custom tool, of a call in chat."""
    return len(path) > 2 and path[-3] == "tool_calls" and path[-1] in ("function", "custom")


def _id_of(value: Mapping[str, Any]) -> str:
    for name in ("call_id", "toolUseId", "id"):
        found = value.get(name)
        if type(found) is str:
            return found
    return ""


def _parsed(arguments: Any) -> Any:
    if type(arguments) is not str:
        return arguments
    found = inner_json(arguments)
    return arguments if found is None else found
