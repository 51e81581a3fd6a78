"""The files of the admin page, /ui and below: what `make page` has made of `page/src`."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Final

from aiohttp import web

from egressproxy.admin.connections import AdminConnection
from egressproxy.admin.status import ApiError, bad_request, json_response
from egressproxy.admin.write_access import WriteAccess, is_admin_page
from egressproxy.model.encoding import json_object

FOLDER: Final = Path(__file__).with_name("page") / "dist"
#: Where the page begins and ends a login by OpenID Connect; the most bytes that it sends there, and its seconds for it.
LOGIN: Final = "/ui/oidc"
MAX_LOGIN: Final = 8192
LOGIN_S: Final = 5.0
#: Of script and style together, for tests: a page that grows is looked at.
MAX_BYTES: Final = 48 * 1024
#: File and content type by path.
FILES: Final = {
    "/ui": ("index.html", "text/html; charset=utf-8"),
    "/ui/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/ui/page.css": ("page.css", "text/css; charset=utf-8"),
}
#: Beside those of every answer. Only files of this address are loaded, and only it is asked.
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


async def page(request: web.BaseRequest, access: WriteAccess, *, is_local: bool) -> web.Response:
    """The answer at a path below /ui. `is_local`: the admin address is on loopback. Raises ApiError."""
    if request.path != LOGIN or access.login is None:
        return await page_file(request, is_open=is_local or access.needs_token)
    if request.method != "POST":
        return json_response(200, await access.login.settings())
    if not is_admin_page(request, has_token=True):
        raise ApiError(403, "Forbidden", "a login is ended by the admin page of this address alone")
    try:
        asked = json_object(await _body(request)) or {}
        texts = [str(asked[name]) for name in ("code", "verifier", "redirect_uri")]
    except (ValueError, KeyError, TimeoutError):
        raise bad_request("write {code, verifier, redirect_uri} as JSON") from None
    return json_response(200, {"token": await access.login.exchange(*texts)})


async def _body(request: web.BaseRequest) -> bytes:
    """Raises ValueError for a large body, TimeoutError for a slow one."""
    body = b""
    assert isinstance(request.protocol, AdminConnection)
    async with request.protocol.evictable(), asyncio.timeout(LOGIN_S):  # it may be a stranger's
        async for piece in request.content.iter_any():
            body += piece
            if len(body) > MAX_LOGIN:
                raise ValueError("a large body")
    return body


async def page_file(request: web.BaseRequest, *, is_open: bool) -> web.Response:
    """The file at a path below /ui; 304 for one that the client has. `is_open`: the page may be shown at this address.

    Raises ApiError (403, 404).
    """
    if request.path == "/ui/":
        return web.Response(status=308, headers={"Location": "../ui"})
    if request.path not in FILES:
        raise ApiError(404, "NotFound", f"nothing is served at {request.path}; the admin page is /ui")
    if not is_open:
        message = "the admin page is shown on loopback (--admin 127.0.0.1:15900), or with --api-token-file FILE"
        raise ApiError(403, "Forbidden", message)
    name, content_type = FILES[request.path]
    try:
        body = await asyncio.to_thread((FOLDER / name).read_bytes)
    except OSError:
        message = "this installation has no admin page: `make page` makes it in a checkout (it needs npm)"
        raise ApiError(404, "NotFound", message) from None
    headers = {**HEADERS, "ETag": f'"{sha256(body).hexdigest()[:32]}"'}
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers={**headers, "Content-Type": content_type})
