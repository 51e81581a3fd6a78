"""A client's connection by itself, under every cutting of what it sends."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis.strategies import booleans, integers, lists

from tests.gateway.kit import OK, OK_PASSED, forward
from tests.support.conversation import conversation
from tests.support.http1_reading import segments
from tests.support.properties import examples

POST = b"POST http://a.example/%d HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = (
    b"POST http://a.example/%d HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
)
LINE = POST % 0 + CHUNKED % 1 + POST % 2


@settings(max_examples=examples(60), deadline=None)
@given(lists(integers(1, len(LINE) - 1), max_size=8), booleans(), booleans())
def test_pipelined_uploads_are_served_in_order_however_they_are_cut(cuts: list[int], at_once: bool, ends: bool):
    talk = conversation(forward())
    pieces = segments(LINE, cuts)
    if at_once:
        for piece in pieces:
            talk.client >> piece
        pieces = []
        if ends:
            talk.client.ends()
    is_dialled = False
    for number in range(3):
        while pieces and not is_dialled and not talk.dialer.dials:
            talk.client >> pieces.pop(0)
        if not is_dialled:
            talk.dialled("a.example", 80)
            is_dialled = True
        end = b"abc" if number != 1 else b"0\r\n\r\n"
        while pieces and not talk.origin.got.endswith(end):
            talk.client >> pieces.pop(0)
        talk.origin.take(rb"POST /%d .*?\r\n\r\n(abc|2\r\nab\r\n0\r\n\r\n|1\r\na\r\n1\r\nb\r\n0\r\n\r\n)" % number)
        assert not talk.origin.got, "the next one waits for the answer"
        talk.origin >> OK
        if number == 2 and at_once and ends:
            talk.client << OK_PASSED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            talk.client.is_closed()
        else:
            talk.client << OK_PASSED
    assert sum(record["bytes_in"] for record in talk.records) == len(LINE)
    talk.close()
