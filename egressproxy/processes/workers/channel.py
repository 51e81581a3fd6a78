"""FrameChannel: one end of a pair of Unix sockets, which carry frames of bytes and descriptors both ways.

A frame is its length, the number of its descriptors, and its payload. Descriptors travel with the first byte of their
frame (SCM_RIGHTS), so they have arrived when its head is read. Writes never block: unsent bytes are buffered.

The loader (`processes.loader.process`) has no frames: each request has its own pipes to a process that ends with the
answer. So the end of a pipe is the end of the message, and a dying fork cannot corrupt the next one.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

_HEAD: Final = struct.Struct("!IB")
_READ_BYTES: Final = 256 * 1024
#: The kernel's bound is 253 in one call; we send one.
_MAX_DESCRIPTORS: Final = 16


class FrameChannel:
    """Owns the socket. `on_frame(payload, descriptors)` is called for each frame, and owns the descriptors. `on_end` is
    called once, at the end of the peer or after an invalid frame.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[bytes, list[int]], None],
        on_end: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._waiting: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._is_open = True
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def has_ended(self) -> bool:
        return not self._is_open

    def send(self, payload: bytes, descriptors: Sequence[int] = ()) -> None:
        """Descriptors are duplicated: they may be closed when this returns. On a channel that has ended: nothing."""
        if not self._is_open:
            return
        mine = [os.dup(descriptor) for descriptor in descriptors]
        self._waiting.append((memoryview(_HEAD.pack(len(payload), len(mine))), mine))
        self._waiting.append((memoryview(payload), ()))
        if len(self._waiting) == 2:
            self._write()

    def close(self) -> None:
        """Close without calling `on_end`."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._forget_waiting()
        _close(self._descriptors)

    def _readable(self) -> None:
        try:  # not socket.recv_fds, which passes no flags on (CPython 3.11): what it gives is inherited by children
            received, ancillary, flags, _ = self._sock.recvmsg(
                _READ_BYTES, socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            received, ancillary, flags = b"", [], 0
        for level, kind, packed in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(packed[: len(packed) - len(packed) % found.itemsize])
                self._descriptors.extend(found)
        if not received or flags & socket.MSG_CTRUNC:
            self._end()
            return
        self._received += received
        self._take_frames()

    def _take_frames(self) -> None:
        start = 0
        received = self._received
        try:
            while self._is_open and len(received) - start >= _HEAD.size:
                length, count = _HEAD.unpack_from(received, start)
                end = start + _HEAD.size + length
                if len(received) < end:
                    break
                if count > len(self._descriptors):
                    self._end()
                    return
                descriptors = [self._descriptors.popleft() for _ in range(count)]
                payload = bytes(memoryview(received)[start + _HEAD.size : end])
                start = end
                self._on_frame(payload, descriptors)
        except BaseException:  # what it says cannot be understood: each frame is read once
            self._end()
            raise
        del received[:start]

    def _write(self) -> None:
        while self._waiting:
            rest, descriptors = self._waiting[0]
            try:
                sent = socket.send_fds(self._sock, [rest], list(descriptors)) if descriptors else self._sock.send(rest)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._write)
                return
            except OSError:  # the peer is gone; its last bytes are read before the end
                self._forget_waiting()
                break
            _close(descriptors)
            if sent < len(rest):
                self._waiting[0] = (rest[sent:], ())
            else:
                self._waiting.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _forget_waiting(self) -> None:
        for _, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()

    def _end(self) -> None:
        if self._is_open:
            self.close()
            self._loop.call_soon(self._on_end)


def _close(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
