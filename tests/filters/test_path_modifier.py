import json

import pytest

from egressproxy.filters.path_modifier import PathReplacement, modify_path
from egressproxy.filters.validation import validated


@pytest.mark.parametrize(
    ("path", "prefix", "value", "modified"),
    [
        # Gateway API's table
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        # and what it leaves open
        ("/a", "/", "/xyz", "/xyz/a"),
        ("/", "/", "/xyz", "/xyz/"),
        ("/foo/bar?q=/foo", "/foo", "/xyz", "/xyz/bar?q=/foo"),
        ("/foo?q=1", "/foo", "", "/?q=1"),
        ("/a/b/c/d", "/a/b", "/x", "/x/c/d"),
        ("/%61/b", "/a", "/x", "/x/b"),
        ("/foo//bar", "/foo", "/x", "/x//bar"),
        ("*", "/", "/x", "*"),
        ("/foo", "", "/x", "/foo"),
    ],
)
def test_the_prefix_is_replaced_by_the_table_of_slashes(path, prefix, value, modified):
    assert (
        modify_path(PathReplacement(type="ReplacePrefixMatch", value=value), path.encode(), prefix.encode())
        == modified.encode()
    )


@pytest.mark.parametrize(
    ("path", "value", "modified"), [("/a/b?q=1", "/x", "/x?q=1"), ("/a", "", "/"), ("*", "/x", "/x")]
)
def test_the_full_path_is_replaced_and_the_query_kept(path, value, modified):
    assert modify_path(PathReplacement(type="ReplaceFullPath", value=value), path.encode(), b"") == modified.encode()


@pytest.mark.parametrize("value", ["x", "/a b", "/a?b", "/a#b", "/a\r\nX: y", "/%zz", "/é"])
def test_a_value_that_is_no_path_is_refused(value):
    with pytest.raises(ValueError, match="is not a path"):
        validated(PathReplacement, json.dumps({"type": "ReplaceFullPath", "value": value}))
