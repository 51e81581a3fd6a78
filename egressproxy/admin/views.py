"""What an admin page and commands show: denials with the change to make, history, configurations, limits, certificates
and backends, over all workers. All of it is read when it is asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import chain
from time import monotonic, time
from typing import Any, Final, Protocol

from aiohttp import web

from egressproxy.admin.status import bad_request
from egressproxy.model.certificate import Validity

#: Minutes of /denials.
MINUTES: Final = 60
MAX_MINUTES: Final = 1440
#: The most groups of denials in one answer, as of each worker.
MAX_DENIALS: Final = 200
_PARAMETERS: Final = {"minutes", "namespace"}
#: For how long a proposed change is not made anew, in seconds, and how many are remembered. Files may change meanwhile.
KEPT_S: Final = 60.0
#: How much longer than changes are worked out no further ones are.
PAUSE_FACTOR: Final = 4.0
MAX_KEPT: Final = 400
#: The reason of denials that one more entry of a policy may end.
_CHANGEABLE: Final = "destination_not_allowed"
#: What groups of several workers have in common if they are one.
_GROUP: Final = (
    "method", "destination", "gateway", "listener", "namespace", "service_account", "identity", "reason", "rule",
)  # fmt: skip

MAX_LIMITS: Final = 500
_SUMMED: Final = ("active", "idle", "waiting", "requests", "failures")
#: States of endpoints, the worst last.
_WORST: Final = ("not watched", "healthy", "trial", "ejected", "unhealthy")


class ViewState(Protocol):
    """What is asked: `AdminState`."""

    @property
    def generation(self) -> int: ...
    async def ask_some(self, name: str, *arguments: object) -> Sequence[bytes]: ...
    async def proposals(self, asked: bytes, count: int) -> Sequence[dict[str, Any] | None]: ...
    async def summary(self) -> dict[str, Any]: ...
    @property
    def validities(self) -> Sequence[Validity]: ...
    @property
    def configurations(self) -> list[dict[str, Any]]: ...
    async def history(self) -> list[dict[str, Any]]: ...


class Views:
    """Answers to the paths of `introspection.VIEWS`. Belongs to the event loop."""

    def __init__(self, state: ViewState, readers: Callable[[], int] = lambda: 0) -> None:
        """`readers`: how many read /live."""
        self._state = state
        self._readers = readers
        self._answers: dict[str, Callable[[Mapping[str, str]], Awaitable[Mapping[str, Any]]]] = {
            "/denials": self._denials,
            "/history": self._history,
            "/configurations": self._configurations,
            "/summary": self._summary,
            "/limits": self._limits,
            "/certificates": self._certificates,
            "/backends": self._backends,
        }
        self._proposed: dict[str, dict[str, Any] | None] = {}  # by what was denied
        self._proposed_for = (-1, 0.0)  # the configuration, and since when
        self._proposing = asyncio.Lock()
        self._next_at = 0.0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """The response. Raises ApiError."""
        unknown = set(request.query) - (_PARAMETERS if request.path == "/denials" else set())
        if unknown:
            raise bad_request(f"unknown parameter {min(unknown)!r}; /denials has minutes and namespace")
        found = await self._answers[request.path](request.query)
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def _history(self, _query: Mapping[str, str]) -> dict[str, Any]:
        return {"minutes": await self._state.history()}

    async def _configurations(self, _query: Mapping[str, str]) -> dict[str, Any]:
        return {"configurations": self._state.configurations}

    async def _summary(self, _query: Mapping[str, str]) -> dict[str, Any]:
        counted = await self._state.ask_some("open_connections")
        found = await self._state.summary()
        return {**found, "open_connections": sum(map(int, counted)), "live_readers": self._readers()}

    async def _limits(self, _query: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for each in chain.from_iterable(await self._shown("limits")):  # workers share what is counted
            found.setdefault(each.pop("key"), each)
        every = sorted(found.values(), key=lambda each: each["left"] / each["limit"] if each["limit"] else 0.0)
        return {"limits": every[:MAX_LIMITS]}

    async def _certificates(self, _query: Mapping[str, str]) -> dict[str, Any]:
        now = time()
        certificates = [
            {
                "use": each.use.value, "kind": each.kind, "namespace": each.namespace, "name": each.name,
                "not_before": each.not_before_s, "not_after": each.not_after_s, "state": each.state(now).value,
                "why": each.sentence(now),
            }
            for each in sorted(self._state.validities, key=lambda each: each.not_after_s)
        ]  # fmt: skip
        used = {json.dumps(each): each for each in chain.from_iterable(await self._shown("credentials"))}
        return {"certificates": certificates, "credentials": list(used.values())}

    async def _backends(self, _query: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {}
        for each in chain.from_iterable(await self._shown("backends")):
            known = found.setdefault(each["name"], {**each, **dict.fromkeys(_SUMMED, 0), "hosts": {}})
            for name in _SUMMED:
                known[name] += each[name]
            known["limits_reached"] = sorted({*known["limits_reached"], *each["limits_reached"]})
            for host in each["hosts"]:
                mine = known["hosts"].setdefault(host["address"], {**host, "workers": 0})
                workers = mine["workers"] + 1
                worst = host if _WORST.index(host["state"]) > _WORST.index(mine["state"]) else mine
                known["hosts"][host["address"]] = {**worst, "workers": workers}
        return {"backends": [{**found[name], "hosts": list(found[name]["hosts"].values())} for name in sorted(found)]}

    async def _shown(self, what: str) -> list[list[dict[str, Any]]]:
        """The answers of all workers."""
        return [json.loads(each) for each in await self._state.ask_some("shown", what)]

    # --- denials ---------------------------------------------------------------------------------------------------
    async def _denials(self, query: Mapping[str, str]) -> dict[str, Any]:
        minutes = query.get("minutes", str(MINUTES))
        if not (minutes.isascii() and minutes.isdecimal() and 1 <= int(minutes[:5]) <= MAX_MINUTES):
            raise bad_request(f"minutes {minutes!r} is no number from 1 to {MAX_MINUTES}")
        since_s = time() - 60.0 * int(minutes)
        found = [
            json.loads(each) for each in await self._state.ask_some("denials", since_s, query.get("namespace", ""))
        ]
        groups = merged(group for each in found for group in each["denials"])
        async with self._proposing:
            await self._propose(groups)
        for each in groups:
            del each["decision"]
        since_s = max([since_s, *(each["since"] for each in found)])
        return {"since": since_s, "configuration": self._proposed_for[0], "denials": groups}

    async def _propose(self, groups: Sequence[dict[str, Any]]) -> None:
        """Add to each group its `change`."""
        number, since = self._proposed_for
        if number != self._state.generation or monotonic() - since > KEPT_S or len(self._proposed) > MAX_KEPT:
            self._proposed.clear()
            self._proposed_for = (self._state.generation, monotonic())
        asked: dict[str, tuple[str, Any]] = {}
        for each in groups:
            kind, _, policy = each["rule"].partition(" ")
            if each["reason"] == _CHANGEABLE and kind == "EgressPolicy" and not each["allowed_now"]:
                decision = {**each["decision"], "time": 0.0, "request_id": ""}
                each["asked"] = json.dumps((policy, decision))
                if each["asked"] not in self._proposed:
                    asked[each["asked"]] = (policy, decision)
        began = monotonic()
        if asked and began >= self._next_at:  # reloads wait for the process that works these out
            changes = await self._state.proposals(json.dumps(list(asked.values())).encode(), len(asked))
            self._proposed |= zip(asked, changes, strict=True)
            self._next_at = monotonic() + PAUSE_FACTOR * (monotonic() - began)
        for each in groups:
            each["change"] = self._proposed.get(each.pop("asked", ""))


def merged(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups of all workers, those of the same client and destination as one; the most frequent first."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for each in groups:
        key = tuple(each[name] for name in _GROUP) + ((each["client"],) if each["identity"] == "-" else ())
        known = found.get(key)
        if known is None:
            found[key] = each
            continue
        later = each if each["last"] > known["last"] else known
        count, first = known["count"] + each["count"], min(known["first"], each["first"])
        found[key] = {**later, "count": count, "first": first}
    return sorted(found.values(), key=lambda each: (-each["count"], -each["last"]))[:MAX_DENIALS]
