"""Frames of WebSockets: what RFC 6455 and 7692 allow is read however it is cut, and everything else has its code."""

from __future__ import annotations

import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis.strategies import binary, booleans, integers, lists, sampled_from

from egressproxy.model.fields import Fields
from egressproxy.model.websocket_extensions import EXTENSIONS, UnknownExtension, agrees_on_deflate, narrow_offers
from egressproxy.model.work import at_once
from egressproxy.protocols.websocket import frames
from egressproxy.protocols.websocket.deflate import MAX_LAST_BLOCKS, Inflater
from egressproxy.protocols.websocket.frames import (
    CloseCode,
    FrameReader,
    Opcode,
    WebSocketEvent,
    WebSocketFault,
    close_payload,
    frame,
    masked,
    text_of,
)
from tests.support.properties import examples

MASK = b"\x37\xfa\x21\x3d"


def reader(*, is_masked: bool = False, deflates: bool = False, max_message: int = 1000) -> FrameReader:
    return FrameReader(is_masked=is_masked, deflates=deflates, max_message=max_message)


def code_of(data: bytes, **settings: bool | int) -> int:
    with pytest.raises(WebSocketFault) as caught:
        reader(**settings).feed(data)  # type: ignore[arg-type]
    return caught.value.code


def part(opcode: int, payload: bytes, *, is_last: bool) -> bytes:
    return bytes(((0x80 if is_last else 0) | opcode, len(payload))) + payload


# RFC 6455 section 5.7
@pytest.mark.parametrize(
    ("data", "is_masked", "event"),
    [
        (b"\x81\x05Hello", False, WebSocketEvent(Opcode.TEXT, b"Hello")),
        (b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", True, WebSocketEvent(Opcode.TEXT, b"Hello")),
        (b"\x01\x03Hel\x80\x02lo", False, WebSocketEvent(Opcode.TEXT, b"Hello")),
        (b"\x89\x05Hello", False, WebSocketEvent(Opcode.PING, b"Hello")),
        (b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", True, WebSocketEvent(Opcode.PONG, b"Hello")),
        (b"\x82\x7e\x01\x00" + bytes(256), False, WebSocketEvent(Opcode.BINARY, bytes(256))),
        (b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00" + bytes(65536), False,
         WebSocketEvent(Opcode.BINARY, bytes(65536))),
    ],
)  # fmt: skip
def test_the_examples_of_the_rfc(data: bytes, is_masked: bool, event: WebSocketEvent):
    assert reader(is_masked=is_masked, max_message=65536).feed(data) == [event]


# RFC 7692 section 7.2.3
@pytest.mark.parametrize(
    "payloads",
    [
        ["f248cdc9c90700"],
        ["f248cdc9c90700", "f200110000"],
        ["f248cdc9c90700", "f248cdc9c90700"],
        ["000500faff48656c6c6f00"],
        ["f348cdc9c9070000"],
        ["f248050000 00ffffcac9c90700"],
    ],
    ids=["one", "the window is shared", "the window is not shared", "stored", "a last block", "two blocks"],
)
def test_the_compressed_examples_of_the_rfc(payloads: list[str]):
    inflater = Inflater(100)
    for payload in payloads:
        assert at_once(inflater.inflate(bytes.fromhex(payload))) == b"Hello"


@given(
    lists(binary(max_size=300), min_size=1, max_size=5),
    lists(integers(1, 50), min_size=1, max_size=30),
    booleans(),
    sampled_from([Opcode.TEXT, Opcode.BINARY]),
)
@settings(max_examples=examples(150))
def test_messages_are_the_same_however_they_are_cut(
    messages: list[bytes], cuts: list[int], is_masked: bool, opcode: int
):
    ping = frame(Opcode.PING, b"p", masks=is_masked)
    data = ping.join(frame(opcode, message, masks=is_masked) for message in messages)
    one, found, at = reader(is_masked=is_masked), [], 0
    while at < len(data):
        size = cuts[at % len(cuts)]
        found += one.feed(data[at : at + size])
        at += size
    assert [event for event in found if event.opcode == opcode] == [WebSocketEvent(opcode, each) for each in messages]
    assert len(found) == 2 * len(messages) - 1
    assert one.held == 0


@given(lists(binary(max_size=5000), min_size=1, max_size=5), booleans())
@settings(max_examples=examples(100))
def test_what_is_deflated_is_inflated(messages: list[bytes], takes_over: bool):
    inflater, deflating = Inflater(5000), zlib.compressobj(wbits=-15)
    for message in messages:
        if not takes_over:
            deflating = zlib.compressobj(wbits=-15)
        data = deflating.compress(message) + deflating.flush(zlib.Z_SYNC_FLUSH)
        assert at_once(inflater.inflate(data[:-4])) == message


def test_last_blocks_of_a_message_are_limited():
    """Two bytes each; every one copies what is left of the message."""
    assert at_once(Inflater(1000).inflate(b"\x03\x00" * MAX_LAST_BLOCKS)) == b""
    with pytest.raises(WebSocketFault) as raised:
        at_once(Inflater(1000).inflate(b"\x03\x00" * (MAX_LAST_BLOCKS + 1)))
    assert raised.value.code == CloseCode.POLICY


def test_blocks_without_content_are_read_in_turns():
    size = 1024 * 1024
    turns = sum(1 for _ in Inflater(1000).inflate(b"\x00\x00\x00\xff\xff" * (size // 5)))
    assert turns >= size // (64 * 1024)


@given(binary(max_size=200))
@settings(max_examples=examples(300))
def test_no_bytes_raise_anything_else(data: bytes):
    for is_masked in (False, True):
        with suppress(WebSocketFault):
            reader(is_masked=is_masked, deflates=True).feed(data)
    with suppress(WebSocketFault):
        at_once(Inflater(1000).inflate(data))


@given(binary(max_size=100))
def test_a_mask_is_undone_by_itself(data: bytes):
    assert masked(masked(data, MASK), MASK) == data


@pytest.mark.parametrize(
    "data",
    [
        b"\x83\x00", b"\x8b\x00", b"\xc1\x00", b"\xa1\x00", b"\x91\x00",  # opcodes, reserved bits
        b"\x09\x00", b"\x89\x7e\x00\x7e" + bytes(126), b"\xc9\x00",  # control frames
        b"\x80\x00", b"\x01\x00\x81\x00",  # a continuation of nothing, a message inside of another
        b"\x82\x7e\x00\x7d" + bytes(125), b"\x82\x7f" + (65535).to_bytes(8, "big"),  # not the shortest length
        b"\x82\x7f" + (1 << 63).to_bytes(8, "big"),
        b"\x88\x01\x03", b"\x88\x02\x03\xed", b"\x88\x02\x03\xe7", b"\x88\x02\x0b\xb7",  # codes of Close frames
        b"\x81\x80" + MASK,  # masked by a server
    ],
)  # fmt: skip
def test_what_the_rfc_forbids_is_a_protocol_error(data: bytes):
    assert code_of(data) == CloseCode.PROTOCOL_ERROR


def test_a_client_has_to_mask():
    assert code_of(b"\x81\x00", is_masked=True) == CloseCode.PROTOCOL_ERROR


def test_a_long_message_is_refused_before_it_is_here():
    assert code_of(b"\x82\x7e\x03\xe9", max_message=1000) == CloseCode.TOO_BIG
    assert code_of(part(Opcode.TEXT, bytes(100), is_last=False) + b"\x80\x02", max_message=101) == CloseCode.TOO_BIG


def test_the_frames_of_a_message_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MAX_FRAGMENTS", 3)
    begins, goes_on = part(Opcode.TEXT, b"", is_last=False), part(Opcode.CONTINUATION, b"", is_last=False)
    assert reader().feed(begins + 2 * goes_on) == []
    assert code_of(begins + 3 * goes_on) == CloseCode.POLICY


def test_only_the_first_frame_says_that_a_message_is_compressed():
    one = reader(deflates=True)
    assert one.feed(b"\x41\x01a\x80\x01b") == [WebSocketEvent(Opcode.TEXT, b"ab", True)]
    assert one.feed(b"\x81\x01a") == [WebSocketEvent(Opcode.TEXT, b"a", False)]
    assert code_of(b"\x41\x01a\xc0\x01b", deflates=True) == CloseCode.PROTOCOL_ERROR


def test_nothing_is_read_behind_a_close_frame():
    one = reader()
    assert one.feed(b"\x88\x02\x03\xe8\x81\x01a") == [WebSocketEvent(Opcode.CLOSE, b"\x03\xe8")]
    assert one.feed(b"\xff\xff\xff") == []


def test_the_reason_of_a_close_frame_is_text_and_fits():
    assert code_of(b"\x88\x03\x03\xe8\xff") == CloseCode.INVALID_DATA
    payload = close_payload(1008, "ä" * 100)
    assert len(payload) == 124  # no half of a character
    assert reader().feed(frame(Opcode.CLOSE, payload, masks=False))[0].data == payload


@pytest.mark.parametrize(("opcode", "code"), [(Opcode.BINARY, CloseCode.UNSUPPORTED), (Opcode.TEXT, 1007)])
def test_messages_are_text(opcode: int, code: int):
    with pytest.raises(WebSocketFault) as caught:
        text_of(b"\xed\xa0\x80", opcode)
    assert caught.value.code == code


@pytest.mark.parametrize("size", [1001, 10_000_000])
def test_inflation_is_bounded(size: int):
    deflating = zlib.compressobj(9, wbits=-15)
    data = deflating.compress(bytes(size)) + deflating.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(WebSocketFault) as caught:
        at_once(Inflater(1000).inflate(data[:-4]))
    assert caught.value.code == CloseCode.TOO_BIG


# --- the handshake -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("offers", "left"),
    [
        ([b"permessage-deflate"], b"permessage-deflate"),
        ([b"x, permessage-deflate; client_max_window_bits; server_max_window_bits=10", b"PerMessage-Deflate"],
         b"permessage-deflate; client_max_window_bits; server_max_window_bits=10, PerMessage-Deflate"),
        ([b"permessage-deflate; mine=1", b"permessage-bzip2"], None),
        ([b'x; a=", permessage-deflate, "'], b"permessage-deflate"),
    ],
)  # fmt: skip
def test_offers_that_are_understood_are_left(offers: list[bytes], left: bytes | None):
    fields = Fields.of([(b"Sec-WebSocket-Extensions", offer) for offer in offers])
    narrow_offers(fields)
    assert fields.get(EXTENSIONS) == left


@pytest.mark.parametrize("answer", [[b"x"], [b"permessage-deflate, x"], [b"permessage-deflate"] * 2, [b""]])
def test_a_server_cannot_agree_on_more(answer: list[bytes]):
    asked = Fields.of([(EXTENSIONS, b"permessage-deflate")])
    answered = Fields.of([(b"Sec-WebSocket-Extensions", each) for each in answer])
    with pytest.raises(UnknownExtension):
        agrees_on_deflate(asked, answered)
    with pytest.raises(UnknownExtension):
        agrees_on_deflate(Fields(), Fields.of([(EXTENSIONS, b"permessage-deflate")]))
