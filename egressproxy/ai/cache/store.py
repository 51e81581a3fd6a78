"""AnswerStore: responses by key, bounded in number, bytes and age. It has no clock: the caller passes the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from egressproxy.ai.apis.usage import TokenUsage

#: The bytes of an entry beside its content.
_OVERHEAD = 1024

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A response as sent to the client, without hop-by-hop fields and before response-header filters.

    `stored_at` and `expires_at` are monotonic seconds; `age_s` is the initial age (RFC 9111 section 4.2.3). `usage` is
    the token usage. `place`, `route`, `target` and `identity` describe the request, for a purge.
    """

    status: int
    phrase: bytes
    fields: Fields
    body: bytes = field(repr=False)
    stored_at: float
    expires_at: float
    age_s: int = 0
    usage: TokenUsage | None = None
    place: int = 0
    route: str = ""
    target: bytes = field(default=b"", repr=False)
    identity: str = ""

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        fields = sum(len(name) + len(value) for name, value in self.fields)
        return len(self.body) + len(self.target) + fields + _OVERHEAD

    def age(self, now: float) -> int:
        return self.age_s + max(int(now - self.stored_at), 0)


class AnswerStore:
    """An LRU store of responses. A key has variants, by the values of the request fields that Vary names.

    `size` is in bytes. `hits` counts responses served from the store. `purges` counts purges: a request from before a
    purge must not be stored after it.
    """

    __slots__ = ("_entries", "_max_bytes", "_max_entries", "_vary", "hits", "purges", "size")

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, StoredAnswer] = OrderedDict()
        self._vary: OrderedDict[bytes, tuple[bytes, ...]] = OrderedDict()
        self.size = 0
        self.hits = 0
        self.purges = 0

    def __len__(self) -> int:
        return len(self._entries)

    def vary(self, key: bytes) -> tuple[bytes, ...]:
        """The field names of the Vary of this key; () for an unknown key."""
        return self._vary.get(key, ())

    def get(self, key: bytes, now: float) -> StoredAnswer | None:
        """The fresh response of this key, or None."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found.expires_at <= now:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return found

    def put(self, base: bytes, vary: tuple[bytes, ...], key: bytes, answer: StoredAnswer) -> int:
        """Store a response under `key`, made of `base` and the fields of `vary`. Returns the number of evictions."""
        if answer.size > self._max_bytes:
            return 0
        self._remove(key)
        self._entries[key] = answer
        self.size += answer.size
        if vary or base in self._vary:
            self._vary[base] = vary
            self._vary.move_to_end(base)
            if len(self._vary) > self._max_entries:
                self._vary.popitem(last=False)
        evicted = 0
        while len(self._entries) > self._max_entries or self.size > self._max_bytes:
            self._remove(next(iter(self._entries)))
            evicted += 1
        return evicted

    def remove_where(self, is_meant: Callable[[StoredAnswer], bool]) -> int:
        """Remove the matching responses; returns their number."""
        meant = [key for key, answer in self._entries.items() if is_meant(answer)]
        for key in meant:
            self._remove(key)
        if not self._entries:
            self._vary.clear()
        return len(meant)

    def _remove(self, key: bytes) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.size -= found.size
