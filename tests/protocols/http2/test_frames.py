from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.protocols.http2.frames import SETTINGS, FrameReader, RemoteProtocolError


def frame(kind: int, payload: bytes, stream: int = 0, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


FRAMES = st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=60))


@given(st.lists(FRAMES), st.lists(st.integers(1, 20)))
def test_frames_come_out_whole_however_they_came(written: list[tuple[int, int, int, bytes]], cuts: list[int]):
    written = [(SETTINGS, 0, 0, b""), *written]
    data = b"".join(frame(kind, payload, stream, flags) for kind, flags, stream, payload in written)
    frames = [(kind, flags, stream & 0x7FFF_FFFF, payload) for kind, flags, stream, payload in written]
    reader, got = FrameReader(), []
    for cut in [*cuts, len(data)]:
        reader.feed(data[:cut])
        data = data[cut:]
        while reader.next():
            got.append((reader.kind, reader.flags, reader.stream_id, reader.payload))
    assert got == frames


def test_a_frame_that_is_too_long_is_refused_by_its_header():
    reader = FrameReader()
    reader.feed(frame(SETTINGS, b"") + b"\x00\x40\x01\x00\x00\x00\x00\x00\x01")
    assert reader.next()
    with pytest.raises(RemoteProtocolError):
        reader.next()


@pytest.mark.parametrize("said", [frame(6, bytes(8)), b"HTTP/1.1 400 Bad Request\r\n"])
def test_the_first_frame_is_settings(said: bytes):
    reader = FrameReader()
    reader.feed(said)
    with pytest.raises(RemoteProtocolError, match="the first frame is not SETTINGS"):
        reader.next()
