"""Whatever a client says in frames: no error escapes, every exchange is accounted for, and nothing is left behind."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.protocols.http2.field_coding import encoded_block
from tests.gateway.h2 import Http2Peer
from tests.gateway.kit import OK, forward
from tests.support.conversation import conversation
from tests.support.http2_client import head, raw_frame
from tests.support.properties import examples

STREAMS = (0, 1, 1, 3, 3, 5, 7, 2, 2**31 - 1)
BLOCKS = [
    encoded_block(fields)
    for fields in (
        head(b"GET", b"/", b"a.example"),
        head(b"POST", b"/", b"a.example"),
        [*head(b"POST", b"/", b"a.example"), (b"content-length", b"3")],
        [*head(b"POST", b"/", b"a.example"), (b"expect", b"100-continue")],
        [(b":method", b"CONNECT"), (b":authority", b"a.example:443")],
        [(b":method", b"CONNECT"), (b":authority", b"a.example:80")],
        [*head(b"CONNECT", b"/", b"a.example"), (b":protocol", b"websocket")],
        [(b"x-sum", b"1")],
        [(b"Bad", b"1")],
        [],
    )
] + [b"\xff\xff\xff", b"\x82"]

payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"abc", bytes(4), b"\0\0\0\1", b"\0\0\0\x08", bytes(8), b"\0\4\0\0\0\1"]),
)
heads = st.builds(
    lambda block, stream, flags: raw_frame(1, block, stream, flags),
    st.sampled_from(BLOCKS), st.sampled_from(STREAMS), st.sampled_from((4, 5, 5, 0, 1)),
)  # fmt: skip
others = st.builds(
    raw_frame, st.integers(0, 11), payloads, st.sampled_from(STREAMS), st.sampled_from((0, 0, 1, 4, 8, 0x20))
)
bodies = st.builds(
    lambda data, stream, flags: raw_frame(0, data, stream, flags),
    st.sampled_from([b"", b"abc", b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", bytes(9000)]),
    st.sampled_from((1, 3, 5)), st.sampled_from((0, 1)),
)  # fmt: skip
upstream = st.sampled_from(["answer", "half", "leave", "reset", "late", "time"])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(heads, bodies, others, upstream), max_size=14), st.booleans())
def test_no_frames_make_trouble(steps: list[bytes | str], has_websockets: bool):
    talk = conversation(forward(traffic={"http2": {"extendedConnect": has_websockets}}))
    talk.counts_octets = False
    client = Http2Peer(talk.client)
    try:
        for step in steps:
            dial = talk.pending_dial()
            if dial is not None and not dial.future.done() and step != "late":
                talk.dialled("a.example", dial.endpoints[0][1])
            if isinstance(step, bytes):
                if not talk.client.is_gone:
                    talk.client >> step
                continue
            origin = talk.origins[-1] if talk.origins else None
            if step == "time":
                talk.after(3)
            elif origin is None or origin.is_gone:
                continue
            elif step == "answer":
                origin >> OK
            elif step == "half":
                origin >> OK[:-1]
            elif step == "leave":
                origin.leaves()
            elif step == "reset":
                origin.resets()
    finally:
        while talk.dialer.dials:
            dial = talk.dialer.dials[0]
            if dial.future.done():
                talk.dialer.dials.pop(0)
            else:
                talk.dialled("a.example", dial.endpoints[0][1])
        client.wire = talk.client
        talk.close()
