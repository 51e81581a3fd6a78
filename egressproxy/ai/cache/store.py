"""AnswerStore: answers by key, bounded in number, bytes and age. No clock and no exchange: the caller says the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from egressproxy.ai.apis.usage import TokenUsage

#: What an entry costs beside its bytes.
_OVERHEAD = 1024

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer as the client got it, without the fields of its transport and before the filters of its head.

    `stored_at` and `expires_at` are monotonic seconds; `age_s` is how old it was when it came (RFC 9111 section 4.2.3).
    `usage` is what it says of tokens. `place`, `route`, `target` and `identity` say what was asked, for a purge.
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
        """Bytes that it takes, about."""
        fields = sum(len(name) + len(value) for name, value in self.fields)
        return len(self.body) + len(self.target) + fields + _OVERHEAD

    def age(self, now: float) -> int:
        return self.age_s + max(int(now - self.stored_at), 0)


class AnswerStore:
    """The latest used answers. A key leads to variants, by the values of the request's fields that Vary names.

    `size` is in bytes. `hits` counts the answers that were given again. `purges` counts purges: what was asked before
    one must not be kept behind it.
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
        """The names of fields that tell the variants of this key apart; () where nothing is known of it."""
        return self._vary.get(key, ())

    def get(self, key: bytes, now: float) -> StoredAnswer | None:
        """The answer of this key, if it is there and fresh."""
        found = self._entries.get(key)
        if found is None:
            return None
        if found.expires_at <= now:
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return found

    def put(self, base: bytes, vary: tuple[bytes, ...], key: bytes, answer: StoredAnswer) -> int:
        """Keep an answer under `key`, which was made of `base` and the fields of `vary`. Returns how many had to go."""
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
        """Forget these answers; returns how many they were."""
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
