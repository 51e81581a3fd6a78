"""Bodies in aws-chunked: what their chunks hold, in whatever pieces they come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.filters.aws_chunked import AwsChunks, MalformedChunks

SIGNATURE = b";chunk-signature=" + b"0f" * 32


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.lists(st.integers(0, 400), max_size=8),
    st.sampled_from([b"", SIGNATURE, SIGNATURE + b"**"]),
    st.sampled_from([b"", b"x-amz-checksum-crc32:AAAAAA==\r\n"]),
)
def test_every_cut_gives_the_same(parts: list[bytes], cuts: list[int], signature: bytes, trailers: bytes):
    chunks = b"".join(b"%X%b\r\n%b\r\n" % (len(part), signature, part) for part in parts)
    text = chunks + b"0%b\r\n%b\r\nrest" % (signature, trailers)
    reader, found, rest = AwsChunks(), b"", b""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for begin, end in pairwise(places):
        if reader.is_over:
            rest += text[begin:end]
            continue
        part, rest = reader.read(text[begin:end])
        found += part
    assert (found, rest, reader.is_over) == (b"".join(parts), b"rest", True)
    assert reader.trailers == trailers.replace(b"\r\n", b"\n") + b"\n"


@pytest.mark.parametrize(
    "text",
    [
        b"\r\n",
        b"g\r\n",
        b"1" * 17 + b"\r\n",
        b"-1\r\n",
        b"5;a=b\r\n",
        b"1\r\naXX\r\n",
        b"x" * 8192,
        b"0\r\n" + b"a:b\r\n" * 33,
    ],
)
def test_what_is_none(text: bytes):
    with pytest.raises(MalformedChunks):
        AwsChunks().read(text)
