"""Settings of an HTTP/2 connection: what we announce, and what the peer has announced (RFC 9113 section 6.5.2)."""

from __future__ import annotations

from struct import Struct
from typing import Final

from h2.errors import ErrorCodes

from egressproxy.protocols.http2.frames import SETTINGS, RemoteProtocolError, frame_header

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
ENABLE_CONNECT_PROTOCOL: Final = 8  # RFC 8441 section 3

#: Streams that a peer may have open at a time.
MAX_STREAMS: Final = 100
#: Bytes that a peer may send on a stream before somebody has read them.
STREAM_WINDOW: Final = 256 * 1024
#: Bytes that an endpoint may send, on a stream and on a connection, before it knows better (RFC 9113 section 6.9.2).
DEFAULT_WINDOW: Final = 65535
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_TABLE_SIZE: Final = 4096
#: A peer without a setting of MAX_CONCURRENT_STREAMS takes any number.
UNLIMITED: Final = 2**32
_setting = Struct(">HL")
_pack, _unpack = _setting.pack, _setting.iter_unpack


def local_settings(*, client_side: bool, max_list_size: int, extended_connect: bool) -> bytes:
    """Our SETTINGS frame. `max_list_size`: bytes of a field list, with 32 for each field.

    The default size of the table is in it: nginx tells those that name a size, and nobody else, that its own table is
    empty, and its blocks then mean the same each time (`field_coding`).
    """
    settings = [
        (HEADER_TABLE_SIZE, DEFAULT_TABLE_SIZE),
        (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
        (MAX_HEADER_LIST_SIZE, max_list_size),
    ]
    settings.append((ENABLE_PUSH, 0) if client_side else (MAX_CONCURRENT_STREAMS, MAX_STREAMS))
    if extended_connect:
        settings.append((ENABLE_CONNECT_PROTOCOL, 1))
    payload = b"".join([_pack(code, value) for code, value in settings])
    return frame_header(SETTINGS, 0, 0, len(payload)) + payload


class PeerSettings:
    """The settings of the peer that concern what we send. The others are checked, and unknown ones ignored.

    MAX_FRAME_SIZE is not kept: no frame of ours is longer than the least that a peer may allow. Nor is
    HEADER_TABLE_SIZE: our encoder uses no table.
    """

    __slots__ = ("enables_connect_protocol", "initial_window", "max_streams")

    def __init__(self) -> None:
        self.initial_window = DEFAULT_WINDOW
        self.max_streams = UNLIMITED
        self.enables_connect_protocol = False

    def apply(self, payload: bytes, *, is_server: bool) -> None:
        """The payload of a SETTINGS frame, whole settings. `is_server`: the peer is one. Raises RemoteProtocolError."""
        for code, value in _unpack(payload):
            if code == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise RemoteProtocolError("an initial window beyond 2^31 - 1", ErrorCodes.FLOW_CONTROL_ERROR)
                self.initial_window = value
            elif code == MAX_CONCURRENT_STREAMS:
                self.max_streams = value
            elif code == ENABLE_CONNECT_PROTOCOL:
                if value > 1:
                    raise RemoteProtocolError(f"SETTINGS_ENABLE_CONNECT_PROTOCOL is {value}")
                self.enables_connect_protocol = value == 1
            elif code == ENABLE_PUSH:
                if value > (0 if is_server else 1):
                    raise RemoteProtocolError(f"SETTINGS_ENABLE_PUSH is {value}")
            elif code == MAX_FRAME_SIZE and not 2**14 <= value < 2**24:
                raise RemoteProtocolError(f"SETTINGS_MAX_FRAME_SIZE is {value}")
