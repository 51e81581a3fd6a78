"""JSON for filters and translation. Ambiguous JSON is refused: duplicate keys (RFC 8259 section 4), NaN, numbers that
do not fit a double, half a surrogate pair.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Any, Final

#: Objects and arrays of a body that is translated, and its commas: a tenth of a second.
MAX_PARTS: Final = 20_000
MAX_COMMAS: Final = 100_000
#: Strings of whatever is read.
MAX_STRINGS: Final = 400_000
#: Levels of arrays and objects in a request. Schemas of tools, the deepest that conversations have, stay far below.
MAX_DEPTH: Final = 100
#: Digits of a number: a double needs 17.
MAX_DIGITS: Final = 300

#: The most bytes of any JSON to read without a pause.
SHORT: Final = 64 * 1024
#: In JSON of more bytes, braces and brackets are looked for one by one.
_LONG: Final = 16 * 1024

#: The characters that begin or separate the parts of JSON.
MARKS: Final = b'{[,"'


def has_too_many_parts(
    text: bytes, parts: int = MAX_PARTS, commas: int = MAX_COMMAS, strings: int = MAX_STRINGS
) -> bool:
    """Whether this JSON has more objects and arrays, commas or strings than these limits, outside of strings."""
    if len(text) - len(text.translate(None, MARKS)) <= min(parts, commas, strings):  # one fast check for all
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
_ONE_HALF: Final = "a string has half of a surrogate pair, which is no character"

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Unreadable(ValueError):
    """Text that is not JSON, or ambiguous JSON."""


class OtherSpelling(Unreadable):
    """JSON with another spelling of a member that policy reads (`ai.apis.member_names`)."""


def dumps(value: Any) -> bytes:
    """This value as JSON in UTF-8, without spaces; half a surrogate pair, of streams alone, stays an escape. Raises
    Unreadable for an infinite number (a provider's `1e999`), and for too many levels.
    """
    try:
        return encode(value).encode()
    except UnicodeEncodeError:
        return _encode_ascii(value).encode()
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError:
        raise Unreadable("it has a number that is too large") from None


def dumps_text(text: str) -> bytes:
    """`dumps` of a string, which every delta of a stream is, in half the time."""
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        return _encode_ascii(text).encode()


def loads(text: bytes | str) -> Any:
    """The value of a provider's JSON. Raises Unreadable, also for too many parts to read without a pause."""
    if len(text) > SHORT and has_too_many_parts(text.encode("utf-8", "replace") if isinstance(text, str) else text):
        raise Unreadable("it has too many parts to be read here")
    try:
        decoded = text if isinstance(text, str) else text.decode()
        try:
            value, end = scan(decoded, 0)
        except StopIteration:
            end = -1
        # The decoder reports the error, and accepts leading blanks.
        return value if end == len(decoded) or end == len(decoded.rstrip(_BLANKS)) else _decode(decoded)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except ValueError as error:  # the message of JSONDecodeError quotes nothing of the text
        raise Unreadable(f"it is not JSON: {error}") from None


def looks_like_json(text: bytes) -> bool:
    """Whether this begins like an object or array. What `loads` does not read of it, others may: NaN, many levels."""
    return text.lstrip()[:1] in (b"{", b"[")


def loads_strictly(text: bytes | str) -> Any:
    """The value of unambiguous JSON. Raises Unreadable."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    try:
        decoded = text.decode()
        try:
            value, end = scan_strictly(decoded, 0)
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
            encode(value).encode()
        except UnicodeEncodeError:
            raise Unreadable(_ONE_HALF) from None
    return value


def check_halves(text: str) -> None:
    """Raises Unreadable for half a surrogate pair."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unreadable(_ONE_HALF) from None


def twice(name: str) -> Unreadable:
    """The error of a member that an object has twice."""
    return Unreadable(f"it has the key {name[:80]!r} twice in one object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise twice(key)
            seen.add(key)
    return value


def _constant(name: str) -> Any:
    raise Unreadable(f"{name} is not a number of JSON")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unreadable(f"it has a number of more than {MAX_DIGITS} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if len(digits) > MAX_DIGITS or math.isinf(value):
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
scan = _decoder.scan_once  # type: ignore[attr-defined]
scan_strictly = _strict_decoder.scan_once  # type: ignore[attr-defined]
