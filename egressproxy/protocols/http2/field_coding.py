"""HPACK (RFC 7541, RFC 9113 section 4.3): a decoder that counts fields and remembers whole blocks, of which
clients mostly send the same again; and an encoding that puts nothing into a table, so that no credential stays there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from h2.errors import ErrorCodes
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

from egressproxy.protocols.http2.frames import RemoteProtocolError
from egressproxy.protocols.http2.remembered_fields import FieldList, RememberedFields

#: Of 65,536 that there are; what people write needs some thousand.
MAX_STEPS: Final = 8192

#: The state that follows (times 256), the symbols that are whole, and whether the text may end here.
Step = tuple[int, bytes, bool]


class _Steps(dict[int, Step]):
    """By state (times 256) and byte. Raises HPACKDecodingError for a byte that cannot follow."""

    def __missing__(self, key: int) -> Step:
        state, byte = key >> 8, key & 0xFF
        symbols = bytearray()
        flags = 0
        for half in (byte >> 4, byte & 0xF):
            state, flags, symbol = HUFFMAN_TABLE[state * 16 + half]
            if flags & HUFFMAN_FAIL:
                raise HPACKDecodingError("an invalid Huffman string")
            if flags & HUFFMAN_EMIT_SYMBOL:
                symbols.append(symbol)
        step = (state << 8, bytes(symbols), bool(flags & HUFFMAN_COMPLETE))
        if len(self) < MAX_STEPS:
            self[key] = step
        return step


_STEPS: Final = _Steps()


def huffman_decoded(text: bytes) -> bytes:
    """What the Huffman code says (RFC 7541 section 5.2), a byte at a time; what one means behind others is worked out
    from hpack's table when it first comes. Raises HPACKDecodingError.
    """
    steps = _STEPS
    symbols: list[bytes] = []
    add = symbols.append
    state, may_end = 0, True
    for byte in text:
        state, some, may_end = steps[state | byte]
        add(some)
    if not may_end:
        raise HPACKDecodingError("an incomplete Huffman string")
    return b"".join(symbols)


#: Stands before the first block on a connection: our table is empty, and stays so (RFC 7541 section 6.3).
NO_TABLE: Final = b"\x20"

#: What the lists that a decoder remembers may be, together, as a table counts them.
MEMO_SIZE: Final = 6144
#: What a field costs beside its bytes (RFC 9113 section 6.5.2).
FIELD_OVERHEAD: Final = 32
#: Bytes of an integer behind its prefix: enough for 28 bits. A longer integer would cost quadratic time.
MAX_INTEGER_SIZE: Final = 4
#: Changes of the table's size that one block may begin with (RFC 7541 section 4.2). Each costs as much as a field.
MAX_RESIZES: Final = 2
#: Fields up to this size are encoded once.
MAX_REMEMBERED: Final = 256
#: Lines whose code is remembered, of all connections together.
MAX_LINES: Final = 4096
#: Names up to this size are decoded once, so many of them, of all connections together.
MAX_NAME: Final = 32
MAX_NAMES: Final = 2048
#: Never to be put into a table, by any hop (RFC 7541 section 7.1.3).
SENSITIVE: Final = frozenset(
    b"authorization proxy-authorization cookie set-cookie x-api-key api-key x-goog-api-key x-amz-security-token".split()
)
#: So are fields with one of these words in their names, but for :authority: any field may carry a key.
_SENSITIVE_WORD: Final = re.compile(rb"(?<!\A:)(?:auth|cookie|credential|key|passw|secret|token)")
#: Not remembered either: it is another one each time, and would take the place of one that comes again.
_TIMEOUT: Final = b"grpc-timeout"

#: A list: compiled code makes a tuple of fixed length anew at each access.
_STATIC: Final = list(HeaderTable.STATIC_TABLE)
_STATIC_LENGTH: Final = len(_STATIC)
_INDEX: Final = HeaderTable.STATIC_TABLE_MAPPING


class FieldDecoder:
    """In the place of hpack's Decoder; one for each connection. A list beyond `max_header_list_size` (names, values, 32
    bytes for each field) or `max_fields` ends the connection with ENHANCE_YOUR_CALM; callers bound messages below that.
    """

    def __init__(self, max_fields: int, max_list_size: int) -> None:
        self.header_table = HeaderTable()
        self.max_header_list_size = max_list_size
        self.max_allowed_table_size = self.header_table.maxsize
        self._max_fields = max_fields
        self._memo: dict[bytes, FieldList] = {}
        self._memo_left = MEMO_SIZE

    def decode(self, data: bytes) -> FieldList:
        """A block's fields, in a list that must not be changed. Raises RemoteProtocolError: with COMPRESSION_ERROR the
        two tables differ by now.
        """
        known = self._memo.get(data)
        if known is not None:
            return known
        try:
            fields, size = self._decode(data)
        except (HPACKError, IndexError) as error:
            raise RemoteProtocolError("a field block cannot be decoded", ErrorCodes.COMPRESSION_ERROR) from error
        if size < 0:
            self._memo.clear()
            self._memo_left = MEMO_SIZE
        elif size <= MEMO_SIZE // 2:
            if size > self._memo_left:
                self._memo.clear()
                self._memo_left = MEMO_SIZE
            self._memo_left -= size
            fields = self._memo[data] = RememberedFields(fields)
        return fields

    def _decode(self, data: bytes) -> tuple[FieldList, int]:
        """The fields, and the size of the list; -1 where the table has changed."""
        table, static = self.header_table, _STATIC
        dynamic = table.dynamic_entries
        fields: FieldList = []
        at, end, left, size, has_changed, resizes = 0, len(data), self._max_fields, 0, False, 0
        while at < end:
            first = data[at]
            at += 1
            if first >= 0x80:  # an indexed field
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _integer(data, at, index)
                if index > _STATIC_LENGTH:
                    field = dynamic[index - _STATIC_LENGTH - 1]
                elif index:
                    field = static[index - 1]
                else:
                    raise HPACKError("no index")
            elif first & 0xE0 == 0x20:  # the size of the table
                if fields:
                    raise HPACKError("a table size behind a field")
                limit, at = _integer(data, at, 0x1F) if first & 0x1F == 0x1F else (first & 0x1F, at)
                if limit > self.max_allowed_table_size:
                    raise HPACKError("a table larger than allowed")
                resizes += 1
                if resizes > MAX_RESIZES:
                    raise HPACKError("more table sizes than there can be")
                table.maxsize = limit
                has_changed = True
                continue
            else:
                prefix = 0x3F if first & 0x40 else 0x0F
                index = first & prefix
                if index == prefix:
                    index, at = _integer(data, at, index)
                if index:
                    name = table.get_by_index(index)[0]
                else:
                    name, at = _name(data, at)
                value, at = _string(data, at)
                field = (name, value)
                if first & 0x40 and table.maxsize:  # a table of no size stays as it is, as that of nginx does
                    table.add(name, value)
                    has_changed = True
            fields.append(field)
            size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD
            left -= 1
            if left < 0:
                raise RemoteProtocolError("a field list has too many fields", ErrorCodes.ENHANCE_YOUR_CALM)
        if size > self.max_header_list_size:
            raise RemoteProtocolError("a field list is too long", ErrorCodes.ENHANCE_YOUR_CALM)
        if table.maxsize > self.max_allowed_table_size:
            raise HPACKError("the table was not made smaller")
        return fields, -1 if has_changed else size


def _integer(data: bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of an integer whose prefix holds `value`, and the offset behind it (RFC 7541 section 5.1)."""
    for shift in range(0, 7 * MAX_INTEGER_SIZE, 7):
        byte = data[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HPACKError("an integer is too long")


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    """A string literal, and the offset behind it (RFC 7541 section 5.2)."""
    first = data[at]
    length = first & 0x7F
    at += 1
    if length == 0x7F:
        length, at = _integer(data, at, length)
    end = at + length
    if end > len(data):
        raise HPACKError("a string is cut short")
    text = data[at:end]
    return (huffman_decoded(text) if first & 0x80 else text), end


def _name(data: bytes, at: int) -> tuple[bytes, int]:
    """As `_string`, of a name: the same ones come again and again, and none is a secret."""
    length = data[at] & 0x7F
    end = at + 1 + length
    if length > MAX_NAME or end > len(data):
        return _string(data, at)
    code = data[at:end]
    name = _NAMES.get(code)
    if name is None:
        name, _ = _string(code, 0)
        if len(_NAMES) >= MAX_NAMES:
            _NAMES.clear()
        _NAMES[code] = name
    return name, end


#: Names as they stood in a block, with their length.
_NAMES: Final[dict[bytes, bytes]] = {}


def encoded_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The block of these fields. Every field is a literal, or an entry of the static table."""
    return b"".join([
        _remembered(name, value) if len(name) + len(value) <= MAX_REMEMBERED and not is_sensitive(name)
        else encoded(name, value)
        for name, value in fields
    ])  # fmt: skip


class EncodedLines(dict[bytes, bytes]):
    """The code of a line `Name: value`; b"" for names in `never` (lower case). Long and sensitive ones are not kept."""

    def __init__(self, never: frozenset[bytes]) -> None:
        super().__init__()
        self._never = never

    def __missing__(self, line: bytes) -> bytes:
        name, _, value = line.partition(b":")
        name = name.lower()
        code = b"" if name in self._never else encoded(name, value.strip(b" \t"))
        if len(line) <= MAX_REMEMBERED and name != _TIMEOUT and not is_sensitive(name):
            if len(self) >= MAX_LINES:
                self.clear()
            self[line] = code
        return code


def is_sensitive(name: bytes) -> bool:
    """Whether a field of this (lower-case) name may carry a credential: see SENSITIVE."""
    return _is_sensitive(name) if len(name) <= MAX_REMEMBERED else _SENSITIVE_WORD.search(name) is not None


@lru_cache(maxsize=1024)
def _is_sensitive(name: bytes) -> bool:
    return name in SENSITIVE or _SENSITIVE_WORD.search(name) is not None


def encoded(name: bytes, value: bytes) -> bytes:
    """RFC 7541 sections 6.1 (indexed), 6.2.2 (without indexing), 6.2.3 (never indexed)."""
    start, exact = _start(name) if len(name) <= MAX_REMEMBERED else _made_start(name)
    if exact and value in exact:
        return bytes((0x80 | exact[value],))
    size = len(value)
    return b"%b%c%b" % (start, size, value) if size < 0x7F else start + _prefixed(size, 0x7F, 0) + value


def _made_start(name: bytes) -> tuple[bytes, dict[bytes, int]]:
    """What stands before the length of a value, and the indexes of those values that the static table has."""
    index, exact = _INDEX.get(name, (0, {}))
    sensitive = is_sensitive(name)
    if sensitive:
        exact = {}
    flags = 0x10 if sensitive else 0x00
    start = _prefixed(index, 0x0F, flags) if index else bytes((flags,)) + _prefixed(len(name), 0x7F, 0) + name
    return start, exact


_start: Final = lru_cache(maxsize=512)(_made_start)
_remembered: Final = lru_cache(maxsize=4096)(encoded)


def encoded_once(name: bytes, value: bytes) -> bytes:
    """As `encoded`, of a field that comes again: it is remembered, unless it is long. Its name is not sensitive."""
    return _remembered(name, value) if len(value) <= MAX_REMEMBERED else encoded(name, value)


_trailer_code: Final = EncodedLines(frozenset()).__getitem__


def block_code(block: bytes) -> bytes:
    """The lines of a block of HTTP/1 (model/fields), which is not empty, as trailers in HPACK."""
    return b"".join(map(_trailer_code, block.split(b"\r\n")[1:]))


def _prefixed(value: int, prefix: int, flags: int) -> bytes:
    """An integer in so many bits of its first byte, beside these flags (RFC 7541 section 5.1)."""
    if value < prefix:
        return bytes((flags | value,))
    value -= prefix
    encoded = bytearray((flags | prefix,))
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
