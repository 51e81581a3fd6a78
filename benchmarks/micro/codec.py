"""The HTTP/1.1 codec, beside what llhttp alone needs for the same head."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httptools

from benchmarks.micro.stage import Stage
from egressproxy.protocols.http1.codec import RequestReader, ResponseReader
from egressproxy.protocols.http1.framing import HeadLimits

FIELDS = (
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36\r\n"
    b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
    b"Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n"
    b"Authorization: Bearer abcdefghijklmnopqrstuvwxyz0123456789\r\n"
    b"X-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e\r\nCache-Control: no-cache\r\nReferer: http://www.example.com/index.html\r\n"
    b"Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\nX-Custom: some value\r\n"
)
GET = b"GET http://api.example.com/v1/models?limit=20 HTTP/1.1\r\nHost: api.example.com\r\n" + FIELDS + b"\r\n"
SMALL = b"GET /a HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n"
POST = b"POST /v1/chat HTTP/1.1\r\nHost: api.example.com\r\n" + FIELDS + b"Content-Length: 1024\r\n\r\n" + b"x" * 1024
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nDate: Sat, 01 Aug 2026 10:00:00 GMT\r\nServer: nginx\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1024\r\nConnection: keep-alive\r\nCache-Control: private, max-age=0\r\nVary: Accept-Encoding\r\n"
    b"X-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e\r\nX-Ratelimit-Limit: 5000\r\nX-Ratelimit-Remaining: 4987\r\n"
    b'ETag: "0123456789abcdef"\r\nStrict-Transport-Security: max-age=31536000\r\nX-Content-Type-Options: nosniff\r\n'
    b"Set-Cookie: id=abc; Path=/; HttpOnly\r\nAge: 0\r\n\r\n" + b"x" * 1024
)
SMALL_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + b"x" * 1024
EVENT = b"3a\r\n" + b"d" * 0x3A + b"\r\n"


def stages() -> Iterator[Stage]:
    for name, call in (
        ("request head, 2 fields", requests(SMALL, 1)),
        (f"request head, 12 fields, {len(GET)} bytes", requests(GET, 1)),
        ("request head, 13 fields, and 1 KiB of body", requests(POST, 3)),
        ("response head, 2 fields, and 1 KiB of body", responses(SMALL_RESPONSE, 3)),
        (f"response head, 15 fields, {len(RESPONSE) - 1024} bytes, and 1 KiB of body", responses(RESPONSE, 3)),
        ("one chunk of 58 bytes", chunks()),
        ("(llhttp alone, the request head with 12 fields)", llhttp),
    ):
        yield Stage("codec", name, call)


def requests(data: bytes, events: int) -> Callable[[], None]:
    reader = RequestReader(HeadLimits())

    def run() -> None:
        reader.feed(data)
        for _ in range(events):
            reader.next()

    return run


def responses(data: bytes, events: int) -> Callable[[], None]:
    reader = ResponseReader(HeadLimits())

    def run() -> None:
        reader.expect(b"GET")
        reader.feed(data)
        for _ in range(events):
            reader.next()

    return run


def chunks() -> Callable[[], None]:
    reader = ResponseReader(HeadLimits())
    reader.expect(b"GET")
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    reader.next()

    def run() -> None:
        reader.feed(EVENT)
        reader.next()

    return run


def llhttp() -> None:
    httptools.HttpRequestParser(None).feed_data(GET)
