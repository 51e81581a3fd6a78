from __future__ import annotations

import tracemalloc

import pytest

from egressproxy.ai.translation.errors import BadAnswer
from egressproxy.ai.translation.event_stream import COMMENT, MAX_EVENT_BYTES, EventStream, event, event_of_data


def test_an_event_has_the_name_and_the_data_of_its_lines():
    stream = EventStream()
    assert stream.feed(b"event: a\nid: 7\nretry: 1\nunknown\ndata: 1\ndata:2\ndata:  3\n\ndata: 4\n\n") == [
        (b"a", b"1\n2\n 3"),
        (b"", b"4"),
    ]


def test_an_event_without_data_is_none():
    assert EventStream().feed(b"event: a\n\n\n\ndata: 1\n\n") == [(b"", b"1")]


def test_a_byte_order_mark_may_stand_at_the_start():
    stream = EventStream()
    assert stream.feed(b"\xef\xbb") + stream.feed(b"\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n") == [(b"", b"1")]


def test_comments_are_told():
    assert EventStream().feed(b": hello\n\n") == [(COMMENT, b"")]


def test_comments_in_a_row_are_told_once():
    stream = EventStream()
    assert stream.feed(b":\n" * 9 + b"data: 1\n\n" + b":\n" * 9) == [(COMMENT, b""), (b"", b"1"), (COMMENT, b"")]
    assert stream.feed(b":\n") == [(COMMENT, b"")]


def test_events_are_read_as_they_are_written():
    assert EventStream().feed(event(b"a", b"{}") + event_of_data(b"[]")) == [(b"a", b"{}"), (b"", b"[]")]


@pytest.mark.parametrize("line", [b"x", b"data: x\n", b"data:" + b"x" * 99 + b"\n"])
def test_an_event_is_bounded_however_its_lines_are_cut(line: bytes):
    stream, piece = EventStream(), line * 8192

    def feed_all() -> None:
        for _ in range(MAX_EVENT_BYTES // len(piece) + 1):
            stream.feed(piece)

    with pytest.raises(BadAnswer, match="more than"):
        feed_all()


@pytest.mark.parametrize("piece", [b"ab", b"data: x"])
def test_pieces_of_a_line_take_no_more_room_than_it(piece: bytes):
    stream, count = EventStream(), 1 << 13
    stream.feed(b"data: ")
    tracemalloc.start()
    try:
        for number in range(count):
            stream.feed(piece[:-1] + bytes((128 + number % 64,)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * count * len(piece)
    ((_, data),) = stream.feed(b"\n\n")
    assert len(data) == count * len(piece)
