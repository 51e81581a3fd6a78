"""Inflater: messages under permessage-deflate, inflated within a bound.

The gateway deflates nothing: under the extension each message may also go as it is (RFC 7692 section 6).
"""

from __future__ import annotations

import zlib
from typing import Final

from egressproxy.model.work import Work
from egressproxy.protocols.websocket.frames import CloseCode, WebSocketFault, too_big

#: Raw deflate of the largest window, which reads all smaller ones, too.
_RAW: Final = -15
#: The end that a sender removes from each message (RFC 7692 section 7.2.1).
_TAIL: Final = b"\x00\x00\xff\xff"
#: Bytes that are inflated in one go, at most.
_PIECE: Final = 64 * 1024
#: Bytes that are read in one go: a block of no content costs time, too.
_INPUT: Final = 16 * 1024
#: Last blocks of one message: each costs as much as a new stream.
MAX_LAST_BLOCKS: Final = 1000


class Inflater:
    """Inflates the messages of one side; a message may refer to earlier ones."""

    __slots__ = ("_inflating", "_max")

    def __init__(self, max_message: int) -> None:
        self._max = max_message
        self._inflating = zlib.decompressobj(_RAW)

    def inflate(self, data: bytes) -> Work[bytes]:
        """The message, in turns. Raises WebSocketFault: 1009 for a long message, 1007 for broken data."""
        made, size, blocks, whole = list[bytes](), 0, 0, data + _TAIL
        for at in range(0, len(whole), _INPUT):
            rest = whole[at : at + _INPUT]
            while True:
                try:
                    piece = self._inflating.decompress(rest, _PIECE)
                except zlib.error:
                    raise WebSocketFault(CloseCode.INVALID_DATA, "a message cannot be inflated") from None
                rest = self._inflating.unconsumed_tail
                size += len(piece)
                if size > self._max:
                    raise too_big(self._max)
                made.append(piece)
                if self._inflating.eof:  # a last block is no end of the message (RFC 7692 section 7.2.3.4)
                    blocks += 1
                    if blocks > MAX_LAST_BLOCKS:
                        raise WebSocketFault(CloseCode.POLICY, f"a message has more than {MAX_LAST_BLOCKS} last blocks")
                    rest, self._inflating = self._inflating.unused_data, zlib.decompressobj(_RAW)
                elif not rest and len(piece) < _PIECE:
                    break
                yield
            yield
        return b"".join(made)
