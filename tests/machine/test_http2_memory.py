"""What an HTTP/2 connection costs in memory: little when it is idle, and nothing for each stream that has ended."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from benchmarks.micro.codec import GET, POST, RESPONSE
from benchmarks.micro.exchange import PLAIN, SHARE, whole_http2
from tests.support.conversation import Conversation, MemoryPeer
from tests.support.http2_client import Http2Client, head

#: Bytes of Python objects of a connection that waits for its next stream.
IDLE = 16 * 1024
STREAMS = 3000
CONNECTIONS = 20


@pytest.fixture
def kept() -> Iterator[Callable[[], int]]:
    """How many bytes of Python objects there are that were made since the test began."""

    def size() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        yield size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("request_bytes", [GET, POST.replace(b" /", b" http://api.example.com/", 1)])
@pytest.mark.parametrize("has_id", [False, True])
def test_streams_that_have_ended_leave_nothing(request_bytes: bytes, has_id: bool, kept: Callable[[], int]):
    stage = whole_http2("streams", PLAIN, request_bytes, RESPONSE, has_id=has_id)
    for _ in range(1000 // SHARE):  # tables that are bounded have grown
        stage.call()

    def grown() -> int:
        before = kept()
        for _ in range(STREAMS // SHARE):
            stage.call()
        return kept() - before

    # What streams leave is there each time; what else this process allocates meanwhile is not.
    assert any(grown() < 4 * STREAMS for _ in range(3))


def test_an_idle_connection(kept: Callable[[], int]):
    talk = Conversation(PLAIN, {}, is_memory=True)
    talk.counts_octets = False
    fields = [(b"user-agent", b"a" * 90), (b"accept", b"b" * 60), (b"authorization", b"c" * 50), (b"cookie", b"d" * 50)]
    origin: list[MemoryPeer] = []

    def connection() -> None:
        peer, client = cast(MemoryPeer, talk.connect()), Http2Client()
        for number in range(5):
            client.request([*head(b"GET", b"/%d" % number, b"api.example.com"), *fields])
            peer >> client.outgoing()
            if not origin:
                origin.append(cast(MemoryPeer, talk.dialled("api.example.com", 80)))
            origin[0] >> RESPONSE
            origin[0].received.clear()
        talk.settle()
        assert bytes(peer.received).count(b"x" * 1024) == 5
        peer.received.clear()
        talk.log.lines.clear()

    connection()
    before = kept()
    for _ in range(CONNECTIONS):
        connection()
    assert (kept() - before) / CONNECTIONS < IDLE
