"""ApprovalHold: requests to some destinations, or calls of some tools, wait until a person has approved or denied them.

A decision applies to one held request: its body is complete before it is shown, and cannot change afterwards. A request
is denied after the timeout, or if a reload removes the filter. A client that disconnects cancels its request. A request
that a reload denies meanwhile stays denied after approval (`WAITED`). A draining process tells clients to retry.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from heapq import merge
from typing import Annotated, Any, Final, Literal

from egressproxy.ai.content.entities import KEYS, Redactor
from egressproxy.errors import Denied, GatewayFault, LimitExceeded, Reason
from egressproxy.filters.base import BodyMode, Filter, FilterContext, FilterType, HeaderResult, Phase
from egressproxy.filters.calls import CallFailed
from egressproxy.filters.limits.rules import ConcurrencyRule
from egressproxy.filters.settings import (
    CalledBackendRef,
    CallPath,
    FieldName,
    FilterConfig,
    HostnamePattern,
    Within,
    duration_of_at_most,
    seconds,
)
from egressproxy.filters.shared_counters import Row
from egressproxy.ir.policy import ExtensionIR, FieldFault
from egressproxy.model.admin_requests import HoldDecision, HoldPage, HoldPlace
from egressproxy.model.caller_identity import ANONYMOUS
from egressproxy.model.exchange import WAITED, Exchange
from egressproxy.model.fields import every_spelling
from egressproxy.model.per_client_quota import identity_of
from egressproxy.net.keyed_counters import KEY_BYTES, SHARED, SHARED_KEYS, OwnCounters
from egressproxy.operators.approval.held_request import UNREADABLE, called_tools, shown_content, shown_request

#: The timeout of the webhook in seconds, and the most calls in flight.
WEBHOOK_S: Final = 10.0
MAX_CALLS: Final = 16
#: Fields with a method that some servers use instead of the request's.
_OVERRIDES: Final = every_spelling(("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"))


@dataclass(frozen=True, slots=True)
class ApprovalHoldConfig(FilterConfig):
    """The requests to hold; an unset field matches all requests at this place."""

    hostnames: Annotated[tuple[HostnamePattern, ...], Within(max_length=1024)] = ()
    """Destinations, exact or `*.suffix`. Default: all."""
    methods: Annotated[tuple[FieldName, ...], Within(max_length=64)] = ()
    """HTTP methods. Default: all. Tunnels are always held."""
    tools: Annotated[tuple[Annotated[str, Within(min_length=1, max_length=256)], ...], Within(max_length=1024)] = ()
    """MCP tools: only requests that call one of these are held, and unreadable requests."""
    timeout: Annotated[str, duration_of_at_most(86_400.0, "a day")] = "5m"
    """The time until a held request is denied."""
    max_waiting: Annotated[int, Within(ge=1, le=10_000)] = 100
    """The most held requests, over all workers; further ones get 429."""
    max_waiting_per_client: Annotated[int, Within(ge=1, le=10_000)] = 4
    """The most held requests of one identity, or of one address if the client is unknown."""
    max_body_bytes: Annotated[int, Within(ge=1, le=16 * 1024 * 1024)] = 256 * 1024
    """The longest body of a held request; a longer one gets 413."""
    shows: Literal["Content", "Digests"] = "Content"
    """The view of query and body for people and the webhook: their beginning without secrets, or digests alone."""
    webhook: CalledBackendRef | None = None
    """The backend that is notified of each held request, with a POST of JSON."""
    webhook_path: CallPath = "/"
    """The path of the notification."""

    def __post_init__(self) -> None:
        if not seconds(self.timeout):
            raise FieldFault("nobody can approve in no time: write 90s, 10m or 1h", "timeout")


#: The decision at the timeout.
_TIME_IS_OVER: Final = HoldDecision("", approves=False, why="not approved in time")
_OUT_OF_SERVICE: Final = HoldDecision(
    "", approves=False, why="the configuration changed while it waited; send it again"
)
_DRAINED: Final = HoldDecision("", approves=False, why="the gateway stops")
_OUTCOMES: Final = {id(_TIME_IS_OVER): "timeout", id(_DRAINED): "drained"}
_NO_LOCK: Final = nullcontext()
_ALL: Final = HoldPage()


class _Hold:
    """A held request. It waits until its `deadline` (monotonic seconds). `decided` resolves to the decision;
    `description` is the text for people and the webhook; `owner` is the client (`identity_of`), "" if unknown.
    """

    __slots__ = ("deadline", "decided", "description", "owner", "since")

    def __init__(self, description: dict[str, Any], owner: str, timeout_s: float) -> None:
        self.description, self.owner = description, owner
        self.since = time.monotonic()
        self.deadline = self.since + timeout_s
        self.decided: asyncio.Future[HoldDecision] = asyncio.get_running_loop().create_future()

    @property
    def position(self) -> HoldPlace:
        """The position in the order of expiry."""
        return self.deadline, self.description["id"]

    def to_dict(self, now: float) -> dict[str, Any]:
        """The request as JSON. `deadline` orders the requests of several workers."""
        waits, left = round(now - self.since, 1), round(self.deadline - now, 1)
        return {**self.description, "waitsSeconds": waits, "leftSeconds": left, "deadline": self.deadline}


class ApprovalHold(Filter):
    """Holds requests without a body at their head, others when their body is complete."""

    waits_for_people = True
    decodes = True

    def __init__(self, context: FilterContext) -> None:
        config: ApprovalHoldConfig = context.config
        self._name, self._source = context.name, context.source
        self._hosts = frozenset(each for each in config.hostnames if not each.startswith("*."))
        self._suffixes = tuple(each[1:] for each in config.hostnames if each.startswith("*."))
        self._methods = frozenset(each.upper().encode() for each in config.methods)
        self._tools = frozenset(map(str.casefold, config.tools))
        self._timeout_s = seconds(config.timeout)
        self._most = config.max_waiting
        row = context.row or Row()
        self._counts, self._mine, self._lock = row.held, row.mine, row.lock or _NO_LOCK
        self._of_client = _share_of_client(context)
        self.max_buffer_bytes = config.max_body_bytes
        self._call = context.calls.get(config.webhook.label) if config.webhook is not None else None
        self._webhook_path = config.webhook_path.encode()
        self._notices = context.notices
        self._redactor = Redactor(KEYS)
        self._shows_content = config.shows == "Content"
        self._waiting: dict[str, _Hold] = {}  # in order of expiry
        self._of_owner: defaultdict[str, dict[str, _Hold]] = defaultdict(dict)
        self._calls: set[asyncio.Task[None]] = set()
        self._is_closed = self._is_draining = False
        self._outcomes = context.meter.counter(
            "egress_approvals", "Requests that have waited for approval, by outcome.", ("outcome",)
        )
        self._gauge = context.meter.gauge("egress_approvals_waiting", "Requests that wait for approval.")

    # --- phases ------------------------------------------------------------------------------------------------------
    def request_headers(self, exchange: Exchange) -> HeaderResult:
        """Hold a request without a body. Raises Denied (403), LimitExceeded (429)."""
        if not self._is_meant(exchange) or (exchange.request.body != 0 and not exchange.is_tunnel):
            return None
        if self._tools and not exchange.is_tunnel and not exchange.request.upgrade:
            return None  # tool calls have a body
        return self._wait(exchange, b"", "")

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        return BodyMode.BUFFER if self._is_meant(exchange) else None

    async def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes:
        """Hold the complete request. Raises Denied (403), LimitExceeded (429)."""
        tool = ""
        if self._tools:
            tool = self._called(data)
            if not tool:
                return data
        await self._wait(exchange, data, tool)
        return data

    def _is_meant(self, exchange: Exchange) -> bool:
        if self._methods and not exchange.is_tunnel and self._methods.isdisjoint(_methods_of(exchange)):
            return False
        if not self._hosts and not self._suffixes:
            return True
        host = exchange.authority.host if exchange.authority is not None else ""
        return host in self._hosts or host.endswith(self._suffixes)

    def _called(self, data: bytes) -> str:
        """The first configured tool that these JSON-RPC messages call; "" for none; "?" if they are unreadable."""
        found = (name for name, _ in called_tools(data) if name == UNREADABLE or name.casefold() in self._tools)
        return next(found, "")

    # --- waiting -----------------------------------------------------------------------------------------------------
    async def _wait(self, exchange: Exchange, body: bytes, tool: str) -> None:
        if self._is_draining:
            raise self._drained("has to wait", "")
        place = self._enter(exchange)
        key = secrets.token_hex(8)
        description = {
            "id": key,
            **shown_request(exchange, body, self._redactor),
            "tool": tool[:256],
            "filter": self._name,
            "from": self._source,
        }
        if self._shows_content:
            description |= shown_content(exchange, body, self._redactor)
        hold = _Hold(
            description, identity_of(exchange) if exchange.identity.name != ANONYMOUS.name else "", self._timeout_s
        )
        self._waiting[key] = self._of_owner[hold.owner][key] = hold
        self._gauge.set(len(self._waiting))
        self._notices.normal("ApprovalRequested", "requests wait for approval: `egressproxy holds list`")
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._decide, key, _TIME_IS_OVER)
        outcome = "gone"
        try:
            self._tell(hold)
            decision = await hold.decided
            outcome = _OUTCOMES.get(id(decision), "approved" if decision.approves else "denied")
        finally:
            timer.cancel()
            self._leave(place)
            self._forget(key)
            self._gauge.set(len(self._waiting))
            self._outcomes.add(1, outcome)
        waited_s = round(time.monotonic() - hold.since, 3)
        by, why = decision.by or "-", decision.why
        exchange.add_log_fields(
            {"approval": {"id": key, "outcome": outcome, "by": by, "why": why, "waited_s": waited_s}}
        )
        if decision is _DRAINED:
            raise self._drained("waited", f"hold {key}")
        if not decision.approves:
            message = f"this request was not approved: {why}" if why else "this request was not approved"
            raise Denied(Reason.APPROVAL_DENIED, message, rule=self._source, detail=f"hold {key}")
        exchange.keep(WAITED, True)
        note = f"{decision.by or 'somebody'} has approved a request to {exchange.authority}"
        self._notices.normal("ApprovalGranted", f"{note}: {why}" if why else note)

    def _enter(self, exchange: Exchange) -> int:
        """Count a request to hold. Returns the argument of `_leave`. Raises LimitExceeded (429)."""
        place = -1
        if not self._is_closed:
            with self._lock:
                is_free = sum(self._counts) < self._most
                self._counts[self._mine] += is_free
            if is_free:
                place = self._of_client.enter(exchange, "")
                self._counts[self._mine] -= place < 0
        if place < 0:
            self._outcomes.add(1, "refused")
            message = "too many requests wait for approval"
            raise LimitExceeded(Reason.APPROVAL_LIMIT, message, status=429, rule=self._source, retry_after_s=30)
        return place

    def _leave(self, place: int) -> None:
        self._counts[self._mine] -= 1
        self._of_client.leave(place)

    def _drained(self, waits: str, detail: str) -> GatewayFault:
        message = f"the gateway stops, and this request, which {waits} for approval, was not sent: ask again"
        return GatewayFault(
            Reason.DRAINED, message, status=503, rule=self._source, retry_after_s=1, close=True, detail=detail
        )

    def _decide(self, key: str, decision: HoldDecision) -> bool:
        hold = self._waiting.get(key)
        if hold is None or hold.decided.done():
            return False
        hold.decided.set_result(decision)
        self._forget(key)
        return True

    def _forget(self, key: str) -> None:
        hold = self._waiting.pop(key, None)
        if hold is not None:
            of_owner = self._of_owner[hold.owner]
            del of_owner[key]
            if not of_owner:
                del self._of_owner[hold.owner]

    def _tell(self, hold: _Hold) -> None:
        """Call the webhook in the background. The request is held even if the call fails."""
        if self._call is None:
            return
        if len(self._calls) >= MAX_CALLS:
            self._webhook_failed(f"{MAX_CALLS} calls of the webhook are under way")
            return
        task = asyncio.get_running_loop().create_task(self._call_webhook(hold.description))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call_webhook(self, description: dict[str, Any]) -> None:
        assert self._call is not None
        message = json.dumps({"type": "egress.approval.requested", **description}).encode()
        fields = ((b"content-type", b"application/json"),)
        try:
            answer = await self._call.request(b"POST", self._webhook_path, fields, message, timeout_s=WEBHOOK_S)
        except CallFailed as error:
            self._webhook_failed(error.reason.value)
            return
        if not 200 <= answer.status < 300:
            self._webhook_failed(f"status {answer.status}")

    def _webhook_failed(self, why: str) -> None:
        remedy = "the request waits all the same: `egressproxy holds list`"
        self._notices.warning("ApprovalWebhookFailed", f"who is to approve was not told: {why}; {remedy}")

    # --- from outside ------------------------------------------------------------------------------------------------
    def decide(self, decision: HoldDecision) -> bool:
        """Apply a decision; returns whether its request is held here."""
        return self._decide(decision.id, decision)

    def waiting(self, page: HoldPage) -> tuple[int, list[_Hold], int]:
        """The number of held requests; those of this page, soonest expiry first; and the number after this page."""
        held = list((self._of_owner.get(page.identity, {}) if page.identity else self._waiting).values())
        begin = bisect_right(held, page.after, key=lambda hold: hold.position)
        shown = held[begin : begin + page.limit]
        return len(held), shown, len(held) - begin - len(shown)

    def approval(self, exchange: Exchange) -> str:
        if not self._is_meant(exchange):
            return ""
        what = "calls of some tools" if self._tools and not exchange.is_tunnel else "it"
        return f"{what} wait{'s' if what == 'it' else ''} until a person approves, {self._timeout_s:g} s at most"

    def drain(self) -> None:
        self._is_draining = True
        for key in list(self._waiting):
            self._decide(key, _DRAINED)

    def close(self) -> None:
        """Deny all held requests, which can no longer be approved."""
        self._is_closed = True
        for key in list(self._waiting):
            self._decide(key, _OUT_OF_SERVICE)
        for task in self._calls:
            task.cancel()


def _methods_of(exchange: Exchange) -> set[bytes]:
    """The possible methods of this request for servers, in upper case: Django reads `post` as POST."""
    overrides = [line.partition(b":")[2] for line in _OVERRIDES.findall(exchange.request.fields.block)]
    return {each.strip().upper() for each in (exchange.method, *overrides)}


def holds(
    filters: Iterable[tuple[ExtensionIR, Filter]], decision: HoldDecision | None, page: HoldPage = _ALL
) -> dict[str, Any]:
    """The held requests of these filters after this decision: the `holds` of this page, and the numbers of requests
    `waiting`, `behind` the page, and `decided` (0 or 1).
    """
    found = [each for _, each in filters if isinstance(each, ApprovalHold)]
    decided = sum(each.decide(decision) for each in found) if decision is not None else 0
    states = [each.waiting(page) for each in found]
    every = list(merge(*(shown for _, shown, _ in states), key=lambda hold: hold.position))
    now = time.monotonic()
    return {
        "holds": [hold.to_dict(now) for hold in every[: page.limit]],
        "waiting": sum(count for count, _, _ in states),
        "behind": sum(behind for _, _, behind in states) + len(every[page.limit :]),
        "decided": decided,
    }


def _share_of_client(context: FilterContext) -> ConcurrencyRule:
    """The most held requests of one client, over all workers."""
    known_by = repr((context.source, context.scope, context.name, "ApprovalHold")).encode()
    table = (context.keyed or OwnCounters().keyed)(SHARED, SHARED_KEYS)
    table = table.of_limit(blake2b(known_by, digest_size=KEY_BYTES).digest())
    most = context.config.max_waiting_per_client
    return ConcurrencyRule(
        context.name, most, lambda exchange, _: identity_of(exchange).encode(), table, "requests that wait"
    )


APPROVAL_HOLD: Final = FilterType(
    name="egressproxy.io/ApprovalHold:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    config_model=ApprovalHoldConfig,
    build=ApprovalHold,
    also=frozenset((Phase.REQUEST_BODY,)),
    is_shared=True,
    summary="Has requests, or calls of tools, wait until a person has approved them.",
)
