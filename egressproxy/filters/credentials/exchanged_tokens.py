"""ExchangedTokens: what was issued for the tokens of callers, until it expires.

Requests drive it: nothing is fetched for a caller that is away, and no caller's token is kept. The first request with a
token waits for its exchange. Later ones are sent what was issued, and one of them has it renewed in the background
before it ends. There is one exchange at a time for each token. After a failure the next one waits.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import islice
from time import time
from typing import Final

from egressproxy.filters.base import FilterContext
from egressproxy.filters.credentials.refresher import EARLY, MARGIN_S, SPREAD, Fetched, FetchError, fetching
from egressproxy.model.caller_identity import CallerToken
from egressproxy.model.secret import SecretBytes

#: The longest token that is kept, in bytes: as of those that clients show.
MAX_TOKEN: Final = 16 * 1024
#: The most exchanges at once, of all callers and of one, which may have many tokens.
MAX_UNDER_WAY: Final = 128
MAX_OF_CALLER: Final = 16
#: Between failed exchanges of one token, in seconds: from the first to the second, and at most.
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
#: A value is exchanged anew after this many seconds at most, so that what the server revokes ends.
RENEWAL_S: Final = 3600.0
#: A value that the backend has refused is exchanged anew if it is older than this, in seconds.
REFUSED_S: Final = 10.0
#: Error codes by which a server says that it does not exchange the token of this caller (RFC 6749 section 5.2, RFC 8693
#: section 2.2.2). Others tell of the gateway's own registration.
OF_CALLER: Final = frozenset(("invalid_grant", "invalid_request", "access_denied", "invalid_target", "invalid_scope"))
#: After these, what was issued before is no longer used: the caller's token was revoked, or is invalid.
_REVOKED: Final = frozenset(("invalid_grant", "invalid_request", "access_denied"))


class _Entry:
    """What was issued for one token; None where nothing holds. Times are those of the loop's clock."""

    __slots__ = ("error", "expires_at", "failures", "fetched_at", "retry_at", "task", "value")

    def __init__(self) -> None:
        self.value: SecretBytes | None = None
        self.fetched_at = self.expires_at = 0.0
        self.retry_at = 0.0  # when the next exchange may begin: an early one while there is a value
        self.error: FetchError | None = None
        self.failures = 0
        self.task: asyncio.Task[None] | None = None


class ExchangedTokens:
    """`exchange` fetches what is issued for a token. At most `most` are kept, those that were used last."""

    __slots__ = ("_entries", "_exchange", "_is_closed", "_most", "_report", "_under_way")

    def __init__(self, exchange: Callable[[bytes], Awaitable[Fetched]], report: ExchangeReport, most: int) -> None:
        self._exchange = exchange
        self._report = report
        self._most = most
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._under_way: dict[asyncio.Task[None], str] = {}  # by task: the key of the caller
        self._is_closed = False

    def held(self, token: CallerToken) -> SecretBytes | None:
        """What was issued for this token, if it holds; begins to renew it where that is due."""
        key = _key_of(token)
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        now = asyncio.get_running_loop().time()
        if now >= entry.expires_at:
            entry.value = None
        elif now >= entry.retry_at and entry.value is not None and len(self._under_way) < MAX_UNDER_WAY:
            self._begin(entry, token)
        return entry.value

    async def issued(self, token: CallerToken, caller: str) -> SecretBytes:
        """As `held`, after an exchange if need be. `caller`: the key of its identity. Raises FetchError."""
        value = self.held(token)
        if value is not None:
            return value
        key = _key_of(token)
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            entry = self._entries[key] = _Entry()
        if entry.task is None:
            if entry.error is not None and asyncio.get_running_loop().time() < entry.retry_at:
                raise FetchError(str(entry.error), code=entry.error.code)
            if len(self._under_way) >= MAX_UNDER_WAY:
                raise FetchError(f"{MAX_UNDER_WAY} exchanges are under way: try again")
            if sum(each == caller for each in self._under_way.values()) >= MAX_OF_CALLER:
                raise FetchError(f"{MAX_OF_CALLER} exchanges of this client are under way: try again")
            self._begin(entry, token, caller)
        assert entry.task is not None
        await asyncio.shield(entry.task)
        if entry.value is None:
            error = entry.error or FetchError("what was issued has expired")
            raise FetchError(str(error), code=error.code)
        return entry.value

    def refused(self, token: CallerToken) -> None:
        """The backend has refused what was issued: the next request has the token exchanged anew."""
        entry = self._entries.get(_key_of(token))
        now = asyncio.get_running_loop().time()
        if entry is not None and entry.value is not None and now - entry.fetched_at >= REFUSED_S:
            entry.value = None

    def close(self) -> None:
        """Begin no further exchange. Those under way go on, since requests wait for them."""
        self._is_closed = True
        self._entries.clear()

    def _make_room(self) -> None:
        """Forget what has expired of the callers that have been away for the longest, and one of them where there are
        too many. Who is waited for stays.
        """
        now = asyncio.get_running_loop().time()
        away = [key for key, each in islice(self._entries.items(), MAX_UNDER_WAY + 2) if each.task is None][:2]
        for key in away:
            entry = self._entries[key]
            if len(self._entries) >= self._most or now >= max(entry.expires_at, entry.retry_at):
                del self._entries[key]

    def _begin(self, entry: _Entry, token: CallerToken, caller: str = "") -> None:
        if entry.task is None:
            entry.task = asyncio.get_running_loop().create_task(self._run(entry, token))
            self._under_way[entry.task] = caller
            entry.task.add_done_callback(self._under_way.__delitem__)

    async def _run(self, entry: _Entry, token: CallerToken) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with fetching():
                fetched = await self._exchange(token.value.reveal())
                assert isinstance(fetched.value, bytes)
                if len(fetched.value) > MAX_TOKEN:
                    raise FetchError(f"the token that was issued is longer than {MAX_TOKEN} bytes")
                if fetched.value == token.value.reveal():
                    raise FetchError("the server has issued the caller's own token, which is not sent to backends")
        except FetchError as error:
            self._failed(entry, error, loop.time())
        else:
            now = loop.time()
            life = fetched.life_s - min(MARGIN_S, fetched.life_s / 10)
            entry.value, entry.error, entry.failures = SecretBytes(fetched.value), None, 0
            entry.fetched_at, entry.expires_at = now, now + life
            early = EARLY - random.random() * SPREAD  # noqa: S311 - it spreads load
            entry.retry_at = now + min(fetched.refresh_s or life * early, RENEWAL_S)
            if not self._is_closed:
                self._report.succeeded(len(self._entries))
        finally:
            entry.task = None

    def _failed(self, entry: _Entry, error: FetchError, now: float) -> None:
        error.__traceback__ = error.__context__ = error.__cause__ = None  # its frames know tokens
        entry.error = error
        entry.failures += 1
        entry.retry_at = now + min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(entry.failures - 1, 10))
        if error.is_final or error.code in _REVOKED or now >= entry.expires_at:
            entry.value = None
        if not self._is_closed:
            self._report.failed(error, len(self._entries))


def _key_of(token: CallerToken) -> bytes:
    return sha256(token.value.reveal()).digest()


class ExchangeReport:
    """Tells of exchanges: metrics, and an Event where the server does not exchange for anybody."""

    __slots__ = ("_exchanges", "_has_failed", "_held", "_last", "_notices", "_source")

    def __init__(self, context: FilterContext) -> None:
        meter, labels = context.meter, ("source",)
        self._source, self._notices = context.source, context.notices
        self._has_failed = False
        self._exchanges = meter.counter("egress_token_exchanges", "Exchanges of callers' tokens.", (*labels, "result"))
        self._held = meter.gauge("egress_exchanged_tokens", "Callers whose exchanged tokens are held.", labels)
        self._last = meter.gauge(
            "egress_token_exchange_success_timestamp_seconds", "When a token was last exchanged.", labels,
            combined="max",
        )  # fmt: skip

    def succeeded(self, held: int) -> None:
        """`held`: the number of tokens of which results are kept."""
        self._exchanges.add(1, self._source, "ok")
        self._held.set(held, self._source)
        self._last.set(time(), self._source)
        if self._has_failed:
            self._has_failed = False
            self._notices.normal("TokensExchanged", "exchanges tokens of callers again")

    def failed(self, error: FetchError, held: int) -> None:
        """As `succeeded`."""
        self._exchanges.add(1, self._source, "refused" if error.code in OF_CALLER else "error")
        self._held.set(held, self._source)
        if error.code not in OF_CALLER:
            self._has_failed = True
            self._notices.warning("TokenExchangeFailed", f"cannot exchange tokens of callers: {error}")
