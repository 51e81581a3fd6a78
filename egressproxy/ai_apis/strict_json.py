"""JSON as filters and translation read and write it. What two readers could understand differently is refused:
duplicate keys (RFC 8259 section 4), NaN, numbers that no double holds, half a surrogate pair.
"""

from __future__ import annotations

import json
import math
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Sized
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring
from typing import Any, Final

from egressproxy.model.work import Work

#: Objects and arrays of a body that is translated, and its commas: a tenth of a second.
MAX_PARTS: Final = 20_000
MAX_COMMAS: Final = 100_000
#: Strings of whatever is read.
MAX_STRINGS: Final = 400_000
#: Members of one object of long JSON: filters look at each of them.
MAX_MEMBERS: Final = 20_000
#: Levels of arrays and objects in a request. Schemas of tools, the deepest that conversations have, stay far below.
MAX_DEPTH: Final = 100
#: Digits of a number: a double needs 17.
_MAX_DIGITS: Final = 300
#: Blanks in one place of long JSON: nobody indents by that much.
_MAX_BLANKS: Final = 64 * 1024

#: Bytes of JSON that is read in one go, whatever it says.
_SHORT: Final = 64 * 1024
#: Bytes that are read in one go where they have at most _FEW_MARKS, and no escapes or other characters than ASCII in
#: more than _LONG_STRING: ten milliseconds.
_ALL_AT_ONCE: Final = 2 * 1024 * 1024
_FEW_MARKS: Final = 16_000
_LONG_STRING: Final = 256 * 1024
#: Characters of a string, and bytes of JSON whose braces are looked for one by one, between two yields.
_LONG: Final = 16 * 1024
#: Characters of an object, array or number that are read at once if it ends within them.
_WINDOW: Final = 512
#: Values between two yields.
_ITEMS: Final = 64

_COUNTED: Final = b'{[,"'


def has_too_many_parts(
    text: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS, strings: int = MAX_STRINGS
) -> bool:
    """Whether this JSON has more objects and arrays, commas or strings than these, outside of strings."""
    if len(text) - len(text.translate(None, _COUNTED)) <= min(parts, commas, strings):  # one look for all of them
        return False
    if text.count(b"{") + text.count(b"[") <= parts and text.count(b'"') <= strings and text.count(b",") <= commas:
        return False
    bare = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if bare.count(b'"') > 2 * strings:
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return outside.count(b"{") + outside.count(b"[") > parts or outside.count(b",") > commas


def are_too_many(texts: Iterable[str]) -> bool:
    """Whether these texts of JSON have too many parts together: arguments of calls are JSON inside of strings."""
    together = list(texts)
    if sum(map(len, together)) <= MAX_PARTS:
        return False
    return has_too_many_parts("\n".join(together).encode("utf-8", "surrogatepass"))


#: The blanks of JSON.
_BLANKS: Final = " \t\n\r"
_SKIPPED = re.compile(r"[ \t\n\r]*+")
#: Of a string: what is whole before it ends.
_WHOLE_CHARACTERS = re.compile(r'(?:[^"\\\0-\x1f]++|\\u[0-9A-Fa-f]{4}|\\[^u])*+')
#: Elements of an array that hold no others, and have no escapes, each with what parts it from the next.
_RUN = re.compile(r'(?:(?:"[^"\\\0-\x1f]*+"|-?[0-9]++(?:\.[0-9]++)?+|true|false|null)[ \t\n\r]*+,[ \t\n\r]*+)++')
#: A string that is read in pieces.
_LATER: Final = object()
_ONE_HALF: Final = "a string has half of a surrogate pair, which is no character"
_HALF: Final = len(r"\ud800")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Unreadable(ValueError):
    """Text that is not JSON, or not JSON with one meaning."""


class OtherSpelling(Unreadable):
    """JSON with a member that some servers take for one that decides (`model.member_names`)."""


def dumps(value: Any) -> bytes:
    """This value as JSON in UTF-8, without spaces; half a surrogate pair, of streams alone, stays an escape. Raises
    Unreadable for an infinite number (a provider's `1e999`), and for too many levels.
    """
    try:
        return _encode(value).encode()
    except UnicodeEncodeError:
        return _encode_ascii(value).encode()
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError:
        raise Unreadable("it has a number that is too large") from None


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


def dumps_text(text: str) -> bytes:
    """`dumps` of a string, which every delta of a stream is, in half the time."""
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return _encode_ascii(text).encode()


def loads(text: bytes | str) -> Any:
    """What a provider's JSON says. Raises Unreadable, also where it has so many parts that all others would wait."""
    if len(text) > _SHORT and has_too_many_parts(text.encode("utf-8", "replace") if isinstance(text, str) else text):
        raise Unreadable("it has too many parts to be read here")
    try:
        decoded = text if isinstance(text, str) else text.decode()
        try:
            value, end = _scan(decoded, 0)
        except StopIteration:
            end = -1
        # The decoder says what is wrong, and reads what begins with blanks.
        return value if end == len(decoded) or end == len(decoded.rstrip(_BLANKS)) else _decode(decoded)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:  # the message of JSONDecodeError quotes nothing of the text
        raise Unreadable(f"it is not JSON: {error}") from None


def looks_like_json(text: bytes) -> bool:
    """Whether this begins like an object or array. What `loads` does not read of it, others may: NaN, many levels."""
    return text.lstrip()[:1] in (b"{", b"[")


def loads_strictly(text: bytes | str) -> Any:
    """What this JSON says, if it can be read in one way only. Raises Unreadable."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    try:
        decoded = text.decode()
        try:
            value, end = _scan_strictly(decoded, 0)
        except StopIteration:
            end = -1
        if end != len(decoded) and end != len(decoded.rstrip(_BLANKS)):
            value = _decode_strictly(decoded)
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not UTF-8, at byte {error.start}") from None
    except RecursionError:
        raise Unreadable(f"it has more than {MAX_DEPTH} levels") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH if len(text) < _LONG else _has_many_openers(text):
        _check_depth(value)
    # The first is five times as quick to look for.
    if b"\\" in text and b"\\u" in text and _SURROGATE.search(text) is not None:
        try:
            _encode(value).encode()
        except UnicodeEncodeError:
            raise Unreadable(_ONE_HALF) from None
    return value


def reading(text: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS, strings: int = MAX_STRINGS) -> Work[Any]:
    """`loads_strictly` in turns. Raises Unreadable, also for more objects and arrays than `parts`, more `commas` or
    `strings`, and an object of more than MAX_MEMBERS.
    """
    if (yield from _is_soon_read(text)):
        return loads_strictly(text)
    decoded = yield from decoding(text)
    return (yield from _LongReader(decoded, parts, commas, strings).reading())


def checking(text: bytes, parts: int, commas: int, strings: int = MAX_STRINGS) -> Work[str]:
    """This text, decoded, once it was read in turns as `loads` reads it. Raises Unreadable as `reading` does."""
    decoded = yield from decoding(text)
    yield from _loading(text, decoded, parts, commas, strings)
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
    if len(text) <= _SHORT:
        return True
    if len(text) > _ALL_AT_ONCE:
        return False
    marks = 0
    for number, begin in enumerate(range(0, len(text), _LONG)):
        piece = text[begin : begin + _LONG]
        marks += len(piece) - len(piece.translate(None, _COUNTED))
        if marks > _FEW_MARKS or (len(text) > _LONG_STRING and (b"\\" in piece or not piece.isascii())):
            return False
        if not number % 16:
            yield
    return True


def decoding(text: bytes) -> Work[str]:
    """This text, read as UTF-8 in turns. Raises Unreadable."""
    if text.isascii():
        return text.decode()
    decode, said = getincrementaldecoder("utf-8")().decode, list[str]()
    for begin in range(0, len(text), _LONG_STRING):
        end = begin + _LONG_STRING
        try:
            said.append(decode(text[begin:end], end >= len(text)))
        except UnicodeDecodeError:
            break
        yield
    else:
        return "".join(said)
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
        self._scan = _scan_strictly if is_strict else _scan

    def reading(self) -> Work[Any]:
        """What it says. Raises Unreadable."""
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
                    _check_halves(_encode(value))
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
                _check_halves(value)
        elif end == _WINDOW:
            raise Unreadable(f"it has a number of more than {_MAX_DIGITS} digits")
        else:
            self._at = at + end
        return value, False

    def _long_string(self) -> Work[str]:
        """The string that begins here, in pieces. Raises ValueError."""
        text, at, said = self._text, self._at + 1, list[str]()
        while True:
            found = _WHOLE_CHARACTERS.match(text, at, at + _LONG)
            assert found is not None
            end = found.end()
            if end == at and text[at : at + 1] != '"':
                raise _no_json(text, at)
            piece = scanstring(f'{text[at:end]}"', 0)[0]
            if "\ud800" <= piece[-1:] <= "\udbff" and text[end : end + 1] != '"' and end - at > _HALF:
                piece, end = piece[:-1], end - _HALF  # its other half comes with it
            if self._is_strict:
                _check_halves(piece)
            said.append(piece)
            at = end
            if text[at : at + 1] == '"':
                self._at = at + 1
                return "".join(said)
            yield

    def _took_run(self, holder: list[Any]) -> bool:
        """Add the next plain strings, numbers and words to this array, except the last. False: there are none."""
        found = _RUN.match(self._text, self._at, self._at + 4 * _WINDOW)
        if found is None:
            return False
        run = found[0]
        values, _ = self._scan(f"[{run}0]", 0)
        values.pop()
        holder += values
        self._count(0, len(values), run.count('"') // 2)
        self._at = found.end()
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
            name, end = self._scan(text[self._at : self._at + _SHORT], 0)  # what is longer than that is no name
        self._at += end
        self._count(0, 0, 1)
        if self._is_strict:
            _check_halves(name)
        if self._is_strict and name in holder:
            raise _twice(name)
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
        found = _SKIPPED.match(self._text, self._at, self._at + _MAX_BLANKS)
        assert found is not None
        self._at = found.end()
        if found.end() - found.start() == _MAX_BLANKS:
            raise Unreadable(f"it has {_MAX_BLANKS} blanks in one place")


def _no_json(text: str, at: int) -> ValueError:
    return json.JSONDecodeError("Expecting something else", text, at)


def _check_halves(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unreadable(_ONE_HALF) from None


def _twice(name: str) -> Unreadable:
    return Unreadable(f"it has the key {name[:80]!r} twice in one object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _twice(key)
            seen.add(key)
    return value


def _constant(name: str) -> Any:
    raise Unreadable(f"{name} is not a number of JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise Unreadable(f"it has a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if len(digits) > _MAX_DIGITS or math.isinf(value):
        raise Unreadable("it has a number that is too large or too long")
    return value


def _has_many_openers(text: bytes) -> bool:
    """Whether braces and brackets are more than MAX_DEPTH, in strings, too: few are quicker found than counted."""
    many = 0
    for opener in (b"{", b"["):
        at = text.find(opener)
        while at >= 0:
            many += 1
            if many > MAX_DEPTH:
                return True
            at = text.find(opener, at + 1)
    return False


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return
    raise Unreadable(f"it has more than {MAX_DEPTH} levels")


# Built once: json.loads builds a decoder for each call that has hooks.
_decoder = json.JSONDecoder(parse_constant=_constant)
_decode = _decoder.decode
_strict_decoder = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole_number, parse_float=_number
)
_decode_strictly = _strict_decoder.decode
# What `decode` calls between two searches for blanks: value and end; StopIteration where nothing begins.
_scan = _decoder.scan_once  # type: ignore[attr-defined]
_scan_strictly = _strict_decoder.scan_once  # type: ignore[attr-defined]
