"""aws-chunked: the Content-Encoding with which clients of S3 send bodies in chunks of their own, signed or not. It is
undone for filters that only read; nothing is coded in it again (`credentials/aws_chunks` signs its chunks anew).

Source: AWS, "Signature calculations for the Authorization header: transferring payload in multiple chunks", and its
variants with trailing headers and without signatures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

AWS_CHUNKED: Final = b"aws-chunked"
#: Of a chunk's size and signature (that of SigV4A is filled up with asterisks), and of a trailer.
_MAX_LINE: Final = 8192
_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=[0-9a-f]{64,160}\**)?")
_MAX_TRAILERS: Final = 32


class MalformedChunks(ValueError):
    """A body is not what aws-chunked says."""


@dataclass(slots=True, eq=False, repr=False)
class AwsChunks:
    """Reads one body. `trailers` are the lines behind the last chunk, as far as they have come."""

    _rest: bytes = b""  # of a line that is not whole yet
    _left: int = 0  # bytes of the chunk
    _wants_end: bool = False  # of the line behind a chunk
    _lines: int = -1  # behind the last chunk; -1: that is still to come
    is_over: bool = False
    trailers: bytes = b""

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        """What the chunks hold that this piece brings, and what follows the end. Raises MalformedChunks."""
        data = self._rest + data
        self._rest = b""
        found, at = [], 0
        while not self.is_over:
            if self._left:
                part = data[at : at + self._left]
                found.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._wants_end = True
            end = data.find(b"\r\n", at, at + _MAX_LINE)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) >= _MAX_LINE:
                    raise MalformedChunks("a line is too long")
                return b"".join(found), b""
            self._take_line(data[at:end])
            at = end + 2
        return b"".join(found), data[at:]

    def _take_line(self, line: bytes) -> None:
        if self._wants_end:
            if line:
                raise MalformedChunks("a chunk does not end where it says")
            self._wants_end = False
        elif self._lines >= 0:
            self.is_over = not line
            self._lines += 1
            if self._lines > _MAX_TRAILERS:
                raise MalformedChunks("there are too many trailers")
            self.trailers += line + b"\n"
        else:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise MalformedChunks("a chunk has no size, or no signature")
            self._left = int(size[1], 16)
            if not self._left:
                self._lines = 0
