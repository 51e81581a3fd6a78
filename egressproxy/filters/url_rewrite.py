"""UrlRewriteFilter: another Host field and another path towards the backend.

Source: Gateway API HTTPURLRewriteFilter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from egressproxy.errors import BadRequest, Reason
from egressproxy.filters.base import Filter, FilterContext, FilterType, Phase
from egressproxy.filters.path_modifier import PathReplacement, modify_path
from egressproxy.filters.settings import FilterConfig, Hostname
from egressproxy.model.exchange import Exchange
from egressproxy.model.path import has_dot_segment

__all__ = ["URL_REWRITE", "UrlRewriteConfig", "UrlRewriteFilter"]


@dataclass(frozen=True, slots=True)
class UrlRewriteConfig(FilterConfig):
    hostname: Hostname | Literal[""] = ""
    path: PathReplacement | None = None


class UrlRewriteFilter(Filter):
    """Sets `x.upstream_host` and the path of `x.request`; what is logged stays the path that the client asked for.

    Raises BadRequest(BAD_TARGET) for dot segments where a prefix is replaced.
    """

    def __init__(self, context: FilterContext) -> None:
        config = context.config
        assert isinstance(config, UrlRewriteConfig)
        self._hostname = config.hostname.encode()
        self._path = config.path
        self._is_prefix = config.path is not None and config.path.type == "ReplacePrefixMatch"

    def request_headers(self, x: Exchange) -> None:
        if self._hostname:
            x.upstream_host = self._hostname
        if self._path is not None:
            path = x.request.path
            if self._is_prefix and has_dot_segment(path.partition(b"?")[0]):
                # The origin would resolve `/new/../other` to a place outside of the prefix that was configured.
                raise BadRequest(
                    Reason.BAD_TARGET, "the path holds dot segments, and its prefix is rewritten", close=False
                )
            x.request.path = modify_path(self._path, path, x.path_prefix)

    def backend_request(self, x: Exchange) -> None:
        self.request_headers(x)


URL_REWRITE = FilterType(
    name="egressproxy.io/UrlRewrite:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=UrlRewriteConfig,
    build=UrlRewriteFilter,
    summary="Another Host and another path towards the backend (Gateway API URLRewrite).",
)
