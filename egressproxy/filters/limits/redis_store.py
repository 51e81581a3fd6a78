"""RedisStore: limits that a fleet counts together, in a Redis; one round trip for all limits of a filter.

A script takes all or nothing, on the clock of the Redis, so that what passes is exact, whoever asks. What the Redis has
said last is kept in this machine's memory. While it is away, `onStoreFailure` decides: Local goes on from there, and
each amount counts as often as there are machines, as if the others let pass as much: each has its fair share. What was
taken meanwhile is counted in the Redis when it is back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from copy import copy
from hashlib import blake2b, sha1
from time import monotonic
from typing import Final

from egressproxy.errors import LimitExceeded
from egressproxy.filters.base import FilterContext
from egressproxy.filters.limits.keyed_counters import KeyedCounters
from egressproxy.filters.limits.memory_store import MemoryStore
from egressproxy.filters.limits.qos_config import StoreConfig
from egressproxy.filters.limits.redis_link import RedisAway, RedisLink
from egressproxy.filters.limits.redis_protocol import Reply, ReplyError
from egressproxy.filters.limits.rules import Take
from egressproxy.filters.limits.windows import CalendarWindow, TokenBucket

__all__ = ["RedisStore"]

#: Seconds between the signs of life of a machine, and how long one counts.
_HEARTBEAT_S: Final = 5.0
_ALIVE_S: Final = 15
#: Seconds for which what ends behind `close` has a connection.
_LINGER_S: Final = 2.0
#: Keys whose amounts wait for a Redis that is away.
_MAX_OWED: Final = 10_000
#: All keys have one hash tag, so that a script may use any of them in one node of a Redis Cluster.
_PREFIX: Final = b"{egressproxy}:"
_MACHINES: Final = [_PREFIX + b"machines"]
#: Bounds of the histogram of round trips.
_SECONDS: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1)

#: KEYS: one for each limit. ARGV, for each: kind, amount, most, and how long a window lives (milliseconds). A bucket
#: (`b`) counts in microseconds: amount is what it costs, most how far ahead of now it may be; its value is when it is
#: full again, from a moment that is near, so that the numbers stay exact. A window (`c`) counts up to most. Returns
#: for each whether it refuses (0 or 1), and its state: how far ahead of now, or how much is used.
_TAKE: Final = b"""
local time = redis.call('TIME')
local now = (time[1] - 1750000000) * 1000000 + time[2]
local values, refused, fits = {}, {}, true
for i = 1, #KEYS do
  local kind, amount, most = ARGV[i * 4 - 3], tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4 - 1])
  local value = tonumber(redis.call('GET', KEYS[i]) or '0')
  if kind == 'b' then value = math.max(value - now, 0) end
  values[i] = value
  local slack = most * 0.000000001
  if kind == 'b' then slack = slack + 0.01 end
  if value + amount > most + slack then refused[i] = 1; fits = false else refused[i] = 0 end
end
local said = {}
for i = 1, #KEYS do
  local kind, amount, life = ARGV[i * 4 - 3], tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4])
  if fits then
    values[i] = values[i] + amount
    if kind == 'b' then
      redis.call('SET', KEYS[i], string.format('%.3f', now + values[i]), 'PX', math.ceil(values[i] / 1000) + 1000)
    else
      redis.call('SET', KEYS[i], string.format('%.17g', values[i]), 'PX', life)
    end
  end
  said[i * 2 - 1] = refused[i]
  said[i * 2] = string.format('%.17g', values[i])
end
return said
"""
#: The same for one key, whatever it is: a difference is counted, and nothing refused.
_SETTLE: Final = b"""
local time = redis.call('TIME')
local now = (time[1] - 1750000000) * 1000000 + time[2]
local value = tonumber(redis.call('GET', KEYS[1]) or '0')
if ARGV[1] == 'b' then
  value = math.max(value - now, 0) + tonumber(ARGV[2])
  if value > 0 then
    redis.call('SET', KEYS[1], string.format('%.3f', now + value), 'PX', math.ceil(value / 1000) + 1000)
  else
    redis.call('DEL', KEYS[1])
  end
else
  value = math.max(value + tonumber(ARGV[2]), 0)
  redis.call('SET', KEYS[1], string.format('%.17g', value), 'PX', ARGV[4])
end
return string.format('%.17g', value)
"""
#: KEYS: the machines of the fleet. ARGV: this one, seconds. Returns how many live.
_ALIVE: Final = b"""
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""


class _Script:
    """A script, and how it is known to a Redis that has run it before."""

    __slots__ = ("digest", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.digest = sha1(text, usedforsecurity=False).hexdigest().encode()

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes], *, by_digest: bool = True) -> list[bytes]:
        """The command that runs it."""
        verb = [b"EVALSHA", self.digest] if by_digest else [b"EVAL", self.text]
        return [*verb, b"%d" % len(keys), *keys, *arguments]


_TAKING, _SETTLING, _LIVING = _Script(_TAKE), _Script(_SETTLE), _Script(_ALIVE)


class RedisStore:
    """Implements QuotaStore. `machine`: numbers that all workers of this machine share, to know it by."""

    def __init__(self, context: FilterContext, config: StoreConfig, machine: KeyedCounters) -> None:
        self._config = config
        self._local = MemoryStore()
        self._notices = context.notices
        self._source = context.source
        self._sign_of_life = [machine.key(b"machine").hex().encode(), b"%d" % _ALIVE_S]
        self._machines = 1
        self._owed: dict[bytes, tuple[Take, float]] = {}
        self._why_away = "it was not reached yet"
        self._heartbeat: asyncio.TimerHandle | None = None
        self._link: RedisLink | None = None
        self._is_closed = False
        ref, secret = config.backend_ref, config.secret_ref
        self._dial = context.calls.get(ref.label)
        self._password = context.secrets.get(secret.label) if secret is not None else None
        self._lacks_password = secret is not None and self._password is None
        meter = context.meter
        self._requests = meter.counter(
            "egress_limit_store_requests", "Exchanges whose limits a Redis was asked for, by result.", ["result"]
        )
        self._round_trips = meter.histogram("egress_limit_store_seconds", "Time until a Redis has replied.", _SECONDS)
        self._up = meter.gauge(
            "egress_limit_store_up", "Whether the Redis of these limits is there, in how many processes."
        )

    # --- as of QuotaStore ------------------------------------------------------------------------------------------
    def take(self, takes: Sequence[Take]) -> Take | Awaitable[Take | None] | None:
        """As of QuotaStore."""
        link = self._connected()
        if link is not None:
            return self._asked(link, takes)
        if self._link is not None and self._link.is_beginning:
            return self._asked_first(self._link, takes)
        return self._take_without(takes)

    def settle(self, take: Take, difference: float) -> None:
        """As of QuotaStore."""
        now = monotonic()
        if take.rule.window.period(now) != take.period:
            return
        self._local.settle(take, difference)
        link = self._connected()
        try:
            if link is None:
                self._owe(take, difference)
            else:
                self._send(link, _SETTLING, [_key(take)], _arguments(take, difference))
        except RedisAway:
            self._owe(take, difference)

    def peek(self, takes: Sequence[Take]) -> None:
        """As of QuotaStore: what the Redis has said last of each."""
        self._local.peek(takes)

    def close(self) -> None:
        """As of QuotaStore. Exchanges in progress are still counted, over a connection that stays for a moment."""
        self._is_closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None

    # --- with the Redis --------------------------------------------------------------------------------------------
    def _connected(self) -> RedisLink | None:
        if self._link is None:
            if self._dial is None or self._lacks_password:
                self._on_state("its password is not there" if self._lacks_password else "its backend is not there")
                return None
            greeting: list[list[bytes]] = []
            if self._password is not None:
                user = [self._config.username.encode()] if self._config.username else []
                greeting.append([b"AUTH", *user, self._password.reveal().strip()])
            if self._config.database:
                greeting.append([b"SELECT", b"%d" % self._config.database])
            greeting += [[b"SCRIPT", b"LOAD", script.text] for script in (_TAKING, _SETTLING, _LIVING)]
            greeting.append(_LIVING.call(_MACHINES, self._sign_of_life))  # finds out who takes no writes
            self._link = RedisLink(self._dial, greeting, self._config.timeout, self._on_state)
            self._link.connect()
            if self._is_closed:
                asyncio.get_running_loop().call_later(_LINGER_S, self._disconnect)
        return self._link if self._link.is_connected else None

    async def _asked_first(self, link: RedisLink, takes: Sequence[Take]) -> Take | None:
        """As `_asked`, when the first connection is being made: a fleet that starts does not begin with fair shares."""
        await link.first_outcome()
        return await self._asked(link, takes) if link.is_connected else self._take_without(takes)

    async def _asked(self, link: RedisLink, takes: Sequence[Take]) -> Take | None:
        keys = [_key(take) for take in takes]
        arguments = [each for take in takes for each in _arguments(take, take.amount)]
        started = monotonic()
        try:
            reply = await self._reply(link, takes, _TAKING.call(keys, arguments))
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                reply = await self._reply(link, takes, _TAKING.call(keys, arguments, by_digest=False))
            if isinstance(reply, ReplyError):  # such as of a primary that has become a replica
                link.lose(reply)
            refusing = self._read(takes, reply)
        except RedisAway:
            return self._take_without(takes)
        self._round_trips.observe(monotonic() - started)
        self._requests.add(1, "ok" if refusing is None else "denied")
        return refusing

    async def _reply(self, link: RedisLink, takes: Sequence[Take], words: list[bytes]) -> Reply:
        """The reply to a command that takes. A client that leaves meanwhile is given back what it took."""
        future = link.send(words)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda future: self._give_back(takes, future))
            raise

    def _give_back(self, takes: Sequence[Take], future: asyncio.Future[Reply]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        try:
            if self._read(takes, future.result()) is None:
                for take in takes:
                    self.settle(take, -take.amount)
        except RedisAway:
            return

    def _read(self, takes: Sequence[Take], reply: Reply) -> Take | None:
        """What the script has returned, kept in memory. Raises RedisAway for what it would not return."""
        if not isinstance(reply, list) or len(reply) != 2 * len(takes):
            code = reply.code if isinstance(reply, ReplyError) else "a reply of another form"
            raise RedisAway(f"it replies {code}")
        now = monotonic()
        refusing: Take | None = None
        for number, take in enumerate(takes):
            is_refused, said = reply[2 * number], reply[2 * number + 1]
            if not isinstance(said, bytes):
                raise RedisAway("it replies a reply of another form")
            window, state = take.rule.window, _state(said)
            until, used = (now + state / 1e6, 0.0) if isinstance(window, TokenBucket) else (now, state)
            if not isinstance(window, TokenBucket):
                until, used = window.with_more(until, state, 0.0, now)
            self._keep(take, until, used, now)
            if is_refused == 1:
                # The Redis has refused it, so it waits at least a moment, whatever our clock says.
                take.wait_s = max(window.wait_s(until, used, take.amount, now), 1e-3)
                if refusing is None or take.wait_s > refusing.wait_s:
                    refusing = take
        return refusing

    def _keep(self, take: Take, until: float, used: float, now: float) -> None:
        table = take.rule.table
        with table.lock:
            at = table.find_text(take.text, now)
            table.cells[at], table.cells[at + 1] = until, used

    def _send(self, link: RedisLink, script: _Script, keys: list[bytes], arguments: list[bytes]) -> None:
        """Send what nobody waits for; a Redis that does not know the script is told it."""
        future = link.send(script.call(keys, arguments))

        def replied(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or future.exception() is not None:
                return
            reply = future.result()
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT" and link.is_connected:
                link.send(script.call(keys, arguments, by_digest=False))
            elif script is _LIVING and isinstance(reply, int) and reply > 0:
                self._machines = reply

        future.add_done_callback(replied)

    # --- without it ------------------------------------------------------------------------------------------------
    def _take_without(self, takes: Sequence[Take]) -> Take | None:
        """Decide while the Redis is away. Raises LimitExceeded (503) where that is to refuse."""
        how = self._config.on_failure
        self._requests.add(1, how.lower())
        if how == "Allow":
            return None
        if how == "Deny":
            message = "limits cannot be counted: their store is away"
            raise LimitExceeded(takes[0].rule.reason, message, status=503, rule=self._source, retry_after_s=1)
        scaled = []
        for take in takes:
            made = copy(take)
            made.amount = min(take.amount * self._machines, max(take.amount, take.rule.window.most))
            scaled.append(made)
        refusing = self._local.take(scaled)
        if refusing is None:
            for take in takes:
                self._owe(take, take.amount)
            return None
        refused = takes[scaled.index(refusing)]
        refused.wait_s = refusing.wait_s
        return refused

    def _owe(self, take: Take, amount: float) -> None:
        key = _key(take)
        known = self._owed.get(key)
        if known is not None or len(self._owed) < _MAX_OWED:
            self._owed[key] = take, amount + (known[1] if known is not None else 0.0)

    def _on_state(self, why: str) -> None:
        """The Redis is there (""), or it is away for this reason."""
        if not why:
            self._up.set(1)
            self._notices.normal("LimitStoreBack", "the Redis of the limits is there, and counts")
            self._pay()
            self._live()
            return
        if why != self._why_away:
            self._why_away = why
            self._notices.warning(
                "LimitStoreAway", f"the Redis of the limits is away: {why}; until it is back: {self._config.on_failure}"
            )
        self._up.set(0)

    def _pay(self) -> None:
        """Count in the Redis what was taken without it."""
        owed, self._owed = self._owed, {}
        self._why_away = ""
        now = monotonic()
        assert self._link is not None
        for key, (take, amount) in owed.items():
            if amount and take.rule.window.period(now) == take.period:
                try:
                    self._send(self._link, _SETTLING, [key], _arguments(take, amount))
                except RedisAway:
                    self._owe(take, amount)

    def _live(self) -> None:
        """Say that this machine is there, now and every few seconds."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._link is None or not self._link.is_connected or self._is_closed:
            return
        self._heartbeat = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._live)
        try:
            self._send(self._link, _LIVING, _MACHINES, self._sign_of_life)
        except RedisAway:
            return

    def __repr__(self) -> str:
        return f"RedisStore({self._link}, {self._machines} machines)"


def _state(said: bytes) -> float:
    """The number of a state. Raises RedisAway for what is none."""
    try:
        state = float(said)
    except ValueError:
        state = math.nan
    if not math.isfinite(state):
        raise RedisAway("it replies a reply of another form")
    return state


def _key(take: Take) -> bytes:
    """The same in every process of the fleet; what the key says cannot be read from it."""
    digest = blake2b(take.text, digest_size=16, key=take.rule.identity).hexdigest()
    return b"%b%b:%b" % (_PREFIX, take.rule.identity.hex().encode(), digest.encode())


def _arguments(take: Take, amount: float) -> list[bytes]:
    window = take.rule.window
    if isinstance(window, TokenBucket):
        interval = window.length_s / window.limit * 1e6
        return [b"b", b"%.6f" % (amount * interval), b"%.6f" % (window.most * interval), b"0"]
    assert isinstance(window, CalendarWindow)
    life = math.ceil(window.seconds_left() + 60.0) * 1000
    return [b"c", b"%.17g" % amount, b"%.17g" % window.limit, b"%d" % life]
