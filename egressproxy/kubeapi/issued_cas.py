"""`/intercept/cas`: the CAs of interception that are made through the admin API.

Each of them is a Secret, which the queue of writes puts into service, in every worker, before the answer. The private
key is never answered.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from aiohttp import web

from egressproxy.admin.status import ApiError, bad_request, json_response
from egressproxy.admin.write_access import WriteAccess
from egressproxy.kubeapi.service import ApiService
from egressproxy.kubeapi.write.write import Verb, Write, WriteRefused
from egressproxy.kubeapi.write.write_queue import WriteQueue
from egressproxy.model.encoding import time_span

PATH: Final = "/intercept/cas"
#: Writes as the API's own, in the log.
MANAGER: Final = "egressproxy-ca"
#: Callers that wait for the answer.
MAX_WAITING: Final = 16
#: Of a parameter.
MAX_TEXT: Final = 2048
_SUBJECT: Final = ("namespace", "serviceAccount", "group", "identity")
_KNOWN: Final = frozenset({"policy", "new", "revoke", "forget", "lifetime", "permit", "claim", *_SUBJECT})
_VERBS: Final = {"new": "new", "revoke": "withdraw", "forget": "forget"}
#: As `kubeapi.write.issuing.IssuingQuery`, which other processes have.
_Query = tuple[str, str, str, str, float, tuple[str, ...]]


class IssuedCas:
    """Makes, lists and withdraws CAs: one request at a time, since each depends on those that are there."""

    def __init__(self, service: ApiService, writes: WriteQueue) -> None:
        self._service = service
        self._writes = writes
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, request: web.BaseRequest, access: WriteAccess) -> web.Response:
        """Raises ApiError."""
        await access.check_marked(request, "a CA")
        query = read_query(request)
        if self._waiting >= MAX_WAITING:
            raise ApiError(429, "TooManyRequests", f"{MAX_WAITING} others are waiting; try later", retry_after_s=1)
        self._waiting += 1
        done = asyncio.ensure_future(self._carry_out(query))
        done.add_done_callback(self._over)
        try:
            # Not this task's: what is under way when a client goes away is done all the same.
            return json_response(200, await asyncio.shield(done))
        except WriteRefused as refused:
            raise ApiError(refused.code, refused.reason, str(refused)) from None

    def _over(self, done: asyncio.Future[dict[str, Any]]) -> None:
        self._waiting -= 1
        if not done.cancelled():
            done.exception()  # the client may have left

    async def _carry_out(self, query: _Query) -> dict[str, Any]:
        """Raises WriteRefused."""
        async with self._turn:
            found = await self._service.ask_issuing(query)
            if "refused" in found:
                raise WriteRefused(*found["refused"])
            shown: dict[str, Any] = found["shown"]
            if "write" in found:
                verb, namespace, name, manifest = found["write"]
                body = json.dumps(manifest).encode() if manifest is not None else b""
                write = Write(Verb(verb), "", "v1", "Secret", "secrets", namespace, name, body, MANAGER)
                await self._writes.put(write)
            return shown


def read_query(request: web.BaseRequest) -> _Query:
    """What the parameters of a request ask for. Raises ApiError (400)."""
    query = request.query
    unknown = sorted(query.keys() - _KNOWN)
    if unknown:
        raise bad_request(f"not supported: {', '.join(unknown)[:200]}")
    if any(len(value) > MAX_TEXT for value in query.values()):
        raise bad_request(f"a parameter has more than {MAX_TEXT} characters")
    if any(len(query.getall(name)) > 1 for name in query.keys() - {"permit"}):
        raise bad_request("only permit may be given again")
    policy = query.get("policy", "")
    if request.method in ("GET", "HEAD"):
        if query.keys() - {"policy"}:
            raise bad_request("a list takes policy alone")
        return "list", policy, "", "{}", 0.0, ()
    chosen = [name for name in _VERBS if name in query]
    if len(chosen) != 1 or not policy:
        raise bad_request("write policy=NAMESPACE/NAME, and one of new, revoke and forget with the name of a CA")
    subject: dict[str, object] = {name: query[name] for name in _SUBJECT if name in query}
    if "claim" in query:
        name, _, value = query["claim"].partition("=")
        subject["claim"] = {"name": name, "value": value}
    if chosen != ["new"] and (subject or query.keys() & {"lifetime", "permit"}):
        raise bad_request(f"{chosen[0]} takes policy alone")
    lifetime_s = time_span(query["lifetime"]) if "lifetime" in query else 0.0
    if lifetime_s is None:
        raise bad_request("write the lifetime as 30d, 12h or 90m")
    permitted = tuple(query.getall("permit", []))
    return _VERBS[chosen[0]], policy, query[chosen[0]], json.dumps(subject), lifetime_s, permitted
