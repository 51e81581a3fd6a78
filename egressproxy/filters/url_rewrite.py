"""UrlRewriteFilter: sends another Host field and another path to the backend.

Source: Gateway API HTTPURLRewriteFilter; its HTTPPathModifier, which redirections have, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.errors import BadRequest, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType, OfMessages
from egressproxy.filters.settings import FilterConfig, HostnameOrNone, matching
from egressproxy.model.exchange import Exchange
from egressproxy.model.message import has_dot_segment

#: RFC 3986 section 3.3 (path); neither query nor fragment.
_PATH = re.compile(rb"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*)?")
_NOT_A_PATH = "{!r} is not a path: a path begins with / and has no query, fragment or blanks"


@dataclass(frozen=True, slots=True)
class PathReplacement(FilterConfig):
    """HTTPPathModifier; `value` "" removes the prefix, or the whole path."""

    type: Literal["ReplaceFullPath", "ReplacePrefixMatch"]
    value: Annotated[str, matching(_PATH, _NOT_A_PATH)] = ""


def modify_path(modifier: PathReplacement, path: bytes, prefix: bytes) -> bytes:
    """The new origin-form target for `path` (with its query), of which `prefix` matched.

    As many path elements are removed as the prefix has, so an element that matched in another spelling (`%61` for `a`)
    is removed whole. If no prefix matched, ReplacePrefixMatch changes nothing.
    """
    value = modifier.value.encode()
    rest, mark, query = path.partition(b"?")
    query = mark + query
    if modifier.type == "ReplaceFullPath":
        return (value or b"/") + query
    if not prefix or not path.startswith(b"/"):
        return path
    for _ in range(prefix.rstrip(b"/").count(b"/")):
        slash = rest.find(b"/", 1)
        rest = rest[slash:] if slash > 0 else b""
    return (value.rstrip(b"/") + rest if rest else value or b"/") + query


@dataclass(frozen=True, slots=True)
class UrlRewriteConfig(FilterConfig):
    """`hostname` "": the Host field stays; `path` None: the path stays."""

    hostname: HostnameOrNone = ""
    path: PathReplacement | None = None


class UrlRewriteFilter(Filter):
    """Sets `x.upstream_host` and the path of `x.request`; the access log keeps the client's path."""

    of_messages = OfMessages.HEAD

    def __init__(self, context: FilterContext) -> None:
        config: UrlRewriteConfig = context.config
        self._hostname = config.hostname.encode()
        self._path = config.path

    def request_headers(self, exchange: Exchange) -> None:
        """Raises BadRequest(BAD_TARGET, 400) for dot segments if a prefix is replaced."""
        if self._hostname:
            exchange.upstream_host = self._hostname
        if self._path is not None:
            path = exchange.request.path
            if self._path.type == "ReplacePrefixMatch" and has_dot_segment(path.partition(b"?")[0]):
                # The origin would resolve `/new/../other` to a place outside the configured prefix.
                message = "the path contains dot segments, which are not allowed where its prefix is rewritten"
                raise BadRequest(Reason.BAD_TARGET, message, close=False)
            exchange.request.path = modify_path(self._path, path, exchange.path_prefix)

    backend_request = request_headers


URL_REWRITE = FilterType(
    name="egressproxy.io/UrlRewrite:v1",
    phases=REQUEST_HEADS,
    config_model=UrlRewriteConfig,
    build=UrlRewriteFilter,
    summary="Sends another Host and another path to the backend (Gateway API URLRewrite).",
)
