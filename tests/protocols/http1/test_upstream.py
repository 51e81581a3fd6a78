"""An upstream connection by itself: what makes it usable again, and what ends it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import pytest

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.net.driver import PAUSE, Driver
from egressproxy.net.timers import TimerWheel
from egressproxy.net.tls_failures import TlsTruncated
from egressproxy.protocols.http1.framing import HeadLimits
from egressproxy.protocols.http1.upstream import UpstreamConnection
from tests.net.test_flow_control import Transport


class Closing(Transport):
    def close(self) -> None:
        self.closing = True

    abort = close


class Sink:
    def __init__(self) -> None:
        self.body, self.ended = b"", False

    def send_body(self, data: bytes) -> None:
        self.body += data

    def end_body(self, trailers: bytes) -> None:
        self.ended = True


class Exchange:
    """Asks once, and keeps what came of it."""

    def __init__(self, method: bytes = b"GET") -> None:
        self.transport = Closing()
        self.upstream = UpstreamConnection(TimerWheel(), HeadLimits())
        self.upstream.connection_made(cast(asyncio.Transport, self.transport))
        self.driver, self.sink = Driver(), Sink()
        self.error: UpstreamFault | None = None
        self.method = method
        self.ask()

    def ask(self) -> None:
        self.upstream.begin(self.driver, RequestHead(self.method, b"/", Fields()))
        self.driver.start(self._life())

    async def _life(self) -> None:
        try:
            while (head := self.upstream.next_head()) is None or head.is_interim:
                if head is None:
                    await PAUSE
            if not self.upstream.has_ended:
                self.upstream.send_response_body_to(self.sink)
            await self.upstream.response_end()
        except UpstreamFault as error:
            self.error = error


@pytest.mark.parametrize(
    ("answer", "is_reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!", False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", False),
    ],
)
def test_when_a_connection_may_be_used_again(answer: bytes, is_reusable: bool):
    one = Exchange()
    one.upstream.data_received(answer)
    assert one.error is None
    assert not one.driver.is_busy
    assert one.upstream.is_reusable() is is_reusable


def test_a_closing_connection_may_not_be_used_again():
    one = Exchange()
    one.upstream.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    one.upstream.close()
    assert one.upstream.is_leaving()


@pytest.mark.parametrize(
    ("before", "loss", "reason", "retry"),
    [
        (b"", None, Reason.UPSTREAM_CLOSED, RetrySafety.IF_REUSED),
        (b"", ConnectionResetError(), Reason.UPSTREAM_RESET, RetrySafety.IF_REUSED),
        (b"HTTP/1.1 20", None, Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER),
        (b"HTTP/1.1 20", ConnectionResetError(), Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", None, Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi", None, Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER),
        (b"HTTP/1.1 200 OK\r\n\r\nhi", TlsTruncated("cut"), Reason.UPSTREAM_INCOMPLETE, RetrySafety.NEVER),
        (b"", ssl.SSLError("alert"), Reason.TLS_PROTOCOL, RetrySafety.NEVER),
    ],
)
def test_how_an_end_in_the_middle_is_told(before: bytes, loss: Exception | None, reason: Reason, retry: RetrySafety):
    one = Exchange()
    if before:
        one.upstream.data_received(before)
    one.upstream.connection_lost(loss)
    assert one.error is not None
    assert (one.error.reason, one.error.retry) == (reason, retry)
    assert not one.sink.ended


def test_a_clean_end_ends_a_body_that_lasts_until_it():
    one = Exchange()
    one.upstream.data_received(b"HTTP/1.1 200 OK\r\n\r\nhi")
    assert not one.upstream.eof_received()
    assert (one.sink.body, one.sink.ended, one.error) == (b"hi", True, None)
    assert not one.upstream.is_reusable()


def test_octets_that_nobody_has_asked_for_close_an_idle_connection():
    one = Exchange()
    one.upstream.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    one.upstream.finish()
    one.upstream.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert one.transport.closing


def test_a_loss_is_told_once():
    one = Exchange()
    told: list[Any] = []
    one.upstream.on_lost = told.append
    one.upstream.connection_lost(None)
    one.upstream.connection_lost(None)
    one.upstream.gone()
    assert told == [one.upstream]


def test_what_comes_behind_an_answer_is_not_kept_while_a_filter_waits():
    one = Exchange()
    one.upstream.data_received(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert not one.upstream.is_reading_paused
    one.upstream.data_received(b"x" * 65536)
    assert one.upstream.is_reading_paused
    assert not one.upstream.is_reusable()
    one.upstream.finish()
    assert not one.upstream.is_reading_paused
