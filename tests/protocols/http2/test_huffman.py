"""The Huffman code is what hpack makes of it."""

from __future__ import annotations

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.protocols.http2 import huffman
from egressproxy.protocols.http2.huffman import decoded

ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.one_of(st.binary(), st.text(st.characters(max_codepoint=126)).map(str.encode)))
def test_what_hpack_encodes_is_decoded(text: bytes):
    assert decoded(ENCODER.encode(text)) == text


@given(st.binary(max_size=40))
def test_rubbish_is_what_it_is_to_hpack(code: bytes):
    try:
        expected = bytes(decode_huffman(code))
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            decoded(code)
    else:
        assert decoded(code) == expected


def test_only_so_many_steps_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huffman, "MAX_STEPS", 10)
    monkeypatch.setattr(huffman, "_STEPS", huffman._Steps())
    text = bytes(range(256))
    assert decoded(ENCODER.encode(text)) == text
    assert len(huffman._STEPS) == 10
