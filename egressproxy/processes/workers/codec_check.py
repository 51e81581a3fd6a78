"""A look at the codec before it is used: some messages whose meaning is known, and those that have to be refused.

The codec is expressions, and what they mean is up to the interpreter: CPython before 3.11.5 matches some wrongly
(gh-106052). None of those is used here; but a gateway that reads a message otherwise than its tests did would read
another one than its peers, and must not serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from egressproxy.errors import GatewayError, Reason
from egressproxy.model.message import ResponseHead
from egressproxy.protocols.http1 import request_head, response_head
from egressproxy.protocols.http1.chunked import EndOfMessage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits


class Misread(Exception):
    """The codec does not read a message as it is meant. The message names it, and what to do."""


#: What it is, its bytes (where they begin with none of _METHODS, what stands behind _LINE), and what comes of it: the
#: events as `_events` tells them, or the Reason of the refusal.
_REQUESTS: Final[tuple[tuple[str, bytes, Any], ...]] = (
    (
        "a request with fields of this hop among others",
        b"GET http://a.example/x?y HTTP/1.1\r\nAccept: */*\r\nHost: a.example\r\nUser-Agent:  b c \t\r\n"
        b"Connection: x-hop, close\r\nX-Hop: 1\r\nX_Y:\r\n\r\n",
        [
            (b"GET", b"/x?y", b"a.example", 0, True, b"\r\nAccept: */*\r\nUser-Agent:  b c \t\r\nX_Y:"),
            (b"*/*", b"b c", b""),
        ],
    ),
    (
        "a request with many fields of this hop, a body, and another request behind it",
        b"\r\nPOST / HTTP/1.1\r\nHost: a.example\r\nTE: trailers\r\nVia: 1.1 b\r\nContent-Length: 3\r\n"
        b"Keep-Alive: 1\r\nX_Forwarded_For: c\r\nAccept: d\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
        [
            (b"POST", b"/", b"a.example", 3, False, b"\r\nAccept: d"), (b"d", None, None),
            b"abc",
            [],
            (b"GET", b"/", b"", 0, True, b""), (None, None, None),
        ],
    ),
    (
        "a chunked request",
        b"PUT / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'1; a = "b\\" ; c" ;d=e\r\nx\r\n0A\r\n0123456789\r\n00\r\nX-Sum: 9\r\nHost: b.example\r\n\r\n',
        [(b"PUT", b"/", b"a.example", -1, False, b""), (None, None, None), b"x0123456789", [(b"x-sum", b"9")]],
    ),
    (
        "a CONNECT",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\nUser-Agent: b\r\n\r\n",
        [
            (b"CONNECT", b"a.example:443", b"a.example:443", 0, False, b"\r\nUser-Agent: b"), (None, b"b", None),
        ],
    ),
    ("a request that is not whole", b"GET / HTTP/1.1\r\nHost: a.example\r\nAccept: b\r\n", []),
    ("a blank before a colon", b"Host: a.example\r\nAccept : b\r\n\r\n", Reason.BAD_FIELD),
    ("a folded field", b"Host: a.example\r\nAccept: b\r\n c: d\r\n\r\n", Reason.BAD_FIELD),
    ("a field without a colon", b"Accept: b\r\nHost\r\n\r\n", Reason.BAD_FIELD),
    ("a control byte", b"Host: a.example\r\nAccept: b\0\r\nTE: c\r\n\r\n", Reason.BAD_FIELD),
    ("a bare LF", b"Host: a.example\r\nAccept: b\nContent-Length: 1\r\n\r\n", Reason.BAD_FIELD),
    ("a second Host", b"Host: a.example\r\nAccept: b\r\nhOST: c.example\r\n\r\n", Reason.BAD_HOST),
    ("a length beside a coding", b"Host: a.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
     Reason.BAD_FRAMING),
    ("a second length", b"Content-Length: 3\r\nHost: a.example\r\nContent-Length: 3\r\n\r\n", Reason.BAD_FRAMING),
    ("a coding nobody knows", b"Host: a.example\r\nTransfer-Encoding: xchunked\r\n\r\n", Reason.UNKNOWN_CODING),
    ("a size of chunk with a sign", b"Host: a.example\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\nx\r\n0\r\n\r\n",
     Reason.BAD_FRAMING),
    ("a size of chunk of seventeen digits",
     b"Host: a.example\r\nTransfer-Encoding: chunked\r\n\r\n00000000000000001\r\nx\r\n0\r\n\r\n", Reason.BAD_FRAMING),
    ("an extension that does not end",
     b'Host: a.example\r\nTransfer-Encoding: chunked\r\n\r\n1;a="b\r\nx\r\n0\r\n\r\n', Reason.BAD_FRAMING),
    ("a malformed trailer",
     b"Host: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\nC : d\r\n\r\n", Reason.BAD_FIELD),
)  # fmt: skip
_RESPONSES: Final[tuple[tuple[str, bytes, Any], ...]] = (
    (
        "a response with fields of this hop among others",
        b"HTTP/1.1 200 All right\r\nDate: a\r\nContent-Length: 2\r\nUser-Agent: b\r\nConnection: keep-alive\r\n\r\nok",
        [(200, b"All right", 2, False, b"\r\nDate: a\r\nUser-Agent: b"), (None, b"b", None), b"ok", []],
    ),
    (
        "a chunked response with many fields of this hop, behind an interim one",
        b"HTTP/1.1 103 \r\nLink: a\r\n\r\nHTTP/1.1 404\r\nVia: 1.1 b\r\nUpgrade: c\r\nProxy-Authenticate: d\r\n"
        b"Server: e\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        [
            (103, b"", 0, False, b"\r\nLink: a"), (None, None, None),
            (404, b"", -1, False, b"\r\nServer: e"), (None, None, None),
            b"abc",
            [],
        ],
    ),
    ("a response with a blank before a colon", b"HTTP/1.1 200 OK\r\nDate: a\r\nContent-Length : 2\r\n\r\nok",
     Reason.BAD_RESPONSE),
    ("a response with a second length",
     b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: a\r\nContent-length: 3\r\n\r\nok", Reason.BAD_RESPONSE),
    ("a response with a folded field", b"HTTP/1.1 200 OK\r\nDate: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
     Reason.BAD_RESPONSE),
)  # fmt: skip
_LINE: Final = b"POST / HTTP/1.1\r\n"
_METHODS: Final = (b"GET ", b"\r\nPOST ", b"PUT ", b"CONNECT ")


def check_codec(requests: HeadLimits, responses: HeadLimits) -> None:
    """Read the messages above with new readers of these limits. Raises Misread at the first that is misread."""
    for what, data, meant in _REQUESTS:
        reader = RequestReader(requests, request_head.new_request_grammar(requests))
        reader.feed(data if data.startswith(_METHODS) else _LINE + data)
        _compare(what, reader, meant)
    for what, data, meant in _RESPONSES:
        answers = ResponseReader(responses, response_head.new_response_grammar(responses))
        answers.expect(b"GET")
        answers.feed(data)
        _compare(what, answers, meant)


def _compare(what: str, reader: RequestReader | ResponseReader, meant: object) -> None:
    found: object
    try:
        found = list(_events(reader))
    except GatewayError as error:
        found = error.reason
    except Exception as error:
        found = type(error)
    if found != meant:
        raise Misread(
            f"this Python misreads HTTP: {what} is not read as it is meant, so nothing is served; run it with another"
            " version of Python (3.11.5 or newer), and report this one"
        )


def _events(reader: RequestReader | ResponseReader) -> Iterator[object]:
    """A head as what matters of it, and some of its fields; bytes; an end as the fields behind it."""
    while (event := reader.next()) is not None:
        if isinstance(event, bytes):
            yield event
        elif isinstance(event, EndOfMessage):
            yield [] if event.trailers is None else list(event.trailers)
        else:
            fields = event.fields
            if isinstance(event, ResponseHead):
                yield event.status, event.phrase, event.body, event.connection_close, fields.block
            else:
                yield event.method, event.path, event.host, event.body, event.connection_close, fields.block
            yield fields.get(b"accept"), fields.get(b"user-agent"), fields.get(b"x_y")
