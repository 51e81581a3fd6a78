"""What readers hold, and what hostile heads cost them, in time and in memory."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from egressproxy.errors import BadRequest, LimitExceeded, UpstreamFault
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.http1_reading import read_requests

GET = b"GET /get HTTP/1.1\r\nHost: a.example\r\nX-A: 1\r\n\r\n"
POST = b"POST /post HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nX_Y: 1\r\n\r\nabc"


def requests(data: bytes) -> RequestReader:
    reader = RequestReader(HeadLimits())
    reader.feed(data)
    return reader


def test_a_segment_that_is_all_body_is_handed_on_uncopied() -> None:
    reader = requests(POST[:-3])
    reader.next()
    segment = bytes(bytearray(b"abc"))
    reader.feed(segment)
    assert reader.next() is segment


def test_an_idle_reader_holds_no_segment() -> None:
    reader = requests(b"\r\n" + GET[:10])
    assert reader.next() is None
    reader.feed(GET[10:] + POST)
    while reader.next() is not None:
        pass
    assert repr(reader) == "RequestReader(IN_HEAD, buffered=0)"
    assert reader._buffer == b""


@pytest.mark.parametrize("size", [60_000, 70_000])
def test_a_head_in_single_bytes_costs_linear_time(size: int) -> None:
    data = GET[:-2] + b"X-Big: " + b"a" * (size - len(GET)) + b"\r\n\r\n"
    started = time.process_time()
    reading = read_requests(data, range(len(data)))
    assert time.process_time() - started < 2
    assert (reading.error is None) is (size == 60_000)


LONG = 65_000
BAD_HEADS = {
    "many lines": b"\r\na:b" * (LONG // 5),
    "many lines, the last bad": b"\r\na:b" * (LONG // 5) + b"\r\nx",
    "many fields of this hop": b"\r\nHost: a" * (LONG // 9) + b"\r\nx",
    "runs between fields of this hop": (b"\r\na:b" * 900 + b"\r\nVia:h") * (LONG // 4508) + b"\r\nx",
    "nearly a field of this hop": b"\r\nconnectio:b" * (LONG // 13) + b"\r\nx",
    "a long name": b"\r\n" + b"a" * LONG,
    "a long value": b"\r\na:" + b"b" * LONG + b"\0",
    "many underscores": b"\r\nx" + b"_" * LONG + b" :",
    "many twins": b"\r\nx_forwarded_for:b" * (LONG // 19) + b"\r\nx",
}


@pytest.mark.parametrize("max_fields", [128, 10_000])
@pytest.mark.parametrize("fields", BAD_HEADS.values(), ids=BAD_HEADS)
def test_a_malformed_head_costs_its_length_in_time_and_little_memory(fields: bytes, max_fields: int) -> None:
    """Runs of lines are given back line by line where something behind them fails: 2 to 6 ms here."""
    limits = HeadLimits(max_fields=max_fields)
    RequestReader(limits)  # compiled
    for data, reader in ((b"GET / HTTP/1.1", RequestReader(limits)), (b"HTTP/1.1 200 OK", ResponseReader(limits))):
        if isinstance(reader, ResponseReader):
            reader.expect(b"GET")
        reader.feed(data + fields + b"\r\n\r\n")
        tracemalloc.start()
        started = time.process_time()
        with pytest.raises((BadRequest, LimitExceeded, UpstreamFault)):
            reader.next()
        took_s = time.process_time() - started
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert took_s < 0.5
        assert most < 8 * 1024 * 1024


def test_thousands_of_pipelined_requests_cost_linear_time() -> None:
    started = time.process_time()
    assert len(read_requests(GET * 8192).messages) == 8192
    assert time.process_time() - started < 2
