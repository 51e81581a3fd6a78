"""FrameReader: bytes of one side of a WebSocket to whole messages and control frames. `frame` writes one.

Strict: what RFC 6455 forbids raises WebSocketFault, with the code that the connection closes with. Compressed messages
stay compressed: `deflate` undoes that, in turns.

Source: RFC 6455 sections 5 and 7.4; RFC 7692 section 6 (RSV1).
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple


class Opcode:
    """RFC 6455 section 5.2."""

    CONTINUATION: Final = 0
    TEXT: Final = 1
    BINARY: Final = 2
    CLOSE: Final = 8
    PING: Final = 9
    PONG: Final = 10


class CloseCode:
    """RFC 6455 section 7.4.1, and IANA's registry of close codes."""

    NORMAL: Final = 1000
    GOING_AWAY: Final = 1001
    PROTOCOL_ERROR: Final = 1002
    UNSUPPORTED: Final = 1003
    INVALID_DATA: Final = 1007
    POLICY: Final = 1008
    TOO_BIG: Final = 1009
    INTERNAL: Final = 1011
    SERVICE_RESTART: Final = 1012
    TRY_LATER: Final = 1013
    BAD_GATEWAY: Final = 1014


_DATA: Final = frozenset((Opcode.TEXT, Opcode.BINARY))
_CONTROL: Final = frozenset((Opcode.CLOSE, Opcode.PING, Opcode.PONG))
#: Codes that a Close frame may have: the others are reserved, or of no frame (RFC 6455 section 7.4).
_SENDABLE: Final = frozenset((*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)))
#: The longest payload of a control frame, and reason of a Close frame, in bytes.
_MAX_CONTROL: Final = 125
MAX_REASON: Final = _MAX_CONTROL - 2
#: Frames of one message: each costs time, and may be empty.
MAX_FRAGMENTS: Final = 10_000
_MASK_BYTES: Final = 4


class WebSocketFault(Exception):
    """A side breaks the protocol, or a limit. `code`: that of the Close frame."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class WebSocketEvent(NamedTuple):
    """A whole message (TEXT, BINARY), or a control frame. The data of one that `is_deflated` is compressed."""

    opcode: int
    data: bytes
    is_deflated: bool = False


class FrameReader:
    """Reads the frames of one side. `is_masked`: as a client's are; `deflates`: permessage-deflate was agreed on."""

    __slots__ = (
        "_deflates", "_fragments", "_head", "_is_deflated", "_is_masked", "_left", "_mask", "_max", "_message",
        "_opcode", "_payload", "_state_is_last", "_state_opcode", "is_closed",
    )  # fmt: skip

    def __init__(self, *, is_masked: bool, deflates: bool, max_message: int) -> None:
        self._is_masked = is_masked
        self._deflates = deflates
        self._max = max_message
        self._head = bytearray()  # of a frame, while it is not whole
        self._left = -1  # bytes to come of the payload of the frame under way; -1: there is none
        self._mask = b""
        self._payload = bytearray()  # of a control frame
        self._state_opcode = 0  # of the frame under way
        self._state_is_last = False
        self._opcode = 0  # of the message under way; 0: there is none
        self._is_deflated = False
        self._message = bytearray()
        self._fragments = 0
        self.is_closed = False  # a Close frame has come: what follows it is ignored (section 5.5.1)

    @property
    def held(self) -> int:
        """The bytes of the incomplete message."""
        return len(self._message)

    def feed(self, data: bytes) -> list[WebSocketEvent]:
        """What is whole with these bytes. Raises WebSocketFault; do not feed again then."""
        events: list[WebSocketEvent] = []
        view, at, end = memoryview(data), 0, len(data)
        while at < end or self._left == 0:
            if self.is_closed:
                break
            if self._left < 0:
                at = self._take_head(view, at)
                continue
            taken = min(self._left, end - at)
            if taken:
                self._take_payload(bytes(view[at : at + taken]))
                at += taken
            if not self._left:
                self._left = -1
                event = self._end_frame()
                if event is not None:
                    events.append(event)
        return events

    # --- heads -----------------------------------------------------------------------------------------------------
    def _take_head(self, view: memoryview, at: int) -> int:
        """Take bytes of the head, up to its end. Returns the position behind the taken bytes."""
        head = self._head
        while at < len(view):
            missing = self._head_length() - len(head)
            head += view[at : at + missing]
            at = min(at + missing, len(view))
            if len(head) == self._head_length() and len(head) >= 2:
                self._begin_frame(bytes(head))
                head.clear()
                return at
        return at

    def _head_length(self) -> int:
        if len(self._head) < 2:
            return 2
        length = self._head[1] & 0x7F
        more = 8 if length == 127 else 2 if length == 126 else 0
        return 2 + more + (_MASK_BYTES if self._head[1] & 0x80 else 0)

    def _begin_frame(self, head: bytes) -> None:
        is_last, reserved, opcode = bool(head[0] & 0x80), head[0] & 0x70, head[0] & 0x0F
        is_masked = bool(head[1] & 0x80)
        mask = head[-_MASK_BYTES:] if is_masked else b""
        extended = head[2 : len(head) - len(mask)]
        length = int.from_bytes(extended, "big") if extended else head[1] & 0x7F
        if is_masked != self._is_masked:
            raise _error("a frame of a client is not masked" if self._is_masked else "a frame of a server is masked")
        if (len(extended) == 2 and length < 126) or (len(extended) == 8 and not 0xFFFF < length < 1 << 63):
            raise _error("the length of a frame is not written in the shortest way")
        if opcode in _CONTROL:
            if not is_last or length > _MAX_CONTROL or reserved:
                raise _error("a control frame is in parts, longer than 125 bytes, or has reserved bits")
        elif opcode in _DATA or opcode == Opcode.CONTINUATION:
            self._begin_data(opcode, reserved, length)
        else:
            raise _error(f"the opcode {opcode} is unknown")
        self._state_opcode, self._state_is_last = opcode, is_last
        self._mask, self._left = mask, length

    def _begin_data(self, opcode: int, reserved: int, length: int) -> None:
        if (opcode == Opcode.CONTINUATION) is not bool(self._opcode):
            raise _error("a message begins inside of another, or goes on without a beginning")
        is_first = opcode != Opcode.CONTINUATION
        if reserved and not (reserved == 0x40 and is_first and self._deflates):
            raise _error("a frame has reserved bits that nobody has agreed on")
        if is_first:
            self._opcode, self._is_deflated, self._fragments = opcode, bool(reserved), 0
        self._fragments += 1
        if len(self._message) + length > self._max:
            raise too_big(self._max)
        if self._fragments > MAX_FRAGMENTS:
            raise WebSocketFault(CloseCode.POLICY, f"a message has more than {MAX_FRAGMENTS} frames")

    # --- payloads --------------------------------------------------------------------------------------------------
    def _take_payload(self, data: bytes) -> None:
        if self._mask:
            data = masked(data, self._mask)
            turn = len(data) % _MASK_BYTES
            self._mask = self._mask[turn:] + self._mask[:turn]
        self._left -= len(data)
        if self._state_opcode in _CONTROL:
            self._payload += data
        else:
            self._message += data

    def _end_frame(self) -> WebSocketEvent | None:
        opcode = self._state_opcode
        if opcode in _CONTROL:
            payload = bytes(self._payload)
            self._payload.clear()
            if opcode == Opcode.CLOSE:
                _check_close(payload)
                self.is_closed = True
            return WebSocketEvent(opcode, payload)
        if not self._state_is_last:
            return None
        event = WebSocketEvent(self._opcode, bytes(self._message), self._is_deflated)
        self._message = bytearray()  # a cleared one keeps its memory
        self._opcode = 0
        return event


def masked(data: bytes, mask: bytes) -> bytes:
    """The bytes masked with these four, or unmasked (RFC 6455 section 5.3)."""
    size = len(data)
    repeated = (mask * (size // _MASK_BYTES + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(repeated, "little")).to_bytes(size, "little")


def frame(opcode: int, payload: bytes, *, masks: bool) -> bytes:
    """A whole frame, as a client sends it if it `masks`."""
    size, bit = len(payload), 0x80 if masks else 0
    if size < 126:
        head = bytes((0x80 | opcode, bit | size))
    elif size <= 0xFFFF:
        head = bytes((0x80 | opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, bit | 127)) + size.to_bytes(8, "big")
    if not masks:
        return head + payload
    mask = os.urandom(_MASK_BYTES)
    return head + mask + masked(payload, mask)


def close_payload(code: int, reason: str = "") -> bytes:
    """The payload of a Close frame; the reason is cut to MAX_REASON bytes."""
    return code.to_bytes(2, "big") + reason.encode()[:MAX_REASON].decode("utf-8", "ignore").encode()


def text_of(data: bytes, opcode: int = Opcode.TEXT) -> bytes:
    """The data of a text message. Raises WebSocketFault: 1003 for a binary one, 1007 where it is not UTF-8 (RFC 6455
    section 8.1).
    """
    if opcode != Opcode.TEXT:
        raise WebSocketFault(CloseCode.UNSUPPORTED, "only text messages are understood here")
    try:
        data.decode()
    except UnicodeDecodeError:
        raise WebSocketFault(CloseCode.INVALID_DATA, "a text message is not UTF-8") from None
    return data


def too_big(limit: int) -> WebSocketFault:
    """The fault of a message of more than `limit` bytes."""
    return WebSocketFault(CloseCode.TOO_BIG, f"a message is longer than the {limit} bytes that are read here")


def _check_close(payload: bytes) -> None:
    if not payload:
        return
    if len(payload) < 2 or int.from_bytes(payload[:2], "big") not in _SENDABLE:
        raise _error("a Close frame has no code that may be sent")
    text_of(payload[2:])


def _error(message: str) -> WebSocketFault:
    return WebSocketFault(CloseCode.PROTOCOL_ERROR, message)
