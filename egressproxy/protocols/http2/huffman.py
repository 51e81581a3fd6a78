"""The Huffman code of HPACK, a byte at a time: hpack's own decoder takes four bits, and looks at flags for each.

What a byte means behind others is worked out from hpack's table when it first comes. Source: RFC 7541 section 5.2.
"""

from __future__ import annotations

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE

#: Of 65,536 that there are; what people write needs some thousand.
MAX_STEPS = 8192

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


_STEPS = _Steps()


def decoded(text: bytes) -> bytes:
    """What the code says. Raises HPACKDecodingError."""
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
