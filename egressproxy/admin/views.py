"""What an admin page and commands show: denials with the change to make, history, configurations, limits, certificates
and backends, over all workers. All of it is read when it is asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import chain
from time import monotonic, time
from typing import Any, Final

from egressproxy.admin.admin_state import AdminState
from egressproxy.model.admin_requests import read_number, read_parameters
from egressproxy.operators.explain import merging

#: Minutes of /denials.
MINUTES: Final = 60
MAX_MINUTES: Final = 1440
#: For how long a proposed change is not made anew, in seconds, and how many are remembered. Files may change meanwhile.
KEPT_S: Final = 60.0
MAX_KEPT: Final = 400
#: How much longer than changes are worked out no further ones are: reloads wait for the process that works them out.
PAUSE_FACTOR: Final = 4.0
#: The reason of denials that one more entry of a policy may end.
_CHANGEABLE: Final = "destination_not_allowed"

_Query = Mapping[str, str]


class Views:
    """Answers to the paths of `introspection.VIEWS`. Belongs to the event loop."""

    def __init__(self, state: AdminState, readers: Callable[[], int] = lambda: 0) -> None:
        """`readers`: how many read /live."""
        self._state = state
        self._readers = readers
        self._proposed: dict[str, dict[str, Any] | None] = {}  # by what was denied
        self._proposed_for = (-1, 0.0)  # the configuration, and since when
        self._proposing: asyncio.Task[None] | None = None
        self._next_at = 0.0

    async def answer(self, path: str, pairs: _Query) -> Mapping[str, Any]:
        """The answer of the method by the name of the path. Raises ValueError, a sentence."""
        query = read_parameters(pairs.items(), ("minutes", "namespace") if path == "/denials" else ())
        found: Mapping[str, Any] = await getattr(self, f"_{path.removeprefix('/')}")(query)
        return found

    async def _history(self, _query: _Query) -> Mapping[str, Any]:
        return {"minutes": await self._state.history()}

    async def _configurations(self, _query: _Query) -> Mapping[str, Any]:
        return {"configurations": self._state.configurations()}

    async def _summary(self, _query: _Query) -> Mapping[str, Any]:
        connections = sum(map(int, await self._state.ask_some("open_connections")))
        return {**await self._state.summary(), "open_connections": connections, "live_readers": self._readers()}

    async def _limits(self, _query: _Query) -> Mapping[str, Any]:
        found = merging.limits(chain.from_iterable(await self._shown("limits")))
        return {"limits": [{name: each[name] for name in each if name != "key"} for each in found]}

    async def _certificates(self, _query: _Query) -> Mapping[str, Any]:
        now = time()
        certificates = [
            {
                "use": each.use.value, "kind": each.kind, "namespace": each.namespace, "name": each.name,
                "not_before": each.not_before_s, "not_after": each.not_after_s, "state": each.state(now).value,
                "why": each.sentence(now),
            }
            for each in sorted(self._state.validities(), key=lambda each: each.not_after_s)
        ]  # fmt: skip
        used = {json.dumps(each): each for each in chain.from_iterable(await self._shown("credentials"))}
        return {"certificates": certificates, "credentials": list(used.values())}

    async def _backends(self, _query: _Query) -> Mapping[str, Any]:
        return {"backends": merging.backends(await self._shown("backends"))}

    async def _shown(self, *asked: object) -> list[Any]:
        """The answers of all workers."""
        return [json.loads(each) for each in await self._state.ask_some("shown", *asked)]

    # --- denials ---------------------------------------------------------------------------------------------------
    async def _denials(self, query: _Query) -> Mapping[str, Any]:
        since_s = time() - 60.0 * read_number(query, "minutes", MINUTES, MAX_MINUTES)
        found = await self._shown("denials", since_s, query.get("namespace", ""))
        groups = merging.grouped(group for each in found for group in each["denials"])
        keys = [_asked(group) for group in groups]
        await self._propose(dict.fromkeys(filter(None, keys)))
        for each, key in zip(groups, keys, strict=True):
            del each["decision"]
            each["change"] = self._proposed.get(key)
        since_s = max([since_s, *(each["since"] for each in found)])
        return {"since": since_s, "configuration": self._proposed_for[0], "denials": groups}

    async def _propose(self, asked: Mapping[str, None]) -> None:
        """Have changes made for these, unless that is too early."""
        generation, (number, since) = self._state.generation(), self._proposed_for
        if number != generation or monotonic() - since > KEPT_S or len(self._proposed) > MAX_KEPT:
            self._proposed.clear()
            self._proposed_for = (generation, monotonic())
        unknown = [each for each in asked if each not in self._proposed]
        if unknown and self._proposing is None and monotonic() >= self._next_at:
            self._proposing = asyncio.create_task(self._make(unknown))
        if unknown and self._proposing is not None:
            await asyncio.wait([self._proposing])  # which goes on if who asked leaves

    async def _make(self, asked: list[str]) -> None:
        began, generation = monotonic(), self._state.generation()
        try:
            changes = await self._state.proposals(f"[{','.join(asked)}]".encode())
            if self._state.generation() == generation:  # else a change may take back what has come between
                self._proposed |= zip(asked, changes, strict=False)
        finally:
            self._next_at = monotonic() + PAUSE_FACTOR * (monotonic() - began)
            self._proposing = None


def _asked(group: Mapping[str, Any]) -> str:
    """The policy and the decision for which a change is proposed, as JSON; "" for none."""
    kind, _, policy = group["rule"].partition(" ")
    if group["reason"] != _CHANGEABLE or kind != "EgressPolicy" or group["allowed_now"]:
        return ""
    return json.dumps((policy, {**group["decision"], "time": 0.0, "request_id": ""}))
