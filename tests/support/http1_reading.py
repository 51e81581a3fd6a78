"""Runs bytes through the HTTP/1.1 readers, cut up in any way, and collects what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from egressproxy.errors import GatewayError
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.protocols.http1.chunked import EndOfMessage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits
from tests.support.attributes import attributes


@dataclass
class Message:
    head: RequestHead | ResponseHead
    body: bytes = b""
    is_whole: bool = False
    trailers: bytes = b""

    def as_value(self) -> tuple[object, ...]:
        """Everything that the reader said, comparable."""
        said = [value for name, value in attributes(self.head).items() if name not in ("fields", "hop")]
        return (
            *said,
            getattr(self.head, "proxy_authorization", b""),
            self.head.fields.block,
            self.body,
            self.is_whole,
            self.trailers,
        )


@dataclass
class Reading:
    messages: list[Message] = field(default_factory=list)
    error: GatewayError | None = None
    rest: bytes = b""

    @property
    def head(self) -> RequestHead:
        """The one request head that was read."""
        assert self.error is None, self.error
        (message,) = self.messages
        assert isinstance(message.head, RequestHead)
        return message.head

    def as_value(self) -> tuple[object, ...]:
        fault = None if self.error is None else (type(self.error), self.error.reason, self.error.status)
        return ([m.as_value() for m in self.messages], fault)


def segments(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these offsets."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(places) if b > a]


def read_requests(data: bytes, cuts: Iterable[int] = (), limits: HeadLimits | None = None) -> Reading:
    """Every request in `data`; stops at an error, and behind a CONNECT or an upgrade."""
    reader = RequestReader(limits or HeadLimits())
    reading = Reading()
    for segment in segments(data, cuts):
        reader.feed(segment)
        _drain(reader, reading)
        if reading.error is not None:
            break
    reading.rest = reader.take_rest()
    return reading


def read_responses(
    data: bytes,
    method: bytes = b"GET",
    cuts: Iterable[int] = (),
    eof: bool | None = None,
    limits: HeadLimits | None = None,
) -> Reading:
    """Every response to one request; `eof` true or false is a clean or an unclean end behind the data."""
    reader = ResponseReader(limits or HeadLimits())
    reader.expect(method)
    reading = Reading()
    for segment in segments(data, cuts):
        reader.feed(segment)
        _drain(reader, reading)
        if reading.error is not None:
            break
    if eof is not None and reading.error is None:
        reader.feed_eof(eof)
        _drain(reader, reading)
    reading.rest = reader.take_rest()
    return reading


def _drain(reader: RequestReader | ResponseReader, reading: Reading) -> None:
    if reading.messages and _is_tunnel(reading.messages[-1].head):
        return
    while True:
        is_over = isinstance(reader, ResponseReader) and reader.needs_more
        try:
            event = reader.next()
        except GatewayError as error:
            assert not is_over, "`needs_more` has hidden an error"
            reading.error = error
            return
        assert event is None or not is_over, "`needs_more` has hidden an event"
        if event is None:
            return
        if isinstance(event, bytes):
            assert event, "a piece of body is never empty"
            reading.messages[-1].body += event
        elif isinstance(event, EndOfMessage):
            reading.messages[-1].is_whole = True
            reading.messages[-1].trailers = event.trailers.block if event.trailers is not None else b""
        else:
            reading.messages.append(Message(event, is_whole=event.body == 0))
            if _is_tunnel(event):
                return


def _is_tunnel(head: RequestHead | ResponseHead) -> bool:
    return isinstance(head, RequestHead) and (head.method == b"CONNECT" or head.upgrade != b"")
