from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.model.path import has_dot_segment


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
