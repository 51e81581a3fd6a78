"""SharedTrials: what the gateways of a cluster tell each other of policies on trial, in the status of these policies.

The gateway that writes status shows its own counts. The others add their last flip, so that none of them is missed, and
all go on from the counts that were there before them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from egressproxy.kubernetes.api_client import MERGE_PATCH, UNREACHABLE, ApiClient, ApiError
from egressproxy.kubernetes.object_store import ObjectStore
from egressproxy.model.encoding import rfc3339
from egressproxy.model.published_object import Key

_MARK: Final = b'"trial"'
#: For a gateway to go on from earlier counts. Until then status keeps them.
JOIN_S: Final = 60.0
#: A flip is added at most so often in the whole cluster: many gateways have it at once. And the time for writes.
TELL_S: Final = 60.0
WRITE_S: Final = 5.0
#: Clocks of gateways differ by less. A flip from further ahead would hide those of now.
AHEAD_S: Final = 86_400.0
_FLIP: Final = ("lastFlip", "lastRequest")


class SharedTrials:
    """`lease_s` is `StatusLeases.left_s`. Belongs to the event loop."""

    def __init__(
        self, client: ApiClient, store: ObjectStore, lease_s: Callable[[Key | None], float],
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._client = client
        self._store = store
        self._lease_s = lease_s
        self._clock = clock
        self._wall = wall
        self._begun: dict[tuple[Key, str], float] = {}  # policy, digest -> when it was shown first
        self._ours: dict[Key, dict[str, Any]] = {}
        self._next_at = 0.0  # of writes; who writes status reports a right that lacks

    def show(self, statuses: Mapping[Key, bytes]) -> None:
        """Share the trials of these statuses (JSON, by key)."""
        found = ((key, _trial(status)) for key, status in statuses.items() if key[1] == "EgressPolicy")
        self._ours = {key: trial for key, trial in found if trial}
        begun = {(key, trial["digest"]): self._clock() for key, trial in self._ours.items()}
        self._begun = {each: self._begun.get(each, now) for each, now in begun.items()}

    def left_s(self, key: Key | None) -> float:
        """As `lease_s`; 0 where the status has earlier counts, which this gateway has not joined to its own yet."""
        if key in self._ours and key is not None:
            ours, held = self._ours[key], self._held(key)
            is_behind = held.get("digest") == ours["digest"] and held.get("since", "") < ours["since"]
            if is_behind and self._clock() - self._begun[key, ours["digest"]] < JOIN_S:
                return 0.0
        return self._lease_s(key)

    def told(self) -> tuple[tuple[str, bytes], ...]:
        """`Figures.trials`."""
        return tuple((f"{key[2]}/{key[3]}", json.dumps(self._held(key)).encode()) for key in self._ours)

    def completed(self, key: Key, status: bytes) -> bytes:
        """Our status (JSON) with the last flip of another gateway."""
        ours = self._ours.get(key)
        if ours is None or not _has_later_flip(held := self._held(key), ours):
            return status
        made = json.loads(status)
        made["trial"] |= _flip(held)
        return json.dumps(made).encode()

    async def write(self) -> None:
        """Add our last flips where another gateway writes the status and does not know them."""
        recent = rfc3339(self._wall() - TELL_S)
        if self._clock() < self._next_at:
            return
        for key, trial in tuple(self._ours.items()):
            known, held = self._held(key), self._store.find(key)
            is_due = known.get("lastFlip", "") < recent and _has_later_flip(trial, known)
            if held is None or not is_due or self._lease_s(key):
                continue
            metadata = {"resourceVersion": held.resource_version}  # the trial may have ended since
            body = {"metadata": metadata, "status": {"trial": _flip(trial)}}
            path = f"/apis/{key[0]}/v1alpha1/namespaces/{key[2]}/egresspolicies/{key[3]}/status"
            try:
                async with asyncio.timeout(WRITE_S):
                    await self._client.send("PATCH", path, None, body, MERGE_PATCH)
            except ApiError as error:
                if not error.is_conflict:
                    self._next_at = self._clock() + TELL_S
            except UNREACHABLE:
                return

    def _held(self, key: Key) -> dict[str, Any]:
        held = self._store.find(key)
        trial = _trial(held.status) if held is not None else {}
        if trial.get("lastFlip", "") > rfc3339(self._wall() + AHEAD_S):
            return {name: value for name, value in trial.items() if name not in _FLIP}
        return trial


async def applied(client: ApiClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The object after a server-side apply of its status. Raises as `ApiClient.send`.

    Flips that another gateway has added are its fields, and would stay after the trial.
    """
    made, trial = await client.apply(path, body), body["status"].get("trial")
    if more := (made.get("status") or {}).get("trial", {}).keys() - (trial or {}).keys():
        rest = None if trial is None else dict.fromkeys(more)
        made = await client.send("PATCH", path, None, {"status": {"trial": rest}}, MERGE_PATCH)
    return made


def _trial(status: bytes) -> dict[str, Any]:
    found = json.loads(status).get("trial") if _MARK in status else None
    return found if isinstance(found, dict) else {}


def _flip(trial: Mapping[str, Any]) -> dict[str, str]:
    return {name: trial.get(name, "") for name in _FLIP}


def _has_later_flip(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the first has a flip that the second, which is of the same trial, does not have. Times are in UTC."""
    known = max(other.get("lastFlip", ""), other.get("since", ""))
    return bool(other) and one.get("digest") == other.get("digest") and one.get("lastFlip", "") > known
