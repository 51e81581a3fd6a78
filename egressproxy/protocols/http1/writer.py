"""Writer: heads to bytes. Framing, Host, Via and Connection are always generated here, never copied. Sources: RFC 9112
sections 3 to 7, RFC 9110 sections 6.6.1 (Date) and 7.6.3 (Via).
"""

from __future__ import annotations

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPMethod, HTTPStatus
from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.model.fields import TOKEN, VALUE, Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import CHUNKED, RequestHead, ResponseHead

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
TUNNEL_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"
#: Methods that anticipate content: where there is none, its length is said to be 0 (RFC 9110 section 8.6).
WITH_CONTENT: Final = frozenset((b"POST", b"PUT", b"PATCH"))
#: "HTTP/1.1 404 " by status.
_STATUS_STARTS: Final = tuple(b"HTTP/1.1 %d " % status for status in range(1000))
#: To look for a number takes a seventh of the time that one of `bytes` takes.
CR: Final = 0x0D
LF: Final = 0x0A
PHRASES: Final = {int(status): status.phrase.encode() for status in HTTPStatus}


def via_line(received: bytes, http_1_0: bool, pseudonym: bytes) -> bytes:
    """The Via line that we send: what was received, and us (RFC 9110 section 7.6.3)."""
    own = _own_via(http_1_0, pseudonym)
    return b"\r\nVia: %b, %b" % (received, own[7:]) if received else own


@lru_cache(maxsize=64)
def _own_via(http_1_0: bool, pseudonym: bytes) -> bytes:
    return b"\r\nVia: %b %b" % (b"1.0" if http_1_0 else b"1.1", pseudonym)


def request_bytes(head: RequestHead, host: bytes, pseudonym: bytes) -> bytes:
    """The head as it goes upstream, in origin-form, always HTTP/1.1. `host` is the Host value. The body has to follow
    in the framing that `head.body` says (a length, or CHUNKED).
    """
    tail = via_line(head.via, head.http_1_0, pseudonym) if head.via else _own_via(head.http_1_0, pseudonym)
    if head.body == CHUNKED:
        tail += b"\r\nTransfer-Encoding: chunked"
    elif head.body or head.method in WITH_CONTENT:
        tail += b"\r\nContent-Length: %d" % head.body
    if head.upgrade:
        tail += b"\r\nConnection: Upgrade\r\nUpgrade: " + head.upgrade
    elif head.te_trailers:
        tail += b"\r\nConnection: TE\r\nTE: trailers"
    if head.max_forwards >= 0:
        tail += b"\r\nMax-Forwards: %d" % head.max_forwards
    path = head.path
    if LF in path or CR in path or LF in host or CR in host:
        raise line_break()
    start = _METHOD_STARTS[head.method]
    return b"".join((start, path, b" HTTP/1.1\r\nHost: ", host, head.fields.block, tail, b"\r\n\r\n"))


def line_break() -> GatewayFault:
    """The error for a line break in a path or host, which would begin another request."""
    return GatewayFault(Reason.FILTER_FAILED, "a filter has put a line break into the path or the host", status=502)


def check_method(method: bytes) -> None:
    """Raises GatewayFault for a method of a filter that is no token (RFC 9110 section 9.1)."""
    if TOKEN.fullmatch(method) is None:
        raise GatewayFault(Reason.FILTER_FAILED, "a filter has set a method that is no token", status=502)


class _MethodStarts(dict[bytes, bytes]):
    """The beginning of a request line by method. Methods of no standard are checked each time."""

    def __missing__(self, method: bytes) -> bytes:
        check_method(method)
        return method + b" "


_METHOD_STARTS: Final = _MethodStarts({each.encode(): each.encode() + b" " for each in HTTPMethod})


def response_bytes(head: ResponseHead, pseudonym: bytes, *, close: bool, http_1_0: bool, has_body: bool) -> bytes:
    """The head for the client. A body without a length is chunked in 1.1, and ends with the connection in 1.0.
    `has_body` is false for HEAD, 204 and 304, which never carry framing of ours.
    """
    block = head.fields.block
    tail = via_line(head.via, head.http_1_0, pseudonym) if head.via else _own_via(head.http_1_0, pseudonym)
    if has_body:
        if head.body >= 0:
            tail += b"\r\nContent-Length: %d" % head.body
        elif not http_1_0:
            tail += b"\r\nTransfer-Encoding: chunked"
    if close:
        tail += b"\r\nConnection: close"
    if block.find(b"\r\nDate:") < 0 and b"date" not in head.fields:  # the usual spelling first: a fifth of the cost
        tail += b"\r\nDate: " + http_date()
    phrase = head.phrase
    if LF in phrase or CR in phrase:
        phrase = b""  # a filter has put it there
    return b"".join((_STATUS_STARTS[head.status], phrase, block, tail, b"\r\n\r\n"))


def interim_bytes(head: ResponseHead, pseudonym: bytes) -> bytes:
    """A 1xx head, for HTTP/1.1 clients only; 101 starts an upgraded connection (RFC 9110 section 15.2)."""
    tail = via_line(head.via, head.http_1_0, pseudonym)
    if head.status == 101:
        tail += b"\r\nConnection: Upgrade\r\nUpgrade: " + head.upgrade
    phrase = b"" if LF in head.phrase or CR in head.phrase else head.phrase
    return b"HTTP/1.1 %d %b%b%b\r\n\r\n" % (head.status, phrase, head.fields.block, tail)


def answer_bytes(answer: LocalResponse, *, close: bool, with_body: bool = True) -> bytes:
    """A whole response of our own. `with_body` false: the head alone, as for HEAD."""
    block = Fields.of(answer.fields).block
    if answer.status not in (204, 304):
        block += b"\r\nContent-Length: %d" % len(answer.body)
    block += b"\r\nDate: " + http_date()
    if answer.status == 426:
        block += b"\r\nConnection: Upgrade\r\nUpgrade: HTTP/1.1"  # RFC 9110 section 15.5.22
    if close:
        block += b"\r\nConnection: close"
    phrase = answer.phrase or PHRASES.get(answer.status, b"")
    return b"HTTP/1.1 %d %b%b\r\n\r\n%b" % (answer.status, phrase, block, answer.body if with_body else b"")


def safe_phrase(text: str, limit: int) -> bytes:
    """Text for a status phrase: ASCII, no control characters, bounded."""
    phrase = text.encode("ascii", "replace")[:limit].strip()
    return phrase if VALUE.fullmatch(phrase) else b"Error"


def http_date() -> bytes:
    """The Date value, made once a second (RFC 9110 section 5.6.7)."""
    return _date_of(int(time.time()))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()
