"""Who may ask the admin API, and who may write: by token, or from this machine."""

from __future__ import annotations

import asyncio
import hmac
import re
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web

from egressproxy.admin.status import ApiError

if TYPE_CHECKING:
    from egressproxy.admin.oidc import OidcLogin

_HOST: Final = re.compile(r"(?:\[([^]]*)\]|([^\[:]*))(?::[0-9]*)?", re.ASCII)
#: A header that a web page cannot send to another site without permission (CORS).
MARK: Final = "X-Egressproxy"
#: What proxies say of those they speak for (RFC 9110 section 7.6.3, RFC 7239, and the names before it).
_OF_PROXIES: Final = ("Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")


def of_loopback(address: str) -> bool:
    """Whether this text is an address of loopback."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def names_loopback(host: str) -> bool:
    """Whether a Host is a name or address of loopback, with or without a port."""
    found = _HOST.fullmatch(host)
    literal, name = found.groups() if found is not None else ("", None)
    return of_loopback(name or literal) or (name or "").lower() in ("localhost", "localhost.")


def came_by_proxy(request: web.BaseRequest) -> bool:
    """Through a proxy of this machine everybody is local."""
    return any(name in request.headers for name in _OF_PROXIES)


def is_of_other_page(request: web.BaseRequest) -> bool:
    """Whether a browser sends this for a page of another origin (Fetch Metadata, or the Origin of older browsers)."""
    headers, host = request.headers, request.headers.get("Host", "")
    is_ours = headers.getall("Origin", []) in ([], [f"http://{host}"], [f"https://{host}"])
    return not is_ours or headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none")


def is_admin_page(request: web.BaseRequest, *, has_token: bool) -> bool:
    """Whether the page of this address that sends this is the admin page.

    A page of another origin cannot send this header and content type without permission (CORS), which is never given.
    Browsers leave Sec-Fetch-Site out where the page came by plain HTTP from another machine: then the token decides.
    """
    site = request.headers.get("Sec-Fetch-Site", "same-origin" if has_token else "")
    return site == "same-origin" and MARK in request.headers and request.content_type == "application/json"


#: How often the right of a client that reads a stream is checked, in seconds.
CHECK_S: Final = 15.0
#: Shorter ones can be guessed.
MIN_TOKEN: Final = 16


def read_token(file: Path) -> bytes:
    """Read anew each time, so that it can be replaced. Raises ValueError, which shows neither token nor path: strangers
    see it.
    """
    try:
        found = file.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"the token file cannot be read: {(error.strerror or '').lower()}") from None
    if len(found) < MIN_TOKEN:
        raise ValueError(f"the token is shorter than {MIN_TOKEN} characters")
    return found


class WriteAccess:
    """What needs the token: on a network everything, on loopback writes. Without a token file, programs of this machine
    that ask on loopback may do both. The server has refused pages of other sites (`is_of_other_page`) before.
    """

    def __init__(self, token_file: Path | None, login: OidcLogin | None = None) -> None:
        self._token_file = token_file
        self.login = login

    @property
    def needs_token(self) -> bool:
        """Whether clients show a token, so that they may be on other machines."""
        return self._token_file is not None or self.login is not None

    async def check_reader(self, request: web.BaseRequest, *, is_loopback: bool) -> None:
        """Raises ApiError(401, 403) without the token, but for programs of this machine. `is_loopback`: so is the
        address that was asked. The server calls it first, for all paths that are not open.
        """
        if not (is_loopback and of_loopback(request.remote or "")) or came_by_proxy(request):
            await self._check_token(request, "from other machines, or by way of a proxy, this needs")

    async def check(self, request: web.BaseRequest) -> str:
        """The person who signed in, or "", of a reader that may write. Raises ApiError(401, 403) for all others."""
        if "Origin" in request.headers and not is_admin_page(request, has_token=self.needs_token):
            raise ApiError(403, "Forbidden", "a web page may not write, but for the admin page of this address")
        return await self._check_token(request, "writes need") if self.needs_token else ""

    async def check_marked(self, request: web.BaseRequest, what: str) -> str:
        """As `check`, for a program or page that says that it means it: a page of any site can send a plain POST."""
        person = await self.check(request)
        if MARK not in request.headers:
            raise ApiError(403, "Forbidden", f"{what} is asked for with the header {MARK}, and by no web page")
        return person

    async def _check_token(self, request: web.BaseRequest, what: str) -> str:
        """The person who signed in, or "" for the token of programs. Raises ApiError(401, 403) without either."""
        if not self.needs_token:
            raise ApiError(403, "Forbidden", f"{what} a token: start the gateway with --api-token-file FILE")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        token = given.strip().encode("utf-8", "surrogateescape")  # as it was sent, UTF-8 or not
        # What looks like a JWT may be the token of the file.
        login = self.login if is_bearer and token.count(b".") == 2 else None
        if is_bearer and self._token_file is not None:
            try:
                if hmac.compare_digest(token, await asyncio.to_thread(read_token, self._token_file)):
                    return ""
            except ValueError as error:
                if login is None:
                    raise ApiError(403, "Forbidden", f"--api-token-file: {error}") from None
        if login is None:
            message = f"{what} the token: give --api-token-file FILE, or send Authorization: Bearer TOKEN"
            raise ApiError(401, "Unauthorized", message)
        return await login.check(token)
