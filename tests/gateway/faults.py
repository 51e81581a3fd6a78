"""Faults of providers, by the state of the exchange in which they come, and what has to come of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from h2.errors import ErrorCodes

from tests.support.fault_proxy import Do, Fault, FilterStep, Http2Side, When, begins, data, ends, goaway, rst, settings
from tests.support.http2 import GrpcCall
from tests.support.http2_client import raw_frame

BODY = b"a request body " * 300
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = OK + b"Content-Length: 20\r\n\r\n"


CANCELLED, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 1, 4, 7, 8, 13, 14
#: gRPC over HTTP2, Errors; INTERNAL for every other code.
_STATUS_OF_RESET = {7: UNAVAILABLE, 8: CANCELLED, 11: RESOURCE_EXHAUSTED, 12: PERMISSION_DENIED}


class Seen(Enum):
    """What a client sees of a fault, where the request does not go again."""

    RIGHT = "the right answer"
    ERROR = "an error of the gateway's, whole"
    CUT = "an answer that has begun, and that visibly breaks off"


CUT, RIGHT = Seen.CUT, Seen.RIGHT


class Again(Enum):
    """When a request may be sent again that has met a fault."""

    NEVER = "never"
    IDEMPOTENT = "where it is idempotent and the rule has retries"
    STALE = "and without retries, where its connection was a used one and it has no body"
    UNSENT = "where the rule has retries: there was no connection"
    UNSEEN = "always: the provider has not looked at it. A body has to be kept, by a rule with retries"


@dataclass(frozen=True)
class Expected:
    """A fault, and what comes of it."""

    fault: Fault
    seen: Seen
    again: Again = Again.NEVER
    grpc_status: int = UNAVAILABLE
    is_blamed: bool = True
    is_blamed_warm: bool = True  # on a connection that has served before
    in_tls: bool = False
    is_left_out: bool = False  # a GOAWAY says so
    stalls: bool = False
    body: bytes = BODY
    methods: tuple[bytes, ...] = (b"GET", b"POST")

    @property
    def sends_content(self) -> bool:
        """Whether a byte of the answer's content comes before the fault."""
        steps = self.fault.steps
        return data in steps or any(isinstance(step, bytes) and b"half" in step for step in steps)

    @property
    def may_be_in_tls(self) -> bool:
        """Not where half of a connection is closed, which TLS has no word for."""
        return Do.END not in self.fault.steps and (self.in_tls or self.fault.when is not When.ACCEPT)


def fault(
    name: str, *steps: FilterStep, seen: Seen = Seen.ERROR, again: Again = Again.IDEMPOTENT, when: When = When.WHOLE,
    **more: Any,
) -> Expected:  # fmt: skip
    if seen is not Seen.ERROR:
        again = Again.NEVER
    more.setdefault("is_blamed", seen is not Seen.RIGHT)
    more.setdefault("is_blamed_warm", more["is_blamed"] and again is not Again.STALE)
    more.setdefault("stalls", Do.STALL in steps)
    if more["stalls"] and seen is Seen.ERROR:
        more.setdefault("grpc_status", DEADLINE_EXCEEDED)
    return Expected(Fault(name, steps, when), seen, again, **more)


def reset(name: str, code: ErrorCodes | int, *before: FilterStep, **more: Any) -> Expected:
    """RST_STREAM with this code, behind these steps."""
    return fault(name, *before, rst(code), grpc_status=_STATUS_OF_RESET.get(int(code), INTERNAL), **more)


#: What a GOAWAY says has not been looked at.
LEFT_OUT: dict[str, Any] = {"again": Again.UNSEEN, "is_blamed_warm": False, "is_left_out": True}

#: Of a connection that nobody serves.
HANDSHAKES = [
    fault("reset-in-handshake", Do.RESET, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
    fault("closed-in-handshake", Do.CLOSE, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
    fault("stall-in-handshake", Do.STALL, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
    fault("no-tls", b"HTTP/1.1 400 Bad Request\r\n\r\n", Do.CLOSE, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
    fault("alert", b"\x15\x03\x03\x00\x02\x02\x28", Do.CLOSE, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
    fault("half-a-record", b"\x16\x03\x03\x40\x00\x02", Do.CLOSE, when=When.ACCEPT, again=Again.UNSENT, in_tls=True),
]
CONNECTIONS = [
    fault("reset-at-accept", Do.RESET, when=When.ACCEPT, again=Again.STALE),
    fault("closed-at-accept", Do.CLOSE, when=When.ACCEPT, again=Again.STALE),
    fault("stall-at-accept", Do.STALL, when=When.ACCEPT),
    fault("garbage-at-accept", b"\x00\x01\x02 no such protocol\r\n\r\n", Do.CLOSE, when=When.ACCEPT, again=Again.NEVER),
]

HTTP1 = [
    # delay
    fault("slow", Do.PAUSE, Do.PAUSE, ends, seen=RIGHT),
    fault("byte-by-byte", Do.DRIP, ends, seen=RIGHT),
    fault("closed-right-behind-the-end", ends, Do.CLOSE, seen=RIGHT),
    # before a head
    fault("reset-before-body", Do.RESET, when=When.HEAD, again=Again.STALE),
    fault("closed-before-body", Do.CLOSE, when=When.HEAD, again=Again.STALE),
    fault("reset", Do.RESET, again=Again.STALE),
    fault("closed", Do.CLOSE, again=Again.STALE),
    fault("half-open", Do.END, Do.STALL, again=Again.STALE),
    fault("stall", Do.STALL),
    fault("no-http", b"\x16\x03\x01 this is no HTTP\r\n\r\n", again=Again.NEVER),
    fault("status-of-letters", b"HTTP/1.1 abc OK\r\n\r\n", again=Again.NEVER),
    fault("two-lengths", OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", again=Again.NEVER),
    fault("unasked-upgrade", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
          again=Again.NEVER),
    # inside it
    fault("reset-in-head", OK + b"Content-", Do.RESET),
    fault("closed-in-head", OK + b"Content-", Do.CLOSE),
    fault("stall-in-head", OK + b"Content-", Do.STALL),
    fault("closed-after-interim", b"HTTP/1.1 103 Early Hints\r\n\r\n", Do.CLOSE),
    # behind it
    fault("reset-after-head", LENGTH, Do.RESET, seen=CUT),
    fault("closed-after-head", LENGTH, Do.CLOSE, seen=CUT),
    fault("stall-after-head", LENGTH, Do.STALL, seen=CUT, is_blamed=False),
    # inside a body
    fault("reset-in-body", LENGTH + b"half", Do.RESET, seen=CUT),
    fault("closed-in-body", LENGTH + b"half", Do.CLOSE, seen=CUT),
    fault("stall-in-body", LENGTH + b"half", Do.STALL, seen=CUT, is_blamed=False),
    fault("reset-without-length", OK + b"\r\nhalf", Do.RESET, seen=CUT),
    fault("closed-in-chunk", CHUNKED + b"a\r\nhalf", Do.CLOSE, seen=CUT),
    fault("closed-in-size", CHUNKED + b"4\r\nhalf\r\na", Do.CLOSE, seen=CUT),
    fault("closed-between-chunks", CHUNKED + b"4\r\nhalf\r\n", Do.CLOSE, seen=CUT),
    fault("reset-between-chunks", CHUNKED + b"4\r\nhalf\r\n", Do.RESET, seen=CUT),
    fault("no-chunk", CHUNKED + b"4\r\nhalf\r\n", b"zz\r\n", seen=CUT),
    # before trailers, and inside them
    fault("closed-before-trailers", CHUNKED + b"4\r\nhalf\r\n0\r\n", Do.CLOSE, seen=CUT),
    fault("stall-before-trailers", CHUNKED + b"4\r\nhalf\r\n0\r\n", Do.STALL, seen=CUT, is_blamed=False),
    fault("closed-in-trailers", CHUNKED + b"4\r\nhalf\r\n0\r\nx-a: ", Do.CLOSE, seen=CUT),
]  # fmt: skip


_RESETS = [code for code in ErrorCodes if code not in (ErrorCodes.REFUSED_STREAM, ErrorCodes.HTTP_1_1_REQUIRED)]
_SOME = (ErrorCodes.NO_ERROR, ErrorCodes.INTERNAL_ERROR, ErrorCodes.REFUSED_STREAM, ErrorCodes.CANCEL,
         ErrorCodes.HTTP_1_1_REQUIRED)  # fmt: skip
_BROKEN = {
    "http1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "data-of-no-stream": raw_frame(0, b"x", 0),
    "data-of-idle-stream": raw_frame(0, b"x", 2001),
    "head-that-cannot-be-decoded": raw_frame(1, b"\xff\xff\xff\xff\xff\xff\xff", 1, 4),
    "settings-of-odd-length": raw_frame(4, b"12345"),
    "settings-of-too-large-a-window": raw_frame(4, b"\x00\x04\xff\xff\xff\xff"),
    "settings-that-allow-push": raw_frame(4, b"\x00\x02\x00\x00\x00\x07"),
    "push": raw_frame(5, (2).to_bytes(4, "big") + b"\x88", 1, 4),
    "frame-that-is-too-long": b"\x7f\xff\xff\x00\x00\x00\x00\x00\x01",
    "window-of-0": raw_frame(8, bytes(4), 0),
    "window-that-overflows": raw_frame(8, b"\x7f\xff\xff\xff", 0),
    "continuation-of-nothing": raw_frame(9, b"\x88", 1, 4),
    "reset-of-idle-stream": raw_frame(3, bytes(4), 2001),
}
#: What says nothing against the answer.
_HARMLESS = {
    "unknown-frame": raw_frame(0xBB, b"whatever", 1),
    "priority": raw_frame(2, b"\x00\x00\x00\x00\x10", 1),
    "ping": raw_frame(6, b"12345678"),
    "unknown-setting": raw_frame(4, b"\xab\xcd\x00\x00\x00\x01"),
}


def closes_window(side: Http2Side, call: GrpcCall) -> None:
    """From now on no window is given back."""
    side.server.opens_windows = False


def hints(side: Http2Side, call: GrpcCall) -> None:
    """103: the request is being looked at."""
    side.server.h2.send_headers(call.stream, [(b":status", b"103")])


def all_at_once(*steps: FilterStep) -> FilterStep:
    """Frames of one write."""

    def step(side: Http2Side, call: GrpcCall) -> None:
        for each in steps:
            assert callable(each)
            each(side, call)

    return step


HTTP2 = [
    # delay
    fault("slow", Do.PAUSE, begins, Do.PAUSE, ends, seen=RIGHT),
    fault("byte-by-byte", Do.DRIP, ends, seen=RIGHT),
    # before a head
    fault("reset", Do.RESET, again=Again.STALE),
    fault("closed", Do.CLOSE, again=Again.STALE),
    fault("reset-before-body", Do.RESET, when=When.HEAD, again=Again.STALE),
    fault("half-open", Do.END, Do.STALL, again=Again.STALE, grpc_status=UNAVAILABLE),
    fault("stall", Do.STALL),
    fault("stall-after-interim", begins, Do.STALL, seen=CUT, is_blamed=False),
    *(reset(f"rst-{code.name}", code) for code in _RESETS),
    *(reset(f"rst-{code.name}-of-open-stream", code, when=When.HEAD, methods=(b"POST",))
      for code in (ErrorCodes.NO_ERROR, ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR)),
    reset("rst-of-unknown-code", 4242),
    reset("rst-REFUSED_STREAM", ErrorCodes.REFUSED_STREAM, again=Again.UNSEEN),
    reset("rst-REFUSED_STREAM-of-open-stream", ErrorCodes.REFUSED_STREAM, when=When.HEAD, again=Again.UNSEEN),
    fault("rst-of-idle-stream", rst(ErrorCodes.CANCEL, stream=100)),
    *(fault(name, frames, when=When.HEAD if name == "push" else When.WHOLE) for name, frames in _BROKEN.items()),
    *(fault(name, frames, ends, seen=RIGHT) for name, frames in _HARMLESS.items()),
    # GOAWAY
    fault("goaway-below", goaway(2), **LEFT_OUT),
    fault("goaway-below-of-open-stream", goaway(2), when=When.HEAD, **LEFT_OUT),
    fault("goaway-below-with-an-error", goaway(2, ErrorCodes.INTERNAL_ERROR), **LEFT_OUT),
    fault("goaway-below-then-closed", goaway(2), Do.CLOSE, **LEFT_OUT),
    fault("goaway-at", goaway(0), ends, seen=RIGHT),
    fault("goaway-at-twice", goaway(-(2**31)), goaway(0), ends, seen=RIGHT),
    fault("goaway-then-below", goaway(-(2**31)), goaway(2), **LEFT_OUT),
    fault("goaway-at-then-closed", goaway(0), Do.CLOSE, again=Again.STALE),
    fault("goaway-at-then-reset", goaway(0), Do.RESET, again=Again.STALE),
    fault("goaway-at-within-the-answer", begins, goaway(0), ends, seen=RIGHT),
    fault("goaway-after-head-then-closed", begins, goaway(0), Do.CLOSE, seen=CUT),
    # behind a head
    fault("reset-after-head", begins, Do.RESET, seen=CUT),
    fault("closed-after-head", begins, Do.CLOSE, seen=CUT),
    fault("stall-after-head", begins, Do.STALL, seen=CUT, is_blamed=False),
    fault("refused-with-the-head", all_at_once(begins, rst(ErrorCodes.REFUSED_STREAM))),
    fault("goaway-below-with-the-head", all_at_once(begins, goaway(2))),
    fault("refused-behind-an-interim-head", all_at_once(hints, rst(ErrorCodes.REFUSED_STREAM))),
    fault("goaway-below-after-head", begins, goaway(2), seen=CUT),
    *(reset(f"rst-{code.name}-after-head", code, begins, seen=CUT) for code in _SOME),
    fault("malformed-after-head", begins, _BROKEN["data-of-no-stream"], seen=CUT),
    # inside a body
    fault("reset-in-body", begins, data, Do.RESET, seen=CUT),
    fault("closed-in-body", begins, data, Do.CLOSE, seen=CUT),
    fault("stall-in-body", begins, data, Do.STALL, seen=CUT, is_blamed=False),
    *(reset(f"rst-{code.name}-in-body", code, begins, data, seen=CUT) for code in _SOME),
    # behind the end
    *(fault(f"rst-{code.name}-after-end", ends, rst(code), seen=RIGHT)
      for code in (ErrorCodes.NO_ERROR, ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR)),
    fault("goaway-after-end", ends, goaway(0), Do.CLOSE, seen=RIGHT),
    # settings and windows
    fault("small-window-in-the-middle", settings(INITIAL_WINDOW_SIZE=0), begins, settings(INITIAL_WINDOW_SIZE=70000),
          ends, seen=RIGHT),
    fault("no-more-streams-in-the-middle", settings(MAX_CONCURRENT_STREAMS=0), ends, seen=RIGHT),
    fault("another-table-in-the-middle", begins, settings(HEADER_TABLE_SIZE=0), ends, seen=RIGHT),
    fault("another-frame-size-in-the-middle", begins, settings(MAX_FRAME_SIZE=1 << 20), ends, seen=RIGHT),
    fault("a-window-that-never-opens", closes_window, when=When.HEAD, methods=(b"POST",), body=BODY * 50,
          stalls=True, is_blamed=False),
]  # fmt: skip
