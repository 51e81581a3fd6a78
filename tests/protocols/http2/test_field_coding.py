"""HPACK: what our decoder and encoder make is what hpack makes of it."""

from __future__ import annotations

import pytest
from h2.errors import ErrorCodes
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import assume, given
from hypothesis import strategies as st

from egressproxy.protocols.http2 import field_coding
from egressproxy.protocols.http2.field_coding import (
    _NAMES,
    MAX_LINES,
    MAX_NAMES,
    MAX_REMEMBERED,
    MAX_RESIZES,
    NO_TABLE,
    EncodedLines,
    FieldDecoder,
    _remembered,
    _start,
    encoded,
    encoded_block,
    huffman_decoded,
    is_sensitive,
)
from egressproxy.protocols.http2.frames import RemoteProtocolError
from tests.support.builds import of_sources

NAMES = st.sampled_from([b":method", b":path", b":status", b"accept", b"cookie", b"authorization", b"x-a", b"x" * 130])
VALUES = st.one_of(st.sampled_from([b"", b"GET", b"/", b"200", b"gzip, deflate", b"v" * 300]), st.binary(max_size=40))
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


def decoder(max_fields: int = 512, max_size: int = 1 << 20) -> FieldDecoder:
    return FieldDecoder(max_fields, max_size)


@given(st.lists(st.tuples(LISTS, st.booleans()), max_size=6))
def test_what_hpack_encodes_is_decoded(lists: list[tuple[list[tuple[bytes, bytes]], bool]]):
    """On one connection: tables grow, and the same block may mean something else later."""
    encoder, ours = Encoder(), decoder()
    for fields, huffman in lists:
        assert ours.decode(encoder.encode(fields, huffman=huffman)) == fields


@given(st.lists(LISTS, max_size=4))
def test_what_is_encoded_hpack_decodes(lists: list[list[tuple[bytes, bytes]]]):
    theirs, before = Decoder(), NO_TABLE
    for fields in lists:
        assert [tuple(field) for field in theirs.decode(before + encoded_block(fields), raw=True)] == fields
        before = b""
    assert not theirs.header_table.dynamic_entries


@given(st.binary(max_size=60))
def test_rubbish_is_refused_where_hpack_refuses_it(data: bytes):
    try:
        expected = [tuple(field) for field in Decoder().decode(data, raw=True)]
    except (HPACKError, IndexError):
        with pytest.raises(RemoteProtocolError, match="cannot be decoded") as raised:
            decoder().decode(data)
        assert raised.value.code == ErrorCodes.COMPRESSION_ERROR
    else:
        sizes = next((at for at, byte in enumerate(data) if byte & 0xE0 != 0x20), len(data))
        assume(sizes <= MAX_RESIZES)
        assert decoder().decode(data) == expected


def test_a_table_that_changes_is_never_remembered_wrongly():
    """The same bytes mean the newest entry of the table: index 62."""
    ours = decoder()
    first = b"\x40\x01a\x01b"
    assert ours.decode(first) == [(b"a", b"b")]
    assert ours.decode(b"\xbe") == [(b"a", b"b")]
    assert ours.decode(b"\xbe") == [(b"a", b"b")]
    assert ours.decode(b"\x40\x01c\x01d") == [(b"c", b"d")]
    assert ours.decode(b"\xbe") == [(b"c", b"d")]
    ours.decode(b"\x20\x82")
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        ours.decode(b"\xbe")


def test_equal_blocks_are_decoded_once():
    ours = decoder()
    block = encoded_block([(b":method", b"GET")])
    assert ours.decode(block) is ours.decode(block)


def test_equal_blocks_are_decoded_once_where_the_table_has_no_size():
    """As of servers that say that their table is empty, and still put their fields into it."""
    ours = decoder()
    assert ours.decode(b"\x20\x40\x01a\x01b") == [(b"a", b"b")]
    again = ours.decode(b"\x40\x01a\x01b")
    assert again == [(b"a", b"b")]
    assert ours.decode(b"\x40\x01a\x01b") is again
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        ours.decode(b"\xbe")


def test_names_are_decoded_as_other_strings_are():
    names = [b"n%d" % number for number in range(MAX_NAMES + 10)] + [b"l" * size for size in range(1, 300)]
    for is_huffman in (False, True):
        for name in names:
            block = Encoder().encode([(name, b"v")], huffman=is_huffman)
            assert decoder().decode(block) == [(name, b"v")]
            assert decoder().decode(block) == [(name, b"v")]
            assert len(_NAMES) <= MAX_NAMES
            with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
                decoder().decode(block[:-2])


@pytest.mark.parametrize(("fields", "size"), [(9, 1 << 20), (1000, 300)])
def test_long_lists_end_the_connection(fields: int, size: int):
    ours = decoder(fields, size)
    with pytest.raises(RemoteProtocolError) as raised:
        ours.decode(b"\x82" * 10)
    assert raised.value.code is ErrorCodes.ENHANCE_YOUR_CALM


def test_endless_integers_are_refused_at_once():
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        decoder().decode(b"\xff" * 100_000)


def test_a_block_changes_the_size_of_the_table_twice_at_most():
    """Each change costs as much as a field, and no limit of fields would count it."""
    ours = decoder()
    assert ours.decode(b"\x20\x3f\xe1\x1f\x82") == [(b":method", b"GET")]
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        ours.decode(b"\x20\x20\x20\x82")


@pytest.mark.parametrize("value", [b"", b"v" * MAX_REMEMBERED])
def test_nothing_is_remembered_of_long_names(value: bytes):
    """Else those of all connections could take hundreds of megabytes."""
    encoded_block([(b"a", b"b")])
    kept = _remembered.cache_info().misses, _start.cache_info().misses
    encoded_block([(b"n" * MAX_REMEMBERED + b"m", value)])
    assert (_remembered.cache_info().misses, _start.cache_info().misses) == kept


@pytest.mark.parametrize(
    "name", [b"authorization", b"cookie", b"set-cookie", b"x-api-key", b"x-vendor-token", b"t" * 300 + b"key"]
)
def test_credentials_are_never_indexed_by_any_hop(name: bytes):
    (field,) = Decoder().decode(encoded_block([(name, b"secret")]), raw=True)
    assert isinstance(field, NeverIndexedHeaderTuple)


def test_the_authority_is_no_credential():
    assert not is_sensitive(b":authority")
    assert is_sensitive(b"x-auth")


@pytest.mark.parametrize(("name", "is_kept"), [(b"X-Vendor-Token", False), (b"Cookie", False), (b"X-Vendor", True)])
def test_a_credential_is_remembered_by_nobody(name: bytes, is_kept: bool):
    lines = EncodedLines(frozenset())
    line = name + b": s3cret"
    assert lines[line] == encoded(name.lower(), b"s3cret")
    assert (line in lines) is is_kept


def test_a_table_that_has_to_shrink_and_does_not_is_refused():
    ours = decoder()
    ours.max_allowed_table_size = 100
    with pytest.raises(RemoteProtocolError, match="cannot be decoded"):
        ours.decode(b"\x82")


@given(st.lists(st.tuples(NAMES, st.sampled_from([b"", b"GET", b"gzip, deflate", b"v" * 300]), st.booleans())))
def test_lines_are_encoded_as_fields_are(lines: list[tuple[bytes, bytes, bool]]):
    """Whatever their case, and blanks around a value."""
    known = EncodedLines(frozenset((b"accept",)))
    kept = [(name, value) for name, value, _ in lines if name != b"accept" and name[:1] != b":"]
    spelt = [b"%b:%b" % (name.title(), b" " + value + b"\t" if padded else value) for name, value, padded in lines
             if name[:1] != b":"]  # fmt: skip
    for _ in range(2):
        code = b"".join(map(known.__getitem__, spelt))
        decoded = Decoder().decode(code, raw=True)
        assert [tuple(field) for field in decoded] == kept
        for field in decoded:
            assert isinstance(field, NeverIndexedHeaderTuple) is (field[0] in (b"cookie", b"authorization"))
    assert not any(line.lower().startswith((b"cookie", b"authorization")) for line in known)
    assert all(len(line) <= 256 for line in known)


def test_lines_that_are_remembered_are_not_more_than_so_many():
    known = EncodedLines(frozenset())
    for number in range(3 * MAX_LINES):
        assert known[b"x-a: %d" % number].endswith(b"%d" % number)
        assert len(known) <= MAX_LINES


ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


@given(st.one_of(st.binary(), st.text(st.characters(max_codepoint=126)).map(str.encode)))
def test_what_hpack_codes_with_huffman_is_decoded(text: bytes):
    assert huffman_decoded(ENCODER.encode(text)) == text


@given(st.binary(max_size=40))
def test_rubbish_is_what_it_is_to_hpack(code: bytes):
    try:
        expected = bytes(decode_huffman(code))
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            huffman_decoded(code)
    else:
        assert huffman_decoded(code) == expected


@of_sources
def test_only_so_many_steps_are_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(field_coding, "MAX_STEPS", 10)
    monkeypatch.setattr(field_coding, "_STEPS", field_coding._Steps())
    text = bytes(range(256))
    assert huffman_decoded(ENCODER.encode(text)) == text
    assert len(field_coding._STEPS) == 10
