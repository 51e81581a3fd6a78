"""Heads of messages."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.model.authority import Authority
from egressproxy.model.fields import Fields
from egressproxy.model.message import Hop, RequestHead, has_dot_segment
from tests.support.attributes import attributes
from tests.support.builds import of_sources


@of_sources
def test_a_copied_head_says_the_same_and_has_fields_of_its_own():
    hop = Hop(Authority("a.example", 80), 7, True, http_1_0=True, te_trailers=True, upgrade=b"x", via=b"1.1 y")
    head = RequestHead(b"POST", b"http://a.example/b?c", Fields.of([(b"a", b"1")]), hop)
    head.scheme, head.host, head.path = b"http", b"a.example", b"/b?c"
    head.expect_continue, head.max_forwards = True, 3
    fresh = attributes(RequestHead(b"POST", b"http://a.example/b?c", Fields(), Hop()))
    assert [name for name, value in attributes(head).items() if value == fresh[name]] == ["method", "target"]
    made = head.copy()
    assert made.fields.block == head.fields.block
    assert made.fields is not head.fields
    said, copied = attributes(head), attributes(made)
    assert {**copied, "fields": None} == {**said, "fields": None}


@pytest.mark.parametrize(
    "path", [b"/", b"/a.b/c", b"/.a", b"/..a", b"/a..", b"/...", b"*", b"", b"/%2ea", b"/a%2f.b", b"/;.."]
)
def test_dots_that_are_part_of_a_name_are_no_dot_segment(path):
    assert not has_dot_segment(path)


@given(st.binary(max_size=40).map(lambda tail: b"/" + tail.replace(b"?", b"")))
def test_a_path_that_resolves_elsewhere_is_always_seen_as_having_dot_segments(path):
    resolved = unquote_to_bytes(unquote_to_bytes(path)).replace(b"\\", b"/").split(b"/")
    if any(segment.partition(b";")[0] in (b".", b"..") for segment in resolved):
        assert has_dot_segment(path)
