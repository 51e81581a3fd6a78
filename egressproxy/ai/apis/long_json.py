"""Reading and writing of long JSON as cooperative work, by the rules of `strict_json`."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sized
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

from egressproxy.model.strict_json import (
    MARKS,
    MAX_COMMAS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_PARTS,
    MAX_STRINGS,
    SHORT,
    Unreadable,
    check_halves,
    dumps,
    dumps_text,
    encode,
    loads,
    loads_strictly,
    scan,
    scan_strictly,
    twice,
)
from egressproxy.model.work import Work

#: The most members of one object: filters check each member.
MAX_MEMBERS: Final = 20_000
#: The most consecutive blanks.
_MAX_BLANKS: Final = 64 * 1024

#: Bytes that are read in one go where they have at most _FEW_MARKS, and no escapes or other characters than ASCII in
#: more than _LONG_STRING: ten milliseconds.
_ALL_AT_ONCE: Final = 2 * 1024 * 1024
_FEW_MARKS: Final = 16_000
_LONG_STRING: Final = 256 * 1024
#: Characters of a string between two yields.
_LONG: Final = 16 * 1024
#: Characters of an object, array or number that are read at once if it ends within them.
_WINDOW: Final = 512
#: Values between two yields.
_ITEMS: Final = 64

_SKIPPED = re.compile(r"[ \t\n\r]*+")
#: Of a string: what is whole before it ends.
_WHOLE_CHARACTERS = re.compile(r'(?:[^"\\\0-\x1f]++|\\u[0-9A-Fa-f]{4}|\\[^u])*')
#: Elements of an array that hold no others, and have no escapes, each with what parts it from the next.
_RUN = re.compile(r'(?:(?:"[^"\\\0-\x1f]*+"|-?[0-9]++(?:\.[0-9]++)?|true|false|null)[ \t\n\r]*+,[ \t\n\r]*+)+')
#: A string that is read in pieces.
_LATER: Final = object()
_HALF: Final = len(r"\ud800")


def dumping(value: Any, *, is_sorted: bool = False) -> Work[bytes]:
    """`dumps` in turns; `is_sorted`: the members of each object by their names."""
    pieces: list[bytes] = []
    yield from _write(value, pieces, is_sorted)
    return b"".join(pieces)


def _write(value: Any, pieces: list[bytes], is_sorted: bool) -> Work[None]:
    if type(value) is str and len(value) > _LONG:
        pieces.append(b'"')
        for begin in range(0, len(value), _LONG):
            pieces.append(dumps_text(value[begin : begin + _LONG])[1:-1])
            yield
        pieces.append(b'"')
    elif type(value) is dict and value and (is_sorted or _may_be_long(value, value.values())):
        for number, (name, each) in enumerate(sorted(value.items()) if is_sorted else value.items()):
            pieces += (b"," if number else b"{", dumps_text(name), b":")
            yield from _write(each, pieces, is_sorted)
        pieces.append(b"}")
    elif type(value) is list and value and (is_sorted or _may_be_long(value, value)):
        for number, each in enumerate(value):
            pieces.append(b"," if number else b"[")
            yield from _write(each, pieces, is_sorted)
        pieces.append(b"]")
    else:
        pieces.append(dumps(value))
        yield


def _may_be_long(holder: Sized, inner: Iterable[Any]) -> bool:
    if len(holder) > _ITEMS:
        return True
    return any(type(each) is dict or type(each) is list or (type(each) is str and len(each) > _LONG) for each in inner)


def encoding(text: str, begin: int = 0, end: int = -1) -> Work[bytes]:
    """This text, from `begin` to `end`, in UTF-8, in turns; half a surrogate pair as it is."""
    pieces = []
    end = len(text) if end < 0 else end
    for at in range(begin, end, _LONG_STRING):
        pieces.append(text[at : min(at + _LONG_STRING, end)].encode("utf-8", "surrogatepass"))
        yield
    return b"".join(pieces)


def reading(text: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS, strings: int = MAX_STRINGS) -> Work[Any]:
    """`loads_strictly` in turns. Raises Unreadable, also for more objects and arrays than `parts`, more `commas` or
    `strings`, and an object of more than MAX_MEMBERS.
    """
    if (yield from _is_soon_read(text)):
        return loads_strictly(text)
    decoded = yield from decoding(text)
    return (yield from _LongReader(decoded, parts, commas, strings).reading())


def checking(text: bytes, parts: int, commas: int) -> Work[str]:
    """This text, decoded, once it was read in turns as `loads` reads it. Raises Unreadable as `reading` does."""
    decoded = yield from decoding(text)
    yield from _loading(text, decoded, parts, commas, MAX_STRINGS)
    return decoded


def loading(text: bytes) -> Work[Any]:
    """`loads` in turns. Raises Unreadable as `reading` does."""
    return (yield from _loading(text, (yield from decoding(text)), MAX_PARTS, MAX_COMMAS, MAX_STRINGS))


def _loading(text: bytes, decoded: str, parts: int, commas: int, strings: int) -> Work[Any]:
    if (yield from _is_soon_read(text)):
        return loads(decoded)
    return (yield from _LongReader(decoded, parts, commas, strings, is_strict=False).reading())


def _is_soon_read(text: bytes) -> Work[bool]:
    """Whether this is read in one go: it is short, or has few marks and no text that takes long."""
    if len(text) <= SHORT:
        return True
    if len(text) > _ALL_AT_ONCE:
        return False
    marks = 0
    for number, begin in enumerate(range(0, len(text), _LONG)):
        piece = text[begin : begin + _LONG]
        marks += len(piece) - len(piece.translate(None, MARKS))
        if marks > _FEW_MARKS or (len(text) > _LONG_STRING and (b"\\" in piece or not piece.isascii())):
            return False
        if not number % 16:
            yield
    return True


def decoding(text: bytes) -> Work[str]:
    """This text, read as UTF-8 in turns. Raises Unreadable."""
    if text.isascii():
        return text.decode()
    decode, pieces = getincrementaldecoder("utf-8")().decode, list[str]()
    for begin in range(0, len(text), _LONG_STRING):
        end = begin + _LONG_STRING
        try:
            pieces.append(decode(text[begin:end], end >= len(text)))
        except UnicodeDecodeError:
            break
        yield
    else:
        return "".join(pieces)
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8, at byte {error.start}") from None


class _LongReader:
    """Reads long JSON: a short value at once, a long one member by member or element by element."""

    __slots__ = ("_at", "_commas", "_is_strict", "_parts", "_scan", "_strings", "_text")

    def __init__(self, text: str, parts: int, commas: int, strings: int, *, is_strict: bool = True) -> None:
        self._text = text
        self._at = 0
        self._parts, self._commas, self._strings = parts, commas, strings  # that may still come
        self._is_strict = is_strict
        self._scan = scan_strictly if is_strict else scan

    def reading(self) -> Work[Any]:
        """The value. Raises Unreadable."""
        try:
            return (yield from self._reading())
        except RecursionError:
            raise Unreadable(f"it has more than {MAX_DEPTH} levels") from None
        except Unreadable:
            raise
        except ValueError as error:
            raise Unreadable(f"it is not JSON: {error}") from None

    def _reading(self) -> Work[Any]:
        """Raises ValueError."""
        text = self._text
        self._skip()
        holders: list[Any] = []  # that have begun, from the outermost
        names: list[str] = []  # of the member of each that is being read; "" in arrays
        seen = 0
        while True:
            seen += 1
            if not seen % _ITEMS:
                yield
            value, is_open = self._value(len(holders))
            if value is _LATER:
                value = yield from self._long_string()
            elif is_open:
                if len(holders) == MAX_DEPTH:
                    raise Unreadable(f"it has more than {MAX_DEPTH} levels")
                holders.append(value)
                names.append("")
                closing = "}" if type(value) is dict else "]"
                if text[self._at : self._at + 1] != closing:
                    if closing == "}":
                        names[-1] = self._name(value)
                    continue
                self._at += 1
                value = holders.pop()
                names.pop()
            # A value is whole: it goes to its holder, which may be whole with it.
            while holders:
                holder = holders[-1]
                if type(holder) is dict:
                    holder[names[-1]] = value
                else:
                    holder.append(value)
                self._skip()
                mark = text[self._at : self._at + 1]
                self._at += 1
                if mark == ",":
                    self._count(0, 1, 0)
                    self._skip()
                    if type(holder) is dict:
                        if len(holder) == MAX_MEMBERS:
                            raise Unreadable(f"it has an object of more than {MAX_MEMBERS} members")
                        names[-1] = self._name(holder)
                    elif self._took_run(holder):
                        yield
                    break
                if mark != ("}" if type(holder) is dict else "]"):
                    raise _no_json(text, self._at - 1)
                value = holders.pop()
                names.pop()
            else:
                self._skip()
                if self._at != len(text):
                    raise _no_json(text, self._at)
                return value

    def _value(self, depth: int) -> tuple[Any, bool]:
        """The value that begins here, and whether it is an object or array of which only the beginning was read."""
        text, at = self._text, self._at
        mark = text[at : at + 1]
        if mark == "{" or mark == "[":
            window = text[at : at + _WINDOW]
            try:
                value, end = self._scan(window, 0)
            except StopIteration:
                end = 0
            except Unreadable:
                raise
            except ValueError:
                end = 0  # it is longer, or no JSON
            if end and self._fits(window[:end], depth):
                self._at = at + end
                if self._is_strict and "\\u" in window:
                    check_halves(encode(value))
                return value, False
            self._count(1, 0, 0)
            self._at = at + 1
            self._skip()
            return {} if mark == "{" else [], True
        if mark == '"':
            self._count(0, 0, 1)
            end = text.find('"', at + 1, at + _LONG)
            if end < 0 or text[end - 1] == "\\":
                return _LATER, False
        try:
            # A number is not looked for beyond the window.
            value, end = self._scan(text, at) if mark == '"' else self._scan(text[at : at + _WINDOW], 0)
        except StopIteration:
            raise _no_json(text, at) from None
        if mark == '"':
            self._at = end
            if self._is_strict:
                check_halves(value)
        elif end == _WINDOW:
            raise Unreadable(f"it has a number of more than {MAX_DIGITS} digits")
        else:
            self._at = at + end
        return value, False

    def _long_string(self) -> Work[str]:
        """The string that begins here, in pieces. Raises ValueError."""
        text, at, pieces = self._text, self._at + 1, list[str]()
        while True:
            match = _WHOLE_CHARACTERS.match(text, at, at + _LONG)
            assert match is not None
            end = match.end()
            if end == at and text[at : at + 1] != '"':
                raise _no_json(text, at)
            piece = scanstring(f'{text[at:end]}"', 0)[0]
            if "\ud800" <= piece[-1:] <= "\udbff" and text[end : end + 1] != '"' and end - at > _HALF:
                piece, end = piece[:-1], end - _HALF  # keep the surrogate pair together
            if self._is_strict:
                check_halves(piece)
            pieces.append(piece)
            at = end
            if text[at : at + 1] == '"':
                self._at = at + 1
                return "".join(pieces)
            yield

    def _took_run(self, holder: list[Any]) -> bool:
        """Add the next plain strings, numbers and words to this array, except the last. False: there are none."""
        match = _RUN.match(self._text, self._at, self._at + 4 * _WINDOW)
        if match is None:
            return False
        run = match[0]
        values, _ = self._scan(f"[{run}0]", 0)
        values.pop()
        holder += values
        self._count(0, len(values), run.count('"') // 2)
        self._at = match.end()
        self._skip()
        return True

    def _fits(self, window: str, depth: int) -> bool:
        """Count the parts of a value that was read at once. False: it may be too deep, and is read step by step."""
        bare = window.replace("\\\\", "").replace('\\"', "") if "\\" in window else window
        pieces = bare.split('"')
        outside = "".join(pieces[::2])
        openers = outside.count("{") + outside.count("[")
        if depth + openers > MAX_DEPTH:
            return False
        self._count(openers, outside.count(","), len(pieces) // 2)
        return True

    def _name(self, holder: dict[str, Any]) -> str:
        """The name of the member that begins here. Raises Unreadable for one that is there."""
        text = self._text
        if text[self._at : self._at + 1] != '"':
            raise _no_json(text, self._at)
        try:
            name, end = self._scan(text[self._at : self._at + _WINDOW], 0)
        except ValueError:
            name, end = self._scan(text[self._at : self._at + SHORT], 0)  # what is longer than that is no name
        self._at += end
        self._count(0, 0, 1)
        if self._is_strict:
            check_halves(name)
        if self._is_strict and name in holder:
            raise twice(name)
        self._skip()
        if text[self._at : self._at + 1] != ":":
            raise _no_json(text, self._at)
        self._at += 1
        self._skip()
        return str(name)

    def _count(self, parts: int, commas: int, strings: int) -> None:
        self._parts -= parts
        self._commas -= commas
        self._strings -= strings
        if self._parts < 0 or self._commas < 0 or self._strings < 0:
            raise Unreadable("it has too many parts to be read here")

    def _skip(self) -> None:
        match = _SKIPPED.match(self._text, self._at, self._at + _MAX_BLANKS)
        assert match is not None
        self._at = match.end()
        if match.end() - match.start() == _MAX_BLANKS:
            raise Unreadable(f"it has {_MAX_BLANKS} blanks in one place")


def _no_json(text: str, at: int) -> ValueError:
    return json.JSONDecodeError("Expecting something else", text, at)
