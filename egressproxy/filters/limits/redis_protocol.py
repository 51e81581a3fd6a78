"""What is said to a Redis and by it: commands to bytes, bytes to replies. Source: its protocol (RESP2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: Bytes of one reply, and entries of one array: ours are far below.
MAX_REPLY: Final = 1024 * 1024
MAX_ENTRIES: Final = 4096


class ReplyError(Exception):
    """What a Redis says in place of a reply. `code` is its first word: NOSCRIPT, WRONGPASS, LOADING."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


Reply = bytes | int | ReplyError | list["Reply"] | None


def command(words: Iterable[bytes]) -> bytes:
    """A command, as an array of bulk strings."""
    parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


class _Incomplete(Exception):
    """More bytes are needed."""


class ReplyReader:
    """Bytes to replies. Must not be fed again after an error."""

    __slots__ = ("_at", "_buffer")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that end in these bytes. Raises ValueError for what is none."""
        self._buffer += data
        replies: list[Reply] = []
        begin = 0
        while begin < len(self._buffer):
            self._at = begin
            try:
                replies.append(self._reply())
            except RecursionError:
                raise ValueError("a reply is nested too deeply") from None
            except _Incomplete:
                if len(self._buffer) - begin > MAX_REPLY:
                    raise ValueError("a reply is too long") from None
                break
            begin = self._at
        del self._buffer[:begin]
        return replies

    def _reply(self) -> Reply:
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ReplyError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            length = int(rest)
            if length > MAX_ENTRIES:
                raise ValueError("a reply has too many entries")
            return None if length < 0 else [self._reply() for _ in range(length)]
        raise ValueError("this is no reply of a Redis")

    def _line(self) -> bytes:
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            raise _Incomplete
        line = bytes(self._buffer[self._at : end])
        self._at = end + 2
        return line

    def _bulk(self, length: int) -> bytes | None:
        if length < 0:
            return None
        if length > MAX_REPLY:
            raise ValueError("a reply is too long")
        end = self._at + length
        if len(self._buffer) < end + 2:
            raise _Incomplete
        said = bytes(self._buffer[self._at : end])
        self._at = end + 2
        return said
