"""ApiClient: requests to an API server, and the lines of a watch. Source: Kubernetes API concepts.

aiohttp speaks HTTP/1.1, so each watch has a connection, of one session with one TLS context. Objects stay JSON: the
models of Kubernetes' own client take ten times as long and as much memory.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import aiohttp

from egressproxy import __version__
from egressproxy.config.reading import deep_json
from egressproxy.kubernetes.credentials import Credentials, CredentialsError

#: For one answer, in seconds; a page of a list has 500 objects.
ANSWER_S: Final = 60.0
CONNECT_S: Final = 10.0
#: How many objects are read by name at a time.
AT_A_TIME: Final = 8
#: Bytes of one answer, of one that is an error, and of one line of a watch: etcd takes 1.5 MiB for an object.
MAX_ANSWER: Final = 64 << 20
MAX_ERROR: Final = 1 << 20
MAX_LINE: Final = 32 << 20
#: The form of an answer.
JSON: Final = "application/json"
#: The owner of the fields that we apply.
MANAGER: Final = "egressproxy"
_APPLY: Final = "application/apply-patch+yaml"
MERGE_PATCH: Final = "application/merge-patch+json"
_UNAUTHORIZED: Final = 401
#: No redirect is followed: it could lead elsewhere, with the token.
_GOOD: Final = range(200, 300)


def api_root(api_version: str) -> str:
    """The path of a group and version: `/apis/gateway.networking.k8s.io/v1`, `/api/v1`."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


class ApiError(Exception):
    """An answer that is an error. `reason` is that of metav1.Status, `message` a sentence of the server's."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_forbidden(self) -> bool:
        return self.status == 403

    @property
    def is_not_found(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        return self.status == 409

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}" if self.reason else f"{self.status}: {self.message}"

    @classmethod
    def of_status(cls, value: Any) -> ApiError:
        """From a metav1.Status, or whatever stands in its place."""
        status = value if isinstance(value, dict) else {}
        code = status.get("code")
        details = status.get("details")
        after = details.get("retryAfterSeconds") if isinstance(details, dict) else None
        return cls(
            code if isinstance(code, int) else 0,
            _in_one_line(status.get("reason") or "")[:100],
            _in_one_line(status.get("message") or "no message")[:500],
            float(after) if isinstance(after, int) else 0.0,
        )


class AnswerTooLong(ValueError):
    """The answer has more than MAX_ANSWER bytes."""


#: What a request may raise when the server is away, does not speak this API, or cannot be authenticated to.
UNREACHABLE: Final = (CredentialsError, aiohttp.ClientError, TimeoutError, OSError, ValueError)


class ApiClient:
    """Belongs to the event loop; `close` comes last."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises CredentialsError where the TLS context cannot be made."""
        self._credentials = credentials
        self._files = credentials.files()
        self._session = self._new_session()
        self._old: list[aiohttp.ClientSession] = []
        self.named_reads = asyncio.Semaphore(AT_A_TIME)  # held while an object is read by name
        self.requests: dict[str, int] = {}  # by status, or the name of an error

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._credentials.tls_context(), socket_factory=_socket, keepalive_timeout=30
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S)
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=True, trust_env=False,
            headers={"User-Agent": f"egressproxy/{__version__}", "Accept-Encoding": "gzip"},
        )  # fmt: skip

    async def close(self) -> None:
        """End all requests."""
        for session in (*self._old, self._session):
            await session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = JSON) -> dict[str, Any]:
        """The object at a path. Raises ApiError, and what is in UNREACHABLE."""
        return await self.send("GET", path, params, accept=accept)

    async def send(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None,
        content_type: str = JSON, accept: str = JSON,
    ) -> dict[str, Any]:  # fmt: skip
        """The answer to a request, an object. Raises ApiError, and what is in UNREACHABLE."""
        data = json.dumps(body).encode() if body is not None else None
        async with asyncio.timeout(ANSWER_S), self._answer(method, path, params, data, content_type, accept) as answer:
            found = deep_json.loads(await _read_body(answer, MAX_ANSWER))
        if not isinstance(found, dict):
            raise ValueError(f"the API server answered {method} {path} with no object")
        return found

    async def lines(
        self, path: str, params: Mapping[str, str], silent_s: float, accept: str = JSON
    ) -> AsyncIterator[bytes]:
        """The lines of a watch, as they come, until the server ends it; a line without its end is left out. An empty
        one comes first, once the server has begun to answer: the first event may be far.

        Raises ApiError, and what is in UNREACHABLE; TimeoutError where nothing comes for `silent_s`.
        """
        rest = bytearray()
        async with self._answer("GET", path, params, None, "", accept, silent_s) as answer:
            yield b""
            async for piece in answer.content.iter_any():
                *whole, after = piece.split(b"\n")
                for end in whole:
                    rest += end
                    if rest:
                        yield bytes(rest)
                        rest.clear()
                rest += after
                if len(rest) > MAX_LINE:
                    raise ValueError(f"the API server sent an event of more than {MAX_LINE >> 20} MiB for {path}")

    async def apply(
        self, path: str, body: Mapping[str, Any], manager: str = MANAGER, *, force: bool = True
    ) -> dict[str, Any]:
        """The object after a server-side apply. With `force` the fields of other managers are taken over. Raises as
        `send`.
        """
        params = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return await self.send("PATCH", path, params, body, _APPLY)

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, params: Mapping[str, str] | None, data: bytes | None, content_type: str,
        accept: str, silent_s: float = ANSWER_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        refused: str | None = None
        while True:
            authorization = await self._credentials.authorization(refused)
            await self._take_new_files()
            fields = {"Accept": accept, **({"Authorization": authorization} if authorization else {})}
            if data is not None:
                fields["Content-Type"] = content_type
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silent_s)
            try:
                asked = self._session.request(
                    method, self._credentials.host + path, params=params, data=data, headers=fields, timeout=timeout,
                    proxy=self._credentials.proxy, server_hostname=self._credentials.server_name,
                    allow_redirects=False,
                )  # fmt: skip
                async with asked as answer:
                    self._count(str(answer.status))
                    if answer.status == _UNAUTHORIZED and refused is None:
                        refused = authorization or ""
                        continue
                    if answer.status not in _GOOD:
                        raise await _error(answer)
                    yield answer
                    return
            except UNREACHABLE as error:
                self._count(type(error).__name__)
                raise

    async def _take_new_files(self) -> None:
        """Open another session if certificates were renewed; requests of the old one go on."""
        files = self._credentials.files()
        if files == self._files:
            return
        fresh = self._new_session()
        self._files, old, self._session = files, self._session, fresh
        for ended in self._old:
            await ended.close()
        self._old = [old]

    def _count(self, what: str) -> None:
        self.requests[what] = self.requests.get(what, 0) + 1


async def _read_body(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Raises AnswerTooLong."""
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece
        if len(found) > most:
            raise AnswerTooLong(f"the API server answered with more than {most} bytes")
    return bytes(found)


async def _error(answer: aiohttp.ClientResponse) -> ApiError:
    try:
        status = json.loads(await _read_body(answer, MAX_ERROR))
    except (ValueError, RecursionError):
        status = {}
    error = ApiError.of_status(status)
    error.status = answer.status
    with suppress(ValueError):
        after_s = float(answer.headers.get("Retry-After", ""))
        if math.isfinite(after_s):
            error.retry_after_s = after_s
    return error


def _in_one_line(text: object) -> str:
    """What others have written, for the log."""
    return "".join(each if each.isprintable() else " " for each in str(text)[:1000])


def _socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket that finds out within a minute that the other end is gone, so that a watch does not wait for ever."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # Linux
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
