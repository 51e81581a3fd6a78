"""The kind of a body by its Content-Type: what is kept of it is what is read of the line, and has a bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egressproxy.ai.content import body_kinds
from egressproxy.ai.content.body_kinds import BodyKind, type_and_kind_of
from egressproxy.model.fields import Fields
from tests.support.properties import examples

TYPES = st.sampled_from(
    [b"application/json", b"Text/Plain", b"text/event-stream", b"application/x-ndjson", b"application/vnd.a+json",
     b"application/x-www-form-urlencoded", b"image/png", b"", b"multipart/form-data"]
)  # fmt: skip
PARAMETERS = st.sampled_from(
    [b"", b"; charset=UTF-8", b';charset="utf-16"', b"; a=b", b"; charset=", b"; a=" + b"b" * 150]
)
LINES = st.lists(st.builds(bytes.__add__, TYPES, PARAMETERS), max_size=2)


@given(LINES)
@settings(max_examples=examples(200))
def test_what_is_kept_of_a_type_is_what_is_read_of_it(lines: list[bytes]):
    fields = Fields.of([(b"Content-Type", line.strip()) for line in lines])
    values = fields.get_all(b"content-type")
    none = (b"?", BodyKind.OTHER) if lines else (b"", BodyKind.UNKNOWN)
    expected = body_kinds._kind_of_line(values[0]) if len(lines) == 1 else none
    assert type_and_kind_of(fields) == expected
    assert type_and_kind_of(fields) == expected


@pytest.mark.parametrize("more", [b"", b"x" * 200])
def test_only_so_many_types_are_kept_and_no_long_ones(more: bytes):
    body_kinds._known_types.clear()
    for number in range(600):
        line = b"application/json; v=%d%s" % (number, more)
        assert type_and_kind_of(Fields.of([(b"content-type", line)])) == (b"application/json", BodyKind.JSON)
        assert len(body_kinds._known_types) <= (0 if more else 256)
    assert bool(body_kinds._known_types) is not bool(more)
