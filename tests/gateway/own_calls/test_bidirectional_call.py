"""Calls of gRPC in which both sides send messages at any time: over the pools, with flow control, ended by both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from egressproxy.errors import Reason
from egressproxy.filters import Exchange, Filter, LocalResponse
from egressproxy.filters.calls import CallFailed, FilterCall, MessageStream
from egressproxy.protocols.grpc.framing import framed
from tests.gateway.conftest import Start
from tests.gateway.kit import reverse
from tests.gateway.own_calls.test_backend_call import GET, JUDGE
from tests.support import manifests as m
from tests.support.conversation import Conversation, scripted_filter
from tests.support.http2 import GrpcCall, Http2Origin

HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
OK = [(b"grpc-status", b"0")]


class Opens(Filter):
    """Opens a stream for each request, and answers it. Implements StreamReceiver."""

    calls: Mapping[str, FilterCall]

    def __init__(self) -> None:
        self.streams: list[MessageStream] = []
        self.messages: list[bytes] = []
        self.ends: list[CallFailed | None] = []

    async def request_headers(self, x: Exchange) -> LocalResponse:
        (call,) = self.calls.values()
        stream = call.open_stream(b"/p.S/M", self, [(b"x-why", b"test")], max_message_bytes=1000, x=x)
        self.streams.append(stream)
        stream.send(b"first")
        return LocalResponse(204)

    def message_came(self, message: bytes) -> None:
        self.messages.append(message)

    def stream_ended(self, failure: CallFailed | None) -> None:
        self.ends.append(failure)


class Talk:
    """A conversation with the server of these streams."""

    def __init__(self, converse: Start, **settings: Any) -> None:
        self.opens = Opens()
        server = m.backend("judge", "judge.example", 9000, protocol="GRPC")
        asking = scripted_filter("asks", calls=[JUDGE])
        self.talk: Conversation = converse(
            reverse(objects=(server,), extensions=[asking]), filters={"asks": self.opens}
        )
        self.talk.client >> GET
        self.server = Http2Origin(self.talk, self.talk.dialled("judge.example", 9000), **settings)

    def call(self, count: int = 1) -> GrpcCall:
        calls = self.server.waits_for(count)
        return calls[max(calls)]

    @property
    def stream(self) -> MessageStream:
        return self.opens.streams[-1]

    def act(self, action: Any) -> None:
        self.talk.act(action)
        self.server.goes_on()

    def counted(self) -> dict[str, int]:
        return {result: count for (_, _, result), count in self.talk.metrics.filter_calls.asked.items()}


def test_messages_go_both_ways_at_any_time_and_the_call_is_counted(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    assert (call.headers[b":path"], call.headers[b"x-why"], call.headers[b"te"]) == (b"/p.S/M", b"test", b"trailers")
    assert call.headers[b"content-type"] == b"application/grpc"
    assert bytes(call.data) == framed(b"first")
    talk.server.responds(call.stream, framed(b"one") + framed(b"two")[:3], HEAD[1], is_last=False)
    assert talk.opens.messages == [b"one"]
    talk.act(lambda: talk.stream.send(b"second"))
    assert bytes(call.data) == framed(b"first") + framed(b"second")
    talk.server.server.h2.send_data(call.stream, framed(b"two")[3:])
    talk.server.goes_on()
    assert (talk.opens.messages, talk.opens.ends, call.is_whole) == ([b"one", b"two"], [], False)
    talk.act(lambda: talk.stream.end(5.0))
    assert call.is_whole
    talk.server.server.h2.send_headers(call.stream, OK, end_stream=True)
    talk.server.goes_on()
    assert talk.opens.ends == []  # nobody is told any more
    assert talk.counted() == {"ok": 1}


def test_all_streams_go_over_one_connection(converse: Start):
    talk = Talk(converse)
    talk.call()
    for client in (talk.talk.connect(), talk.talk.connect()):
        client >> GET
    talk.call(3)
    assert len(talk.opens.streams) == 3
    for stream in talk.opens.streams:
        talk.act(stream.close)


@pytest.mark.parametrize(("status", "reason"), [
    (b"0", None), (b"4", Reason.RESPONSE_TIMEOUT), (b"13", Reason.BAD_RESPONSE), (b"", Reason.BAD_RESPONSE),
])  # fmt: skip
@pytest.mark.parametrize("with_head", [False, True])
def test_the_server_ends_the_stream_with_a_status(converse: Start, status: bytes, reason: Any, with_head: bool):
    talk = Talk(converse)
    call = talk.call()
    last = [(b"grpc-status", status), (b"grpc-message", b"secret words")]
    if with_head:
        talk.server.responds(call.stream, framed(b"one"), HEAD[1], trailers=last)
    else:
        talk.server.responds(call.stream, None, HEAD[1], *last)
    (end,) = talk.opens.ends
    assert (end.reason if end is not None else None) == reason
    assert "secret" not in str(end)
    assert talk.counted() == {reason.value if reason else "ok": 1}


@pytest.mark.parametrize(("body", "said"), [
    (b"\0" + (1001).to_bytes(4, "big"), "1001 bytes; at most 1000"),
    (b"\1\0\0\0\0", "compressed"),
    (framed(b"half")[:-1], "within a message"),
])  # fmt: skip
def test_what_is_no_message_ends_the_stream(converse: Start, body: bytes, said: str):
    talk = Talk(converse)
    talk.server.responds(talk.call().stream, body, HEAD[1], trailers=OK)
    (end,) = talk.opens.ends
    assert end is not None
    assert said in str(end)


def test_a_server_that_does_not_speak_grpc_is_told_from_one_that_does(converse: Start):
    talk = Talk(converse)
    talk.server.responds(talk.call().stream, b"<html>", (b"content-type", b"text/html"))
    assert "does not speak gRPC" in str(talk.opens.ends[0])


def test_a_connection_that_dies_takes_its_streams_along(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    talk.server.responds(call.stream, framed(b"one"), HEAD[1], is_last=False)
    talk.server.peer.leaves()
    talk.talk.settle()
    assert [each is None for each in talk.opens.ends] == [False]


def test_what_was_sent_goes_again_where_the_connection_was_leaving(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    talk.act(lambda: talk.stream.send(b"second"))
    talk.server.server.h2.close_connection(last_stream_id=call.stream - 2 if call.stream > 1 else 0)
    talk.server.goes_on()
    again = Http2Origin(talk.talk, talk.talk.dialled("judge.example", 9000))
    (call,) = again.waits_for(1).values()
    assert bytes(call.data) == framed(b"first") + framed(b"second")
    again.responds(call.stream, framed(b"one"), HEAD[1], trailers=OK)
    assert (talk.opens.messages, talk.opens.ends) == ([b"one"], [None])


def test_a_stream_that_is_closed_is_reset(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    talk.act(lambda: talk.stream.close())
    assert call.reset is not None
    assert talk.opens.ends == []
    assert talk.counted() == {"cancelled": 1}


def test_a_server_that_does_not_end_its_side_is_given_up(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    talk.server.responds(call.stream, framed(b"one"), HEAD[1], is_last=False)
    talk.act(lambda: talk.stream.end(0.01))
    for _ in range(500):
        talk.talk.run(asyncio.sleep(0.002))
        talk.server.goes_on()
        if call.reset is not None:
            break
    assert call.reset is not None
    assert talk.counted() == {"ok": 1}


def test_who_sends_waits_for_the_server_to_read(converse: Start):
    talk = Talk(converse, window=100)
    talk.server.server.opens_windows = False
    call = talk.call()
    waits: list[asyncio.Task[None]] = []

    def send() -> None:
        talk.stream.send(bytes(300_000))
        waits.append(asyncio.get_running_loop().create_task(talk.stream.drained()))

    talk.act(send)
    assert (len(call.data), waits[0].done()) == (100, False)
    assert talk.stream.unsent_bytes > 200_000
    talk.act(lambda: talk.stream.close())
    assert waits[0].done()


def test_who_does_not_read_is_sent_no_more_than_a_window(converse: Start):
    talk = Talk(converse)
    call = talk.call()
    talk.server.responds(call.stream, framed(b"one"), HEAD[1], is_last=False)
    talk.act(lambda: talk.stream.pause_reading())
    window = talk.server.server.h2.local_flow_control_window(call.stream)
    while talk.server.server.h2.local_flow_control_window(call.stream) > 995:
        talk.server.server.h2.send_data(call.stream, framed(bytes(990)))
        talk.server.goes_on()
    talk.act(lambda: talk.stream.resume_reading())
    assert talk.server.server.h2.local_flow_control_window(call.stream) > window // 2


def test_a_backend_that_is_not_there_ends_the_stream_at_once(converse: Start):
    opens = Opens()
    asking = scripted_filter("asks", calls=[JUDGE])
    talk = converse(reverse(extensions=[asking]), filters={"asks": opens})
    talk.client >> GET
    (end,) = opens.ends
    assert end is not None
    assert end.reason is Reason.BACKEND_INVALID
    talk.act(lambda: opens.streams[0].send(b"more"))  # goes nowhere
