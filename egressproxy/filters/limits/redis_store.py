"""RedisStore: limits shared by a fleet in a Redis; one round trip for all limits of a filter.

A script takes all amounts or none, on the clock of the Redis, so limits are exact across machines. This machine caches
the last state. While the Redis is unavailable, `onFailure` decides: Local continues from the cache, and multiplies each
amount by the number of machines, so that each machine gets its fair share. Amounts taken meanwhile are added to the
Redis after it returns. Other machines may not have added theirs yet, so for some seconds an exchange needs room in both
the Redis and the share.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from copy import copy
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import Final

from egressproxy.errors import LimitExceeded
from egressproxy.filters.base import FilterContext
from egressproxy.filters.limits.memory_store import MemoryStore
from egressproxy.filters.limits.qos_config import StoreConfig
from egressproxy.filters.limits.redis_link import RedisAway, RedisLink, Reply, ReplyError
from egressproxy.filters.limits.redis_scripts import ALIVE_S, LIVING, MACHINES, PREFIX, SETTLING, TAKING
from egressproxy.filters.limits.rules import Later, Reservation
from egressproxy.filters.limits.windows import CalendarWindow, TokenBucket
from egressproxy.net.keyed_counters import KEY_BYTES, KeyedCounters

#: The first and the longest interval of a machine's heartbeats, in seconds.
_FIRST_HEARTBEAT_S: Final = 0.5
_HEARTBEAT_S: Final = 5.0
#: Seconds for which the connection stays open after `close`, for final settlements.
_LINGER_S: Final = 2.0
#: The same with amounts that are still owed to the Redis.
_OWING_S: Final = 600.0
#: The most keys with amounts owed to the Redis.
_MAX_OWED: Final = 10_000
#: Bounds of the histogram of round trips.
_SECONDS: Final = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1)

#: Seconds for which a machine keeps to its share after the Redis returns, until the others have added their amounts.
#: Links reconnect within ten.
SHARING_S: Final = 15.0
#: The number of keys in the fleet's table.
FLEET_KEYS: Final = 2


class RedisStore:
    """Implements QuotaStore. `machine`: a table that all workers of this machine share, which identifies it."""

    def __init__(self, context: FilterContext, config: StoreConfig, machine: KeyedCounters) -> None:
        self._config = config
        self._local = MemoryStore()
        self._notices = context.notices
        self._source = context.source
        self._sign_of_life = [machine.key(b"machine").hex().encode(), b"%d" % ALIVE_S]
        self._fleet = _fleet(context, config)
        self._owed: dict[bytes, tuple[Reservation, float]] = {}
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

    # --- QuotaStore ------------------------------------------------------------------------------------------------
    def take(self, takes: Sequence[Reservation]) -> Reservation | Awaitable[Reservation | None] | None:
        link = self._connected()
        if link is not None:
            if self._fleet.is_sharing(monotonic()):
                return self._asked_for_share(link, takes)
            return Later(partial(self._asked, link, takes))
        if self._link is not None and self._link.is_beginning:
            return Later(partial(self._asked_first, self._link, takes))
        return self._take_without(takes)

    def settle(self, take: Reservation, difference: float) -> None:
        now = monotonic()
        if take.rule.window.period(now) != take.period:
            return
        by = 1
        if self._fleet.is_sharing(now):  # multiplied by the number of machines, also when given back
            machines = self._fleet.machines
            by = machines if difference > 0.0 else getattr(take, "shares", machines)
        self._local.settle(take, difference * by)
        link = self._connected()
        if link is None:
            self._owe(take, difference)
        else:
            self._send_settlement(link, take, difference)

    def peek(self, takes: Sequence[Reservation]) -> None:
        self._local.peek(takes)

    def begin(self) -> None:
        self._connected()

    def close(self) -> None:
        """Stop. Pending and owed amounts are still counted: the connection stays open, or is reopened once."""
        self._is_closed = True
        if self._link is not None and (self._owed or self._link.is_waiting):
            self._disconnect_in(_OWING_S if self._owed else _LINGER_S)
        else:
            self._disconnect()

    def _disconnect_in(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._disconnect)

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
            greeting += [[b"SCRIPT", b"LOAD", script.text] for script in (TAKING, SETTLING, LIVING)]
            greeting.append(LIVING.call([MACHINES], self._sign_of_life))  # also detects a read-only replica
            self._link = RedisLink(self._dial, greeting, self._config.timeout, self._on_state)
            self._link.connect()
            if self._is_closed:
                self._disconnect_in(_OWING_S)
        return self._link if self._link.is_connected else None

    async def _asked_first(self, link: RedisLink, takes: Sequence[Reservation]) -> Reservation | None:
        """`_asked` during the first attempt to connect, so that a new fleet does not start with fair shares."""
        await link.first_outcome()
        taken = self.take(takes)
        return await taken if isinstance(taken, Awaitable) else taken

    def _asked_for_share(
        self, link: RedisLink, takes: Sequence[Reservation]
    ) -> Reservation | Awaitable[Reservation | None]:
        """`_asked` for a Redis that has returned, and lacks the amounts that other machines owe."""
        refusing = self._take_share(takes)
        if refusing is not None:
            self._requests.add(1, "local")
            return refusing
        return Later(partial(self._asked, link, takes, has_share=True))

    async def _asked(
        self, link: RedisLink, takes: Sequence[Reservation], *, has_share: bool = False
    ) -> Reservation | None:
        keys = [*map(_key, takes), MACHINES]
        arguments = [each for take in takes for each in _arguments(take, take.amount)]
        started = monotonic()
        try:
            reply = await self._reply(link, takes, TAKING.call(keys, arguments))
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                reply = await self._reply(link, takes, TAKING.call(keys, arguments, by_digest=False))
            if isinstance(reply, ReplyError):  # for one, a primary that became a replica
                link.lose(reply)
            refusing = self._read(takes, reply)
        except RedisAway:
            if not has_share:
                return self._take_without(takes)
            self._requests.add(1, "local")
            self._owe_all(takes)
            return None
        if refusing is not None and has_share:
            for take in takes:
                self._local.settle(take, -take.amount * take.shares)
        self._round_trips.observe(monotonic() - started)
        self._requests.add(1, "ok" if refusing is None else "denied")
        return refusing

    async def _reply(self, link: RedisLink, takes: Sequence[Reservation], words: list[bytes]) -> Reply:
        """The reply to a command that takes amounts, which are given back if the client leaves meanwhile."""
        future = link.send(words)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda future: self._give_back(takes, future))
            raise

    def _give_back(self, takes: Sequence[Reservation], future: asyncio.Future[Reply]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        try:
            if self._read(takes, future.result()) is None:
                for take in takes:
                    self.settle(take, -take.amount)
        except RedisAway:
            return

    def _read(self, takes: Sequence[Reservation], reply: Reply) -> Reservation | None:
        """Read the script's result into memory. Raises RedisAway for an invalid result."""
        if not isinstance(reply, list) or len(reply) != 2 * len(takes) + 1 or not isinstance(reply[-1], int):
            code = reply.code if isinstance(reply, ReplyError) else "a reply of another form"
            raise RedisAway(f"it replies {code}")
        now = monotonic()
        self._fleet.told(reply[-1], now)
        is_sharing = self._fleet.is_sharing(now)
        refusing: Reservation | None = None
        for number, take in enumerate(takes):
            is_refused, encoded = reply[2 * number], reply[2 * number + 1]
            if not isinstance(encoded, bytes):
                raise RedisAway("it replies a reply of another form")
            window, state = take.rule.window, _state(encoded)
            until, used = (now + state / 1e6, 0.0) if isinstance(window, TokenBucket) else (now, state)
            if not isinstance(window, TokenBucket):
                until, used = window.with_more(until, state, 0.0, now)
            table = take.rule.table
            with table.lock:
                at, cells = table.find_text(take.text, now), table.cells
                if is_sharing:  # keep the higher usage of this machine's share
                    until, used = max(until, cells[at]), max(used, cells[at + 1])
                cells[at], cells[at + 1] = until, used
            if is_refused == 1:
                # The Redis has refused, so wait at least a moment, regardless of our clock.
                take.wait_s = max(window.wait_s(until, used, take.amount, now), 1e-3)
                if refusing is None or take.wait_s > refusing.wait_s:
                    refusing = take
        return refusing

    def _send_settlement(
        self, link: RedisLink, take: Reservation, difference: float, *, by_digest: bool = True
    ) -> None:
        """Add a difference in the Redis, without waiting."""
        try:
            future = link.send(SETTLING.call([_key(take)], _arguments(take, difference), by_digest=by_digest))
        except RedisAway:
            self._owe(take, difference)
        else:
            future.add_done_callback(partial(self._settled, link, take, difference))

    def _settled(self, link: RedisLink, take: Reservation, difference: float, future: asyncio.Future[Reply]) -> None:
        if future.cancelled():
            return
        if future.exception() is not None:
            # Unknown whether it was counted: count again rather than never, but never give back twice.
            if difference > 0.0:
                self._owe(take, difference)
            return
        reply = future.result()
        if not isinstance(reply, ReplyError):
            return
        if reply.code == "NOSCRIPT":
            self._send_settlement(link, take, difference, by_digest=False)
        else:
            self._owe(take, difference)
            link.lose(reply)

    # --- without it ------------------------------------------------------------------------------------------------
    def _take_without(self, takes: Sequence[Reservation]) -> Reservation | None:
        """Decide while the Redis is unavailable. Raises LimitExceeded (503) with `onFailure: Deny`."""
        how = self._config.on_failure
        self._requests.add(1, how.lower())
        if how == "Allow":
            return None
        if how == "Deny":
            message = "limits cannot be counted: their store is away"
            raise LimitExceeded(takes[0].rule.reason, message, status=503, rule=self._source, retry_after_s=1)
        self._fleet.share(monotonic())
        refusing = self._take_share(takes)
        if refusing is None:
            self._owe_all(takes)
        return refusing

    def _take_share(self, takes: Sequence[Reservation]) -> Reservation | None:
        """Take all reservations from this machine's share, or none. Returns as `take`.

        Each amount is multiplied by the number of machines. An amount larger than the share passes if the limit is
        unused, and later ones wait until the surplus has refilled.
        """
        machines = self._fleet.machines
        scaled = []
        for take in takes:
            take.shares = machines
            made = copy(take)
            made.amount = min(take.amount * machines, max(take.amount, take.rule.window.most))
            scaled.append(made)
        refusing = self._local.take(scaled)
        if refusing is not None:
            refused = takes[scaled.index(refusing)]
            refused.wait_s = refusing.wait_s
            return refused
        for take, made in zip(takes, scaled, strict=True):
            beyond = take.amount * machines - made.amount
            if beyond > 0.0:
                self._local.settle(take, beyond)
        return None

    def _owe_all(self, takes: Sequence[Reservation]) -> None:
        for take in takes:
            self._owe(take, take.amount)

    def _owe(self, take: Reservation, amount: float) -> None:
        key = _key(take)
        known = self._owed.get(key)
        if known is not None or len(self._owed) < _MAX_OWED:
            self._owed[key] = take, amount + (known[1] if known is not None else 0.0)

    def _on_state(self, why: str) -> None:
        """Handle a connect (""), or a disconnect with its reason."""
        if not why:
            if self._fleet.is_sharing(monotonic()):
                self._fleet.share(monotonic())
            self._up.set(1)
            self._notices.normal("LimitStoreBack", "the Redis of the limits is there, and counts")
            self._pay()
            self._live()
            if self._is_closed:
                self._disconnect_in(_LINGER_S)
            return
        if self._config.on_failure == "Local":
            self._fleet.share(monotonic())
        if why != self._why_away:
            self._why_away = why
            self._notices.warning(
                "LimitStoreAway", f"the Redis of the limits is away: {why}; until it is back: {self._config.on_failure}"
            )
        self._up.set(0)

    def _pay(self) -> None:
        """Add the owed amounts in the Redis."""
        owed, self._owed = self._owed, {}
        self._why_away = ""
        now = monotonic()
        assert self._link is not None
        for take, amount in owed.values():
            if amount and take.rule.window.period(now) == take.period:
                self._send_settlement(self._link, take, amount)

    def _live(self, pause_s: float = _FIRST_HEARTBEAT_S) -> None:
        """Send a heartbeat now, and repeat it at growing intervals (seconds)."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._link is None or not self._link.is_connected or self._is_closed:
            return
        self._heartbeat = asyncio.get_running_loop().call_later(pause_s, self._live, min(2 * pause_s, _HEARTBEAT_S))
        try:
            self._link.send(LIVING.call([MACHINES], self._sign_of_life)).add_done_callback(self._lives)
        except RedisAway:
            return

    def _lives(self, future: asyncio.Future[Reply]) -> None:
        if not future.cancelled() and future.exception() is None:
            reply = future.result()
            if isinstance(reply, int):
                self._fleet.told(reply, monotonic())


def _fleet(context: FilterContext, config: StoreConfig) -> RedisFleet:
    """The fleet state for one object's limits in this Redis, shared by all workers of this machine."""
    known_by = repr(("fleet", context.source, config.backend_ref.label, config.database)).encode()
    identity = blake2b(known_by, digest_size=KEY_BYTES).digest()
    table = KeyedCounters(FLEET_KEYS) if context.keyed is None else context.keyed(identity, FLEET_KEYS)
    return RedisFleet(table, monotonic())


def _state(encoded: bytes) -> float:
    """The number of a state. Raises RedisAway for an invalid one."""
    try:
        state = float(encoded)
    except ValueError:
        state = math.nan
    if not math.isfinite(state):
        raise RedisAway("it replies a reply of another form")
    return state


def _key(take: Reservation) -> bytes:
    """The key in the Redis: a hash, equal in every process of the fleet."""
    digest = blake2b(take.text, digest_size=16, key=take.rule.identity).hexdigest()
    return b"%b%b:%b" % (PREFIX, take.rule.identity.hex().encode(), digest.encode())


def _arguments(take: Reservation, amount: float) -> list[bytes]:
    window = take.rule.window
    if isinstance(window, TokenBucket):
        interval = window.length_s / window.limit * 1e6
        return [b"b", b"%.6f" % (amount * interval), b"%.6f" % (window.most * interval), b"0"]
    assert isinstance(window, CalendarWindow)
    life = math.ceil(window.seconds_left() + 60.0) * 1000
    return [b"c", b"%.17g" % amount, b"%.17g" % window.limit, b"%d" % life]


class RedisFleet:
    """The number of machines, and the time until which each keeps to its share. All workers of this machine share
    `table`, so a new worker knows both. `now`: monotonic seconds.
    """

    __slots__ = ("_cells", "_machines", "_until")

    def __init__(self, table: KeyedCounters, now: float) -> None:
        self._cells = table.cells
        with table.lock:
            self._machines = _entry(table, b"how many", now)
            self._until = _entry(table, b"until", now)

    @property
    def machines(self) -> int:
        """The number of machines, including this one; 1 before the first reply of the Redis."""
        return max(1, int(self._cells[self._machines]))

    def told(self, machines: int, now: float) -> None:
        """Set the number of machines from the Redis. During sharing it can only grow."""
        known = self._cells[self._machines]
        if machines != known and (machines > known or not self.is_sharing(now)):
            self._cells[self._machines] = machines

    def is_sharing(self, now: float) -> bool:
        """Whether this machine is limited to its share."""
        return self._cells[self._until] > now

    def share(self, now: float) -> None:
        """Limit this machine to its share: the Redis is unavailable, or lacks owed amounts of others."""
        self._cells[self._until] = now + SHARING_S


def _entry(table: KeyedCounters, name: bytes, now: float) -> int:
    """The index of an entry that never expires."""
    at = table.find(table.key(name), now)
    table.cells[at] = math.inf
    return at + 1
