"""The scripts that a Redis runs for limits: each takes, settles or counts in one step, on the clock of the Redis."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import Final

#: Seconds for which a sign of life of a machine counts.
ALIVE_S: Final = 15
#: All keys have one hash tag, so that a script may use any of them in one node of a Redis Cluster.
PREFIX: Final = b"{egressproxy}:"
MACHINES: Final = PREFIX + b"machines"

#: KEYS: one for each limit, and the machines of the fleet. ARGV, for each limit: kind, amount, most, and how long a
#: window lives (milliseconds). A bucket (`b`) counts in microseconds: amount is what it costs, most how far ahead of
#: now it may be; its value is when it is full again, from a moment that is near, so that the numbers stay exact. A
#: window (`c`) counts up to most. Returns for each limit whether it refuses (0 or 1), and its state: how far ahead of
#: now, or how much is used; then how many machines there are.
_TAKE: Final = b"""
local time = redis.call('TIME')
local now = (time[1] - 1750000000) * 1000000 + time[2]
local values, refused, fits = {}, {}, true
for i = 1, #KEYS - 1 do
  local kind, amount, most = ARGV[i * 4 - 3], tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4 - 1])
  local value = tonumber(redis.call('GET', KEYS[i]) or '0')
  if kind == 'b' then value = math.max(value - now, 0) end
  values[i] = value
  local slack = most * 0.000000001
  if kind == 'b' then slack = slack + 0.01 end
  if value + amount > most + slack then refused[i] = 1; fits = false else refused[i] = 0 end
end
local said = {}
for i = 1, #KEYS - 1 do
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
said[#said + 1] = redis.call('ZCARD', KEYS[#KEYS])
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


class Script:
    """A script in Lua (`text`), and its name for EVALSHA (`digest`)."""

    __slots__ = ("digest", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.digest = sha1(text, usedforsecurity=False).hexdigest().encode()

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes], *, by_digest: bool = True) -> list[bytes]:
        """The command that runs it."""
        verb = [b"EVALSHA", self.digest] if by_digest else [b"EVAL", self.text]
        return [*verb, b"%d" % len(keys), *keys, *arguments]


TAKING, SETTLING, LIVING = Script(_TAKE), Script(_SETTLE), Script(_ALIVE)
