"""What matches ask of a request besides its path and method: header fields and query parameters.

`MatchInput` is the request as the matches of one table see it. A result for one match is kept for the next ones, so
that the cost of a request does not multiply with their number: query and fields are parsed once, and an expression is
tried once on a value. The cost of all expressions together is bounded (`WORK`).
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from egressproxy.errors import BadRequest, Reason
from egressproxy.ir.route import MatchType, ValueMatch
from egressproxy.model.fields import Fields
from egressproxy.routing.patterns import MAX_SUBJECT, Expression, compile_pattern

#: The bound for all expressions that one request is tried on, in instructions (`Expression.work`): 6 ms.
WORK = 1_000_000
#: The most query parameters of a request that a match reads.
MAX_PARAMETERS = 256
#: Up to so many names are searched one by one in the block of fields; for more the block is parsed once.
_LOOK_UPS = 4


class MatchInput:
    """One request. Nothing is parsed before a match needs it."""

    __slots__ = ("_fields", "_found", "_headers", "_is_whole", "_left", "_parameters", "_target")

    def __init__(self, target: bytes, fields: Fields) -> None:
        self._target = target
        self._fields = fields
        self._headers: dict[bytes, bytes | None] = {}
        self._is_whole = False  # whether `_headers` has every field
        self._parameters: dict[bytes, bytes] | None = None
        self._found: dict[tuple[Expression, bytes], bool] | None = None
        self._left = WORK

    def header(self, name: bytes) -> bytes | None:
        """The values of this field name (lower case), joined by "," (RFC 9110 section 5.3); None without one."""
        headers = self._headers
        if name in headers:
            return headers[name]
        if self._is_whole:
            return None
        if len(headers) >= _LOOK_UPS:
            self._headers = headers = _joined(self._fields)
            self._is_whole = True
            return headers.get(name)
        values = self._fields.get_all(name)
        value = None if not values else values[0] if len(values) == 1 else b",".join(values)
        headers[name] = value
        return value

    def parameter(self, name: bytes) -> bytes | None:
        """The first value of this parameter, decoded, or None. Raises BadRequest (414) for more than MAX_PARAMETERS."""
        found = self._parameters
        if found is None:
            found = self._parameters = _parameters(self._target.partition(b"?")[2])
        return found.get(name)

    def fits(self, expression: Expression, value: bytes, too_long: Reason) -> bool:
        """Whether the whole value matches. Raises BadRequest(`too_long`, 414 or 431) if that could take too long."""
        work = expression.work(value)
        if not work:
            return False
        known = self._found
        if known is None:
            known = self._found = {}
        key = (expression, value)
        fits = known.get(key)
        if fits is None:
            if len(value) > MAX_SUBJECT:
                message = f"the value that a route matches with a regular expression is longer than {MAX_SUBJECT} bytes"
                raise _refusal(too_long, message)
            self._left -= work
            if self._left < 0:
                raise _refusal(too_long, "the expressions of this host's routes take too long on values of this length")
            fits = known[key] = expression.matches(value)
        return fits


class ValueTest:
    """A header or query parameter that must have this value."""

    __slots__ = ("expression", "name", "value")

    def __init__(self, match: ValueMatch) -> None:
        self.name = match.name.encode()
        self.value = match.value.encode()
        self.expression = compile_pattern(match.value) if match.type is MatchType.REGEX else None

    def holds(self, value: bytes, asked: MatchInput, too_long: Reason) -> bool:
        """Whether the value is the one asked for, or matches the expression."""
        if self.expression is None:
            return value == self.value
        return asked.fits(self.expression, value, too_long)

    def text(self) -> bytes:
        return self.name + (b"=" if self.expression is None else b"~") + self.value


class Presence(ValueTest):
    """A header that must be present and not empty."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        super().__init__(ValueMatch(name, ""))

    def holds(self, value: bytes, asked: MatchInput, too_long: Reason) -> bool:
        return value != b""

    def text(self) -> bytes:
        return self.name


def _joined(fields: Fields) -> dict[bytes, bytes | None]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    return {name: b",".join(found) for name, found in values.items()}


def _parameters(query: bytes) -> dict[bytes, bytes]:
    if query.count(b"&") >= MAX_PARAMETERS:
        raise _refusal(Reason.TARGET_TOO_LONG, f"a route matches query parameters, and there are over {MAX_PARAMETERS}")
    found: dict[bytes, bytes] = {}
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        found.setdefault(_decoded(name), _decoded(value))
    return found


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def _refusal(too_long: Reason, message: str) -> BadRequest:
    return BadRequest(too_long, message, status=414 if too_long is Reason.TARGET_TOO_LONG else 431, close=False)
