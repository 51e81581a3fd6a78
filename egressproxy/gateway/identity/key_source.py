"""KeySource: the keys of an issuer that are fetched from its URL (`jwksURI`), over the gateway's own calls: the address
is checked, and TLS verified.

Fetched when a token is there to be verified, so that nothing runs while nobody asks: again after REFRESH_S, meanwhile
those from before hold, up to MAX_AGE_S where the issuer does not answer; at once for a key that is not known, but never
more often than every PAUSE_S. Sources: RFC 7517 section 5, OpenID Connect Core section 10.1.1 (rotation).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from egressproxy.filters.calls import CallFailed, FilterCall

if TYPE_CHECKING:  # for annotations: it brings what verifies tokens, which few workers need
    from egressproxy.identity.key_sets import KeySet

log = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
MAX_AGE_S: Final = 24 * 3600.0
PAUSE_S: Final = 10.0
TIMEOUT_S: Final = 5.0


@dataclass(slots=True, eq=False, repr=False)
class KeySource:
    """`keys` gets what was fetched, for all to read. `read` makes it of an answer; `withdraw`: a key holds no more."""

    _issuer: str
    _call: FilterCall
    _path: str
    _keys: dict[str, KeySet]
    _read: Callable[[bytes], KeySet]
    _withdraw: Callable[[], None]
    _task: asyncio.Task[None] | None = None
    _not_before: float = 0.0
    _fetched_at: float = -inf
    fetches: int = 0  # that have ended, well or not

    def touch(self) -> None:
        """A token is to be verified: see to it that the keys are no older than they may be."""
        age = monotonic() - self._fetched_at
        if age >= MAX_AGE_S and self._keys.pop(self._issuer, None) is not None:
            log.error("the keys of %s are too old to be believed: its tokens are refused", self._issuer)
            self._withdraw()
        if age >= REFRESH_S:
            self._begin()

    async def refreshed(self) -> None:
        """As `touch`, and wait for the keys that it has fetched."""
        self.touch()
        if self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def renewed(self, since: int) -> bool:
        """Have the keys fetched, unless more than `since` fetches have ended. False: they were fetched a moment ago."""
        if self.fetches > since:
            return True
        task = self._begin()
        if task is None:
            return False
        await asyncio.shield(task)  # who waits may leave: others wait, too
        return True

    def _begin(self) -> asyncio.Task[None] | None:
        if self._task is not None and not self._task.done():
            return self._task
        if monotonic() < self._not_before:
            return None
        self._not_before = monotonic() + PAUSE_S
        self._task = asyncio.get_running_loop().create_task(self._fetch())
        return self._task

    async def _fetch(self) -> None:
        try:
            answer = await self._call.request(
                b"GET", self._path.encode(), [(b"accept", b"application/json")], timeout_s=TIMEOUT_S
            )
            if answer.status != 200:
                raise ValueError(f"the answer is {answer.status}")
            found = self._read(answer.body)
        except (CallFailed, ValueError) as error:  # of a key set that cannot be used, too
            log.warning("the keys of %s cannot be fetched: %s", self._issuer, error)
        except Exception as error:  # what a hostile key brings about in a library is no error of ours
            log.warning("the keys of %s cannot be fetched: %s", self._issuer, type(error).__name__)
        else:
            self._take(found)
        finally:
            self.fetches += 1

    def _take(self, found: KeySet) -> None:
        if not len(found):
            log.error("%s lists no key for signatures: its tokens are refused", self._issuer)
        before = self._keys.get(self._issuer)
        if found.unusable and (before is None or before.unusable != found.unusable):
            log.warning(
                "keys of %s cannot be used, and tokens by them are refused: %s", self._issuer, "; ".join(found.unusable)
            )
        self._keys[self._issuer] = found
        self._fetched_at = monotonic()
        if before is not None and not before.fingerprints <= found.fingerprints:
            self._withdraw()
