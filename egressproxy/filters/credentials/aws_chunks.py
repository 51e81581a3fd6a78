"""Bodies that a client of S3 sends in signed chunks: each signature is replaced by one of our key, of the same length.

Source: AWS, "Signature calculations for the Authorization header: transferring payload in multiple chunks", and its
variant with trailing headers.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from egressproxy.filters.credentials.aws_signature import EMPTY_SHA256, SigV4

#: The largest chunk that is held: a chunk's signature goes before it.
MAX_CHUNK_BYTES: Final = 8 * 1024 * 1024
_MAX_LINE: Final = 8192
_HEADER: Final = re.compile(rb"([0-9a-fA-F]{1,8});chunk-signature=[0-9a-f]{64}")
_TRAILER_SIGNATURE: Final = re.compile(rb"x-amz-trailer-signature:[0-9a-f]{64}", re.IGNORECASE)


class ChunkError(ValueError):
    """A body is not what aws-chunked says."""


class ChunkSigner:
    """Signs the chunks of one body anew. `seed` is the signature of the head, `time` that of X-Amz-Date."""

    __slots__ = ("_before", "_buffer", "_has_trailers", "_signer", "_state", "_time", "_trailers")

    def __init__(self, signer: SigV4, time: bytes, seed: bytes, *, has_trailers: bool) -> None:
        self._signer = signer
        self._time = time
        self._before = seed
        self._has_trailers = has_trailers
        self._buffer = bytearray()  # a chunk may come in many pieces: none copies those before it
        self._trailers: list[bytes] = []
        self._state = "chunk"  # then "trailers", then "end"

    @property
    def held_bytes(self) -> int:
        """What has come of a chunk that is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes, last: bool) -> bytes:
        """A piece of the body; what goes on instead. Raises ChunkError."""
        self._buffer += data
        done = []
        while (part := self._next()) is not None:
            done.append(part)
        if last and (self._buffer or self._state != "end"):
            raise ChunkError("the body breaks off within a chunk")
        return b"".join(done)

    def _next(self) -> bytes | None:
        """The next part that is whole; None: there is none yet."""
        if self._state == "end":
            if self._buffer:
                raise ChunkError("bytes follow the last chunk")
            return None
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_LINE:
                raise ChunkError("a line is too long")
            return None
        line = bytes(self._buffer[:end])
        return self._chunk(line, end + 2) if self._state == "chunk" else self._trailer(line, end + 2)

    def _chunk(self, line: bytes, begins: int) -> bytes | None:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise ChunkError("a chunk has no size and signature")
        size = int(header[1], 16)
        if size > MAX_CHUNK_BYTES:
            raise ChunkError(f"a chunk has more than {MAX_CHUNK_BYTES} bytes")
        ends = begins + size
        if size == 0 and self._has_trailers:
            self._state = "trailers"
            del self._buffer[:begins]
            return b"%s;chunk-signature=%s\r\n" % (header[1], self._signed(b""))
        if len(self._buffer) < ends + 2:
            return None
        data = bytes(self._buffer[begins:ends])
        if self._buffer[ends : ends + 2] != b"\r\n":
            raise ChunkError("a chunk does not end where it says")
        del self._buffer[: ends + 2]
        if size == 0:
            self._state = "end"
        return b"%s;chunk-signature=%s\r\n%s\r\n" % (header[1], self._signed(data), data)

    def _trailer(self, line: bytes, begins: int) -> bytes:
        del self._buffer[:begins]
        if not line:
            self._state = "end"
            return b"\r\n"
        if not _TRAILER_SIGNATURE.fullmatch(line):
            self._trailers.append(line)
            if len(self._trailers) > 32:
                raise ChunkError("there are too many trailers")
            return line + b"\r\n"
        pairs = [trailer.partition(b":")[::2] for trailer in self._trailers]
        canonical = b"".join(b"%s:%s\n" % (name.lower().strip(), value.strip()) for name, value in sorted(pairs))
        return b"x-amz-trailer-signature:%s\r\n" % self._sign(b"AWS4-HMAC-SHA256-TRAILER", _sha256(canonical))

    def _signed(self, data: bytes) -> bytes:
        return self._sign(b"AWS4-HMAC-SHA256-PAYLOAD", EMPTY_SHA256, _sha256(data))

    def _sign(self, algorithm: bytes, *hashes: bytes) -> bytes:
        scope = self._signer.scope(self._time)
        text = b"\n".join((algorithm, self._time, scope, self._before, *hashes))
        self._before = self._signer.sign(text, self._time)
        return self._before


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
