"""Whether a request was made on this machine: what may be asked without a token."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from aiohttp import web

#: What proxies say of those they speak for (RFC 9110 section 7.6.3, RFC 7239, and the names before it).
_OF_PROXIES: Final = ("Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")


def is_loopback(address: str, *, otherwise: bool = False) -> bool:
    """Whether this is an address of loopback; `otherwise` for text that is no address."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return otherwise


def is_local(request: web.BaseRequest) -> bool:
    """Whether the peer is on loopback; a proxy of this machine is there, too."""
    return is_loopback(request.remote or "")


def came_by_proxy(request: web.BaseRequest) -> bool:
    """Through a proxy of this machine everybody is local."""
    return any(name in request.headers for name in _OF_PROXIES)
