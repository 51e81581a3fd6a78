"""Who may write through the API."""

from __future__ import annotations

import asyncio
import hmac
from pathlib import Path

from aiohttp import web

from egressproxy.admin.local import came_by_proxy, is_local
from egressproxy.admin.status import ApiError
from egressproxy.admin.tokens import read_token


class WriteAccess:
    """Clients that send the token may write; without a token file, programs of this machine that ask on loopback."""

    def __init__(self, token_file: Path | None) -> None:
        self._token_file = token_file

    @property
    def needs_token(self) -> bool:
        """Whether clients show a token, so that they may be on other machines."""
        return self._token_file is not None

    async def check(self, request: web.BaseRequest) -> None:
        """Return where this client may write. Raises ApiError(401, 403) where it may not, or is a web page."""
        if "Origin" in request.headers:
            raise ApiError(403, "Forbidden", "a web page may not write")
        if self._token_file is None:
            if not is_local(request):
                raise ApiError(403, "Forbidden", "writes are for this machine alone: there is no --api-token-file")
            if came_by_proxy(request):
                raise ApiError(403, "Forbidden", "writes by way of a proxy need --api-token-file")
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        try:
            wanted = await asyncio.to_thread(read_token, self._token_file)
        except ValueError as error:
            raise ApiError(403, "Forbidden", str(error)) from None
        token = given.strip().encode("utf-8", "surrogateescape")  # as it was sent, UTF-8 or not
        if scheme.lower() != "bearer" or not hmac.compare_digest(token, wanted):
            raise ApiError(401, "Unauthorized", "writes need the token: Authorization: Bearer …")
