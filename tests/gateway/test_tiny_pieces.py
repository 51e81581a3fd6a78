"""What keeps a client's octets keeps no more than they are, however few of them come at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.backends.replayable_body import REPLAY_LIMIT, ReplayableBody
from egressproxy.gateway.exchange.body_filter import Collector
from egressproxy.gateway.listeners.stream_connection import _Inner
from egressproxy.model.fields import Fields
from egressproxy.model.message import CHUNKED, RequestHead
from egressproxy.net.driver import Driver
from egressproxy.net.flow_control import BodySink
from tests.support.builds import of_sources

NOBODY = cast(Any, SimpleNamespace(hold_bytes=lambda *_, **__: True, may_keep=lambda *_: True))
OCTETS = REPLAY_LIMIT


class Told(_Inner):
    """What is terminated, as a sink: it does not pause anybody."""

    __slots__ = ()

    def pause_reading(self) -> None: ...

    def send_body(self, data: bytes) -> None:
        self.data_received(data)

    def end_body(self, trailers: bytes) -> None: ...


def body_to_come() -> RequestHead:
    """A head with a body behind it."""
    head = RequestHead(b"POST", b"/", Fields())
    head.body = CHUNKED
    return head


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ReplayableBody(CHUNKED, lambda _sink: None), id="for retries"),
        pytest.param(lambda: Collector(Driver(), NOBODY), id="for filters"),
        pytest.param(lambda: BufferedRequest(NOBODY, body_to_come()), id="for an authorization server"),
        pytest.param(lambda: Told(NOBODY, 1.0), id="for a tunnel", marks=of_sources),
    ],
)
def test_two_octets_at_a_time_take_no_more_room_than_all_at_once(make: Callable[[], BodySink]):
    sink = make()
    tracemalloc.start()
    try:
        for number in range(OCTETS // 2):
            sink.send_body(bytes((number & 0xFF, 0)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert OCTETS <= kept < 1.5 * OCTETS
