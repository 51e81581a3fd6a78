"""The published examples of AWS for bodies in signed chunks, and bodies that are none."""

from time import process_time

import pytest

from egressproxy.filters.credentials.aws_chunks import ChunkError, ChunkSigner
from egressproxy.filters.credentials.aws_signature import AwsKeys, Scope, SigV4
from egressproxy.model.secret import SecretBytes

SIGNER = SigV4(
    AwsKeys("AKIAIOSFODNN7EXAMPLE", SecretBytes(b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")),
    Scope("s3", "us-east-1", is_s3=True),
)
TIME = b"20130524T000000Z"
THEIRS = b"f" * 64
PUT = b"/examplebucket/chunkObject.txt"


def head(payload, more=()):
    fields = [
        (b"content-encoding", b"aws-chunked"),
        (b"host", b"s3.amazonaws.com"),
        (b"x-amz-content-sha256", payload),
        (b"x-amz-date", TIME),
        (b"x-amz-decoded-content-length", b"66560"),
        (b"x-amz-storage-class", b"REDUCED_REDUNDANCY"),
        *more,
    ]
    return SIGNER.authorization(b"PUT", PUT, fields, payload, TIME)[1]


def body(signatures, end=b"\r\n"):
    first, second, last = signatures
    return b"".join((
        b"10000;chunk-signature=", first, b"\r\n", b"a" * 65536, b"\r\n",
        b"400;chunk-signature=", second, b"\r\n", b"a" * 1024, b"\r\n",
        b"0;chunk-signature=", last, b"\r\n", end,
    ))  # fmt: skip


def test_the_published_example():
    seed = head(b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", [(b"content-length", b"66824")])
    assert seed == b"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    made = ChunkSigner(SIGNER, TIME, seed, has_trailers=False).feed(body([THEIRS] * 3), True)
    assert made == body([
        b"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        b"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        b"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ])  # fmt: skip


def test_the_published_example_with_trailers():
    seed = head(b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", [(b"x-amz-trailer", b"x-amz-checksum-crc32c")])
    assert seed == b"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    end = b"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:%s\r\n\r\n"
    made = ChunkSigner(SIGNER, TIME, seed, has_trailers=True).feed(body([THEIRS] * 3, end % THEIRS), True)
    assert made == body([
        b"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        b"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        b"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ], end % b"d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435")  # fmt: skip


@pytest.mark.parametrize("size", [1, 63, 1000, 65600])
def test_the_pieces_in_which_it_comes_change_nothing(size):
    text = body([THEIRS] * 3)
    whole = ChunkSigner(SIGNER, TIME, THEIRS, has_trailers=False).feed(text, True)
    one = ChunkSigner(SIGNER, TIME, THEIRS, has_trailers=False)
    pieces = [one.feed(text[at : at + size], at + size >= len(text)) for at in range(0, len(text), size)]
    assert b"".join(pieces) == whole
    assert len(whole) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5;chunk-signature=short\r\nhello\r\n",
        b"5;chunk-signature=%s\r\nhelloworld" % THEIRS,
        b"ffffffff;chunk-signature=%s\r\n" % THEIRS,
        b"x" * 9000,
        b"0;chunk-signature=%s\r\n" % THEIRS,
        b"0;chunk-signature=%s\r\n\r\nmore" % THEIRS,
        b"",
    ],
)
def test_what_is_no_such_body_is_refused(text):
    with pytest.raises(ChunkError):
        ChunkSigner(SIGNER, TIME, THEIRS, has_trailers=False).feed(text, True)


def test_a_chunk_may_come_in_many_pieces_without_copying_what_is_there():
    """A client that sends one byte at a time makes the gateway no work that grows with the chunk."""
    size = 4 * 1024 * 1024
    signer = ChunkSigner(SIGNER, TIME, THEIRS, has_trailers=False)
    assert signer.feed(b"%x;chunk-signature=%b\r\n" % (size, b"0" * 64) + bytes(size - 20_000), False) == b""
    began = process_time()
    for _ in range(20_000):
        assert signer.feed(b"x", False) == b""
    assert process_time() - began < 2.0
    assert len(signer.feed(b"\r\n", False)) > size
