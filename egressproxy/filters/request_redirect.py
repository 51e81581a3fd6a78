"""RequestRedirectFilter: responds with a Location instead of asking a backend.

Source: Gateway API HTTPRequestRedirectFilter. The port is the configured one, else the well-known one of a configured
scheme, else the listener's. The default port of the scheme is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from egressproxy.filters.base import REQUEST_HEADS, Filter, FilterContext, FilterType
from egressproxy.filters.settings import FilterConfig, HostnameOrNone, Within
from egressproxy.filters.url_rewrite import PathReplacement, modify_path
from egressproxy.model.authority import Authority
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse

_WELL_KNOWN = {"http": 80, "https": 443}
_Port = Annotated[int, Within(ge=0, le=65535)]


@dataclass(frozen=True, slots=True)
class RequestRedirectConfig(FilterConfig):
    """ "" and 0: as in the request, or by the rules of the port. `listener_…` describe the listener of the request."""

    scheme: Literal["", "http", "https"] = ""
    hostname: HostnameOrNone = ""
    path: PathReplacement | None = None
    port: _Port = 0
    status_code: Literal[301, 302, 303, 307, 308] = 302
    listener_port: _Port = 0
    listener_scheme: Literal["", "http", "https"] = ""


class RequestRedirectFilter(Filter):
    """Responds to every request."""

    def __init__(self, context: FilterContext) -> None:
        self._config: RequestRedirectConfig = context.config

    def request_headers(self, exchange: Exchange) -> LocalResponse:
        config = self._config
        path = exchange.request.path
        if config.path is not None:
            path = modify_path(config.path, path, exchange.path_prefix)
        scheme = config.scheme or config.listener_scheme or exchange.scheme.decode()
        host = config.hostname or (exchange.authority.host if exchange.authority else "")
        if not host:
            # HTTP/1.0 without Host: the path is all that is known; "//x" would name a host.
            return LocalResponse(config.status_code, ((b"location", b"/" + path.lstrip(b"/")),))
        port = config.port or (_WELL_KNOWN[config.scheme] if config.scheme else config.listener_port)
        if not port:
            port = exchange.authority.port if exchange.authority else _WELL_KNOWN[scheme]
        authority = Authority(host, port).host_field(_WELL_KNOWN[scheme])
        return LocalResponse(config.status_code, ((b"location", b"%s://%s%s" % (scheme.encode(), authority, path)),))

    backend_request = request_headers


REQUEST_REDIRECT = FilterType(
    name="egressproxy.io/RequestRedirect:v1",
    phases=REQUEST_HEADS,
    config_model=RequestRedirectConfig,
    build=RequestRedirectFilter,
    summary="Responds with a redirection (Gateway API RequestRedirect).",
)
