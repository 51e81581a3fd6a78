"""CallerTokens: the tokens of each caller for one MCP server: allowed by its user, refreshed, dropped.

An entry of a caller has its registration, the authorizations that its user has begun, and its tokens. A state leads
into the entry of the caller who shows it and no other's, so an authorization that one caller has begun is of no use to
another. Sources: RFC 6749, RFC 9207 section 2.4, RFC 9700 sections 2.1 and 4.7.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from egressproxy.ai.mcp.oauth.caller_store import CallerStore, Stamp
from egressproxy.ai.mcp.oauth.discovery import ServerMetadata
from egressproxy.ai.mcp.oauth.token_client import Registration, TokenClient, Tokens, new_secret
from egressproxy.filters.credentials.refresher import RENEWAL_S, FetchError
from egressproxy.model.secret import SecretBytes

#: How long a user has to allow access, in seconds, and how many authorizations of a caller may be under way.
PENDING_S: Final = 600.0
MAX_PENDING: Final = 5
#: A token is refreshed so long before its end, in seconds, or in a tenth of its life.
EARLY_S: Final = 60.0
#: After a refresh that fails the next one is tried, in seconds.
AGAIN_S: Final = 5.0
#: For how long a registration outlives its tokens at least, so that a caller cannot register the gateway in a loop.
REGISTERED_S: Final = 600.0
#: Scopes that a server may ask for later.
MAX_SCOPES: Final = 50
#: What may be under way for one caller at once: each has a file open, and waits for the lock of the caller.
MAX_UNDER_WAY: Final = 8
#: Callers whose token, or whose latest failure, is held in memory.
MAX_CACHED: Final = 4096
#: Error codes of a token endpoint for which no later attempt helps (RFC 6749 section 5.2).
_FINAL: Final = frozenset(("invalid_grant", "invalid_client", "unauthorized_client"))
#: An error code of an authorization endpoint, which may be shown (RFC 6749 section 4.1.2.1).
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")

Entry = dict[str, Any]
T = TypeVar("T")


class AuthorizationRefused(Exception):
    """What the browser has brought is not what was begun. The text is for the user, and has nothing of it."""


class Held(NamedTuple):
    """A token of a caller: the field line for it, and until when it is used and valid, in seconds since 1970."""

    line: SecretBytes
    due_at: float
    ends_at: float


@dataclass(slots=True, eq=False, repr=False)
class CallerTokens:
    """`find_server` returns the metadata, or raises FetchError. `count` counts what has happened, in a word."""

    _store: CallerStore
    _client: TokenClient
    _redirect_uri: str
    _find_server: Callable[[], Awaitable[ServerMetadata]]
    _count: Callable[[str], None]
    _cache: dict[str, tuple[Stamp, Held | None]] = field(default_factory=dict)
    _renewals: dict[str, asyncio.Task[Held | None]] = field(default_factory=dict)
    _tasks: dict[asyncio.Task[Any], str] = field(default_factory=dict)  # and whose
    _failures: dict[str, tuple[float, str]] = field(default_factory=dict)

    # --- use -------------------------------------------------------------------------------------------------------
    def held(self, caller: str) -> Held | None:
        """The token of this caller as its file has it now; None without one. Raises FetchError."""
        stamp = self._store.stamp(caller)
        if stamp is None:
            self._cache.pop(caller, None)
            return None
        known = self._cache.get(caller)
        if known is not None and known[0] == stamp:
            return known[1]
        found = _held(self._store.read(caller))
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[caller] = stamp, found
        return found

    async def renewed(self, caller: str, refused: SecretBytes | None = None) -> Held | None:
        """A token that is not due, and another one than the server has `refused`. The old one, if it is not refused and
        there is no other for now. None: the user has to allow access. Raises FetchError.
        """
        task = self._renewals.get(caller)
        if task is None:
            task = self._renewals[caller] = self._begun(caller, self._renew(caller, refused))
            task.add_done_callback(lambda _done: self._renewals.pop(caller, None))
        found = await asyncio.shield(task)
        return await self.renewed(caller, refused) if found is not None and found.line == refused else found

    def _begun(self, caller: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that goes on if its client leaves: codes and refresh tokens are used once, and must not be lost. Raises
        FetchError where too much is under way for this caller.
        """
        if sum(each == caller for each in self._tasks.values()) >= MAX_UNDER_WAY:
            work.close()
            raise FetchError(f"{MAX_UNDER_WAY} requests of this caller are under way: try again")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = caller
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # the client that waits gets it

    async def _renew(self, caller: str, refused: SecretBytes | None) -> Held | None:
        async with self._store.locked(caller):
            entry = self._store.read(caller)
            found, now = _held(entry), time.time()
            if found is None or (found.due_at > now and found.line != refused):
                return found
            tokens = entry["tokens"]
            is_new = refused is not None and tokens["since"] + RENEWAL_S > now
            if is_new or not tokens["refresh"]:
                if refused is None and found.ends_at > now:
                    return found
                return await self._drop(caller, entry, "dropped")
            try:
                return await self._refreshed(caller, entry)
            except FetchError:
                if refused is None and found.ends_at > now:
                    return found
                raise

    async def _refreshed(self, caller: str, entry: Entry) -> Held | None:
        """The next token of this caller; None: its refresh token is no longer valid. Raises FetchError."""
        until, failure = self._failures.get(caller, (0.0, ""))
        if until > time.time():
            raise FetchError(failure)
        self._failures.pop(caller, None)
        tokens = entry["tokens"]
        try:
            server = await self._find_server()
            client = self._registration(tokens, server)
            if client is None or tokens["issuer"] != server.issuer:
                return await self._drop(caller, entry, "dropped")
            fresh = await self._client.by_refresh(server, client, tokens["refresh"])
        except FetchError as error:
            if error.code in _FINAL:
                if error.code != "invalid_grant":
                    entry.pop("client", None)
                return await self._drop(caller, entry, "refresh_refused")
            self._count("refresh_failed")
            if len(self._failures) >= MAX_CACHED:
                self._failures.clear()
            self._failures[caller] = time.time() + AGAIN_S, str(error)
            raise
        self._count("refreshed")
        return await self._keep(caller, entry, server, fresh, tokens["client"])

    async def widen(self, caller: str, scopes: tuple[str, ...]) -> None:
        """Have the next authorization ask for these scopes, too, beside those that were asked for before. Raises
        FetchError.
        """
        await asyncio.shield(self._begun(caller, self._widen(caller, scopes)))

    async def _widen(self, caller: str, scopes: tuple[str, ...]) -> None:
        async with self._store.locked(caller):
            entry = self._store.read(caller)
            known = tuple(entry.get("scopes", ()))
            widened = tuple(dict.fromkeys((*known, *scopes)))[:MAX_SCOPES]
            if widened != known:
                entry.pop("client", None)  # it was registered for the scopes of then
                await self._store.write(caller, {**entry, "scopes": widened})

    # --- authorization ---------------------------------------------------------------------------------------------
    async def begin(self, caller: str) -> str:
        """Where the caller's browser goes to allow access. Raises FetchError."""
        return await asyncio.shield(self._begun(caller, self._begin(caller)))

    async def finish(self, caller: str, query: str) -> None:
        """Take what the authorization server has sent the browser back with, once. Raises AuthorizationRefused,
        FetchError.
        """
        await asyncio.shield(self._begun(caller, self._finish(caller, query)))

    async def forget(self, caller: str) -> bool:
        """Drop the tokens of this caller, and have the authorization server end them. False: there are none. Raises
        FetchError for tokens that are dropped here and may live on there.
        """
        return await asyncio.shield(self._begun(caller, self._forget(caller)))

    async def _begin(self, caller: str) -> str:
        found = await self._find_server()
        async with self._store.locked(caller):
            entry = self._store.read(caller)
            server = replace(found, scopes=tuple(dict.fromkeys((*found.scopes, *entry.get("scopes", ())))))
            client = self._registration(entry, server)
            if client is None:
                self._client.authorization_url(server, Registration("-"), "-", "-")  # else nothing is registered
                client = await self._client.register(server)
                entry["client"] = {**asdict(client), "issuer": server.issuer, "redirect_uri": self._redirect_uri}
                entry["registered"] = time.time()
            state, verifier = new_secret(), new_secret()
            url = self._client.authorization_url(server, client, state, verifier)
            begun = {"state": _digest(state), "verifier": verifier, "issuer": server.issuer, "since": time.time()}
            entry["pending"] = [*_pending(entry)[1 - MAX_PENDING :], begun]
            await self._store.write(caller, entry)
        self._count("begun")
        return url

    async def _finish(self, caller: str, query: str) -> None:
        given = _parameters(query)
        server = await self._find_server()
        async with self._store.locked(caller):
            entry = self._store.read(caller)
            digest = _digest(given.get("state", ""))
            found = next((each for each in _pending(entry) if hmac.compare_digest(each["state"], digest)), None)
            if found is None:
                raise AuthorizationRefused(
                    "This authorization was not begun here by you, is over, or was used already."
                )
            entry["pending"] = [each for each in _pending(entry) if each is not found]
            await self._store.write(caller, entry)  # before the code goes anywhere: it is used once
            issuer = given.get("iss")
            if found["issuer"] != server.issuer or issuer not in (server.issuer, None):
                raise AuthorizationRefused("The answer is from another authorization server than the one asked.")
            if issuer is None and server.sends_issuer:
                raise AuthorizationRefused("The answer does not say which authorization server it is from.")
            client = self._registration(entry, server)
            code = given.get("code", "")
            if "error" in given or not code or client is None:
                shown = given.get("error", "")
                why = f" ({shown})" if _ERROR_CODE.fullmatch(shown) else ""
                raise AuthorizationRefused(f"The authorization server did not give access{why}.")
            tokens = await self._client.by_code(server, client, code, found["verifier"])
            await self._keep(caller, {**entry, "pending": []}, server, tokens, entry.get("client"))
        self._count("authorized")

    async def _forget(self, caller: str) -> bool:
        async with self._store.locked(caller):
            entry = self._store.read(caller)
            tokens = entry.get("tokens")
            left = {**entry, "pending": []}
            if time.time() - entry.get("registered", 0) > REGISTERED_S:
                left.pop("client", None)  # the authorization server may have forgotten it, which only its page says
            if tokens is None:
                if "client" in entry and "client" not in left:
                    await self._store.write(caller, left)
                return False
            await self._drop(caller, left, "revoked")
        server = await self._find_server()
        client = self._registration(tokens, server)
        if client is not None and tokens["issuer"] == server.issuer:
            await self._client.revoke(server, client, tokens["refresh"] or tokens["access"])
        return True

    # --- entries ---------------------------------------------------------------------------------------------------
    def _registration(self, entry: Entry, server: ServerMetadata) -> Registration | None:
        """The gateway as a client of this server, by the entry or for its tokens; None: it has to be registered."""
        if self._client.registration is not None:
            return self._client.registration
        kept = dict(entry.get("client") or {})
        place = kept.pop("issuer", None), kept.pop("redirect_uri", None)
        if place != (server.issuer, self._redirect_uri):
            return None
        client = Registration(**kept)
        return None if client.is_over else client

    async def _keep(
        self, caller: str, entry: Entry, server: ServerMetadata, tokens: Tokens, client: Entry | None
    ) -> Held | None:
        now = time.time()
        kept = {
            "access": tokens.access.reveal().decode("ascii"), "refresh": tokens.refresh, "issuer": server.issuer,
            "since": now, "ends": now + tokens.life_s, "client": client,
        }  # fmt: skip
        await self._store.write(caller, {**entry, "tokens": kept})
        return _held({"tokens": kept})

    async def _drop(self, caller: str, entry: Entry, what: str) -> Held | None:
        await self._store.write(caller, {name: value for name, value in entry.items() if name != "tokens"})
        self._count(what)
        return None


def _held(entry: Entry) -> Held | None:
    tokens = entry.get("tokens")
    if not tokens:
        return None
    since, ends = tokens["since"], tokens["ends"]
    line = SecretBytes(b"\r\nAuthorization: Bearer " + tokens["access"].encode())
    return Held(line, ends - min(EARLY_S, (ends - since) / 10), ends)


def _pending(entry: Entry) -> list[dict[str, Any]]:
    """The authorizations that are under way: those of the last PENDING_S, the latest last."""
    now = time.time()
    return [each for each in entry.get("pending", ()) if now - PENDING_S < each["since"] <= now]


def _parameters(query: str) -> dict[str, str]:
    """Raises AuthorizationRefused for a parameter that stands twice (RFC 6749 section 3.1)."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=20)
    except ValueError:
        pairs = []
    given = dict(pairs)
    if not given or len(given) != len(pairs):
        raise AuthorizationRefused("The answer of the authorization server cannot be read.")
    return given


def _digest(state: str) -> str:
    return sha256(state.encode("utf-8", "surrogateescape")).hexdigest()
