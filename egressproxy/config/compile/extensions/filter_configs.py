"""What the filters of an HTTPRoute say, as the configs of the filter types that do it.

Source: Gateway API v1 HTTPHeaderFilter, HTTPURLRewriteFilter, HTTPRequestRedirectFilter.
"""

from __future__ import annotations

from typing import Any

from egressproxy.config.resources.route_filters import HeaderModifier, PathModifier, RequestRedirect, UrlRewrite
from egressproxy.ir.gateway import ListenerProtocol

__all__ = ["header_changes", "redirect", "rewrite"]


def header_changes(modifier: HeaderModifier) -> dict[str, Any]:
    """`request` or `response` of a HeaderPolicy."""
    return {
        "set": [{"name": h.name, "value": h.value} for h in modifier.set],
        "add": [{"name": h.name, "value": h.value} for h in modifier.add],
        "remove": list(modifier.remove),
    }


def _path(modifier: PathModifier | None) -> dict[str, str] | None:
    if modifier is None:
        return None
    value = modifier.replace_full_path if modifier.type == "ReplaceFullPath" else modifier.replace_prefix_match
    return {"type": modifier.type, "value": value or ""}


def rewrite(written: UrlRewrite) -> dict[str, Any]:
    """The config of a UrlRewrite."""
    given = {"hostname": written.hostname, "path": _path(written.path)}
    return {key: value for key, value in given.items() if value is not None}


def redirect(written: RequestRedirect, port: int, protocol: ListenerProtocol) -> dict[str, Any]:
    """Only what is given. The listener's port and scheme decide the Location's port (HTTPRequestRedirectFilter)."""
    config: dict[str, Any] = {"statusCode": written.status_code}
    given = {
        "scheme": written.scheme,
        "hostname": written.hostname,
        "path": _path(written.path),
        "port": written.port,
    }
    config.update({key: value for key, value in given.items() if value is not None})
    if protocol is not ListenerProtocol.FORWARD_PROXY:  # there the request itself names scheme and port
        config["listenerPort"] = port
        config["listenerScheme"] = "https" if protocol is ListenerProtocol.HTTPS else "http"
    return config
