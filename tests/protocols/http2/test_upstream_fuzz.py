"""Whatever a backend says on a connection, every call ends, every place comes back, and nothing else is raised."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egressproxy.errors import Reason, UpstreamFault
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.protocols.http2.upstream import PING_AGAIN_S, PING_ANSWER_S, SILENCE_S
from tests.protocols.http2.test_upstream import Call, Talk, frame

KINDS = st.sampled_from((0, 0, 1, 1, *range(11), 99))
STREAMS = st.sampled_from((0, 1, 1, 3, 5, 2, 9, 2**31 - 1))
FLAGS = st.sampled_from((0, 1, 4, 5, 8, 0x20, 0x2C, 0xFF))
PAYLOADS = st.one_of(
    st.sampled_from((
        b"", b"\x88", b"\x88\x5c\x015", b"\x8d", b"\x48\x03103", b"\x88\x00\x01a\x01b", b"hello", bytes(4), bytes(8),
        b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\0\3\0\0\0\0", b"\0\3\0\0\0\1", b"\0\4\x7f\xff\xff\xff", b"\0\4\0\0\0\0",
    )),
    st.binary(max_size=40),
)  # fmt: skip
FRAMES = st.lists(st.builds(frame, KINDS, FLAGS, STREAMS, PAYLOADS), max_size=12)
REQUESTS = st.lists(
    st.tuples(st.sampled_from((b"GET", b"HEAD", b"POST")), st.sampled_from((None, b"ok", bytes(70_000)))),
    min_size=1,
    max_size=4,
)


@given(requests=REQUESTS, frames=FRAMES, cut=st.integers(1, 200), leaves=st.booleans())
async def test_every_call_ends_and_every_place_comes_back(
    requests: list[tuple[bytes, bytes | None]], frames: list[bytes], cut: int, leaves: bool
):
    talk = Talk()
    await talk.settle()
    calls = []
    for method, body in requests:
        head = RequestHead(method, b"/", Fields())
        head.body = len(body) if body is not None else 0
        calls.append(Call(talk, head).start(body))
    await talk.settle()
    data = b"".join(frames)
    for at in range(0, len(data), cut):
        talk.connection.data_received(data[at : at + cut])
    await talk.settle()
    if leaves:
        calls[0].driver.throw(UpstreamFault(Reason.RESPONSE_TIMEOUT, "late"))
    talk.server.is_gone = True
    for seconds in (SILENCE_S + 1, PING_ANSWER_S + 1, PING_AGAIN_S + 1, PING_ANSWER_S + 1):
        talk.wheel.advance(talk.wheel.now + seconds)
    talk.connection.connection_lost(None)
    assert talk.connection.active == 0
    assert not talk.connection.streams
    assert all(call.error is not None or call.status for call in calls)
