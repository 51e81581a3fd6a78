import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.limits.redis_link import ReplyError, ReplyReader

STREAM = b"+OK\r\n:-42\r\n$5\r\na\r\nbc\r\n$-1\r\n*3\r\n:1\r\n*-1\r\n$0\r\n\r\n-NOSCRIPT no such\r\n*0\r\n"
SAID = [b"OK", -42, b"a\r\nbc", None, [1, None, b""], "NOSCRIPT", []]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_replies_are_the_same_wherever_they_are_cut(cuts):
    reader, replies, begin = ReplyReader(), [], 0
    for end in [*sorted(cuts), len(STREAM)]:
        replies += reader.feed(STREAM[begin:end])
        begin = end
    assert [reply.code if isinstance(reply, ReplyError) else reply for reply in replies] == SAID


@pytest.mark.parametrize("pieces", [1, 8])
@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400\r\n",
        b":x\r\n",
        b"$1100000\r\n" + b"a" * 1_100_000,
        b"*99999\r\n",
        b">1\r\n:1\r\n",
        b"%1\r\n*0\r\n+a\r\n",
        b"*1\r\n*4294967295\r\n",
    ],
)
def test_what_is_no_reply_is_refused(data, pieces):
    reader, size = ReplyReader(), -(-len(data) // pieces)
    with pytest.raises(ValueError):
        list(map(reader.feed, [data[begin : begin + size] for begin in range(0, len(data), size)]))
