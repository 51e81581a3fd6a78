"""UrlRewriteFilter: sends another Host field and another path to the backend.

Source: Gateway API HTTPURLRewriteFilter.
"""

from __future__ import annotations

from dataclasses import dataclass

from egressproxy.errors import BadRequest, Reason
from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType
from egressproxy.filters.path_modifier import PathReplacement, modify_path
from egressproxy.filters.settings import FilterConfig, HostnameOrNone
from egressproxy.model.exchange import Exchange
from egressproxy.model.path import has_dot_segment


@dataclass(frozen=True, slots=True)
class UrlRewriteConfig(FilterConfig):
    """`hostname` "": the Host field stays; `path` None: the path stays."""

    hostname: HostnameOrNone = ""
    path: PathReplacement | None = None


class UrlRewriteFilter(Filter):
    """Sets `x.upstream_host` and the path of `x.request`; the access log keeps the client's path."""

    def __init__(self, context: FilterContext) -> None:
        config: UrlRewriteConfig = context.config
        self._hostname = config.hostname.encode()
        self._path = config.path

    def request_headers(self, x: Exchange) -> None:
        """Raises BadRequest(BAD_TARGET, 400) for dot segments if a prefix is replaced."""
        if self._hostname:
            x.upstream_host = self._hostname
        if self._path is not None:
            path = x.request.path
            if self._path.type == "ReplacePrefixMatch" and has_dot_segment(path.partition(b"?")[0]):
                # The origin would resolve `/new/../other` to a place outside the configured prefix.
                message = "the path contains dot segments, which are not allowed where its prefix is rewritten"
                raise BadRequest(Reason.BAD_TARGET, message, close=False)
            x.request.path = modify_path(self._path, path, x.path_prefix)

    backend_request = request_headers


URL_REWRITE = FilterType(
    name="egressproxy.io/UrlRewrite:v1",
    phases=REQUEST_HEADS,
    config_model=UrlRewriteConfig,
    build=UrlRewriteFilter,
    summary="Sends another Host and another path to the backend (Gateway API URLRewrite).",
)
