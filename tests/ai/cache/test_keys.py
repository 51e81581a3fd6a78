"""What keys of the cache are made of."""

import json

from hypothesis import given
from hypothesis import strategies as st

from egressproxy.ai.cache.keys import digest, in_order, telling, told_by
from egressproxy.model.fields import Fields

TEXTS = st.text(st.sampled_from('ab"\\é\u2028\ud800'), max_size=3)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
PARTS = st.lists(st.sampled_from([b"", b"1", b"11", b",", b":", b"1:", b"a"]), max_size=4)
LINES = st.lists(
    st.tuples(
        st.sampled_from(["Accept", "ACCEPT", "x-a", "X-B", "Other"]), st.sampled_from(["", "1", " 2 \t", "x-a:1"])
    ),
    max_size=5,
)


@given(value=VALUES)
def test_a_value_is_written_in_one_way_whatever_the_order_of_its_members(value):
    def turned(each):
        if isinstance(each, dict):
            return {name: turned(each[name]) for name in reversed(each)}
        return [turned(one) for one in each] if isinstance(each, list) else each

    written = in_order(value)
    assert written == in_order(turned(value))
    assert json.loads(written) == value

    def names_of(pairs):
        assert pairs == sorted(pairs, key=lambda pair: pair[0])
        return dict(pairs)

    json.loads(written, object_pairs_hook=names_of)


@given(one=PARTS, other=PARTS)
def test_other_parts_have_another_digest(one, other):
    assert (digest(one) == digest(other)) is (one == other)


@given(one=LINES, other=LINES)
def test_fields_tell_the_same_where_each_name_has_the_same_values_in_their_order(one, other):
    names = (b"accept", b"X-A", b"x-b", b"accept")

    def block(lines):
        return Fields("".join(f"\r\n{name}: {value}" for name, value in lines).encode())

    def values(lines):
        return [block(lines).get_all(name.lower()) for name in names]

    told = telling(names)
    assert (told_by(told, block(one)) == told_by(told, block(other))) is (values(one) == values(other))
