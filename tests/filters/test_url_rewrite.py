import json

import pytest

from egressproxy.errors import BadRequest, Reason
from egressproxy.filters import Exchange, FilterContext
from egressproxy.filters.url_rewrite import PathReplacement, UrlRewriteConfig, UrlRewriteFilter, modify_path
from egressproxy.filters.validation import validated
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead


def rewritten(target, prefix=b"/v1", **config):
    x = Exchange("127.0.0.1:1", "a/gw", "l", 0.0)
    x.request = RequestHead(b"GET", target, Fields())
    x.path = target.partition(b"?")[0]
    x.path_prefix = prefix
    x.upstream_host = b"before.test"
    UrlRewriteFilter(FilterContext(validated(UrlRewriteConfig, json.dumps(config)), {}, "r", "-", "-")).request_headers(
        x
    )
    return x


def test_the_host_and_the_path_change_and_the_logged_path_does_not():
    path = {"type": "ReplacePrefixMatch", "value": "/openai/v1"}
    x = rewritten(b"/v1/chat?k=1", hostname="API.example.com", path=path)
    assert x.upstream_host == b"api.example.com"
    assert x.request.path == b"/openai/v1/chat?k=1"
    assert x.path == b"/v1/chat"


@pytest.mark.parametrize("target", [b"/../tenant-b/x", b"/v1/%2e%2e/%2e%2e/tenant-b", b"/v1/..%2f..%2ftenant-b"])
def test_a_path_cannot_climb_out_of_the_prefix_that_it_is_given(target):
    for prefix in (b"/", b"/v1"):
        with pytest.raises(BadRequest) as caught:
            rewritten(target, prefix, path={"type": "ReplacePrefixMatch", "value": "/tenant-a"})
        assert (caught.value.reason, caught.value.close) == (Reason.BAD_TARGET, False)
    full = rewritten(target, path={"type": "ReplaceFullPath", "value": "/x"})
    assert full.request.path == b"/x"


def test_what_is_not_configured_stays():
    x = rewritten(b"/v1/chat", hostname="", path={"type": "ReplaceFullPath", "value": "/x"})
    assert (x.upstream_host, x.request.path) == (b"before.test", b"/x")
    x = rewritten(b"/v1/chat", hostname="b.test")
    assert (x.upstream_host, x.request.path) == (b"b.test", b"/v1/chat")


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
