"""Accounting: the number of each exchange and tunnel at its start; its metrics and its line of the log at its end."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from time import monotonic, time

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.chain import finish
from egressproxy.filters.configured_filter import ConfiguredFilter
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.error_responses import has_event, is_denial
from egressproxy.gateway.exchange.pipeline import Pipeline
from egressproxy.gateway.exchange.recent_decisions import KEPT, MAX_PATH, REFUSAL, Denials, Remembered
from egressproxy.gateway.overload.request_gate import RequestGate
from egressproxy.gateway.route import Route
from egressproxy.gateway.snapshot import ActiveListener
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.forwarded_identity import SeenValues
from egressproxy.model.message import RequestHead
from egressproxy.net.timers import TimerWheel
from egressproxy.telemetry.access_log import AccessLog
from egressproxy.telemetry.metrics import Metrics


class Accounting:
    """One per process."""

    def __init__(self, wheel: TimerWheel, access_log: AccessLog, pseudonym: bytes, metrics: Metrics) -> None:
        self.wheel = wheel
        self.access_log = access_log
        self.pseudonym = pseudonym  # our name in Via (RFC 9110 section 7.6.3)
        self.metrics = metrics
        self.notices = metrics.notices
        self.recent: Remembered = deque(maxlen=KEPT)  # the latest decisions
        self.denials: Denials = deque(maxlen=KEPT)  # the latest of them that denied
        self.gate: RequestGate | None = None  # says which requests are admitted, where not all can be
        self.is_cutting = False  # the time of the drain is over: what ends now was ended by us
        self.seen = SeenValues()  # what other gateways have said of their clients
        self._id_prefix = f"{secrets.token_hex(4)}-"
        self._number = 0

    def new_exchange(
        self, client: str, listener: ActiveListener, identity: CallerIdentity, head: RequestHead | None = None
    ) -> Exchange:
        """An exchange of this client (`address:port`) that begins now, with a request id of its own. `head`: as it came
        from the client, if this is one of HTTP.
        """
        self._number += 1
        made = Exchange(
            client, listener.gateway, listener.name, monotonic(), identity, time(),
            self._id_prefix + hex(self._number)[2:], listener.series,
        )  # fmt: skip
        if listener.tracer is not None:
            listener.tracer.start(made, head)
        return made

    def record_error(self, exchange: Exchange, pipeline: Pipeline, error: GatewayError) -> None:
        """Note in the exchange what ended it. An Event tells operators of what they can mend."""
        exchange.reason = error.reason
        exchange.rule = error.rule
        exchange.detail = error.detail
        if error.ech_outer_name is not None:
            self.note_ech(exchange, error.ech_outer_name)
        exchange.denied = is_denial(error)
        if exchange.denied:
            exchange.keep(REFUSAL, (error.message, error.remedy) if error.is_quotable else ("", ""))
        if not error.is_listed_elsewhere and (exchange.denied or has_event(error)):
            kind = "" if pipeline.route is None else pipeline.route.kind
            self.notices.refused(exchange.series, error, kind, exchange.identity)
        if error.policy != "-":
            exchange.series = self.metrics.denied_by(exchange.series, error.policy, error.entry)

    def note_ech(self, exchange: Exchange, outer_name: str) -> None:
        """Log and count a ClientHello with ECH (RFC 9849): what it names may not be whom it is for."""
        exchange.detail = f"ClientHello with ECH, outer name {outer_name}"
        self.metrics.ech_hellos.count(exchange.gateway, exchange.listener, outer_name)

    def account(self, exchange: Exchange, pipeline: Pipeline) -> None:
        """Release what the exchange holds, count it and log it."""
        if pipeline.upstream is not None:
            pipeline.release(reusable=False)
        if pipeline.request_filter is not None or pipeline.response_filter is not None:
            pipeline.end_filters()
        if exchange.state:
            completed: tuple[ConfiguredFilter, ...] = ()
            for place in (pipeline.backend, pipeline.route):
                if place is not None and place.chain.complete != completed:
                    completed = place.chain.complete
                    finish(completed, exchange)
        if pipeline.on_complete is not None:
            on_complete, pipeline.on_complete = pipeline.on_complete, None
            on_complete()
        if pipeline.held_bytes is not None:
            pipeline.release_bytes()
        if pipeline.tenant is not None:
            pipeline.tenant.leave()
            pipeline.tenant = None
        if self.is_cutting and exchange.reason in (Reason.OK, Reason.CLIENT_GONE):
            exchange.reason = Reason.DRAINED
        if exchange.identity is not ANONYMOUS:
            client = exchange.identity
            killed = self.gate.killed if self.gate is not None else None
            # What ends without an error, or with its connection, was cut if its client is killed.
            if killed and exchange.reason in (Reason.OK, Reason.CLIENT_GONE) and killed.has(client):
                exchange.reason, exchange.denied = Reason.IDENTITY_KILLED, True
            if exchange.series is client.counted_beside:
                exchange.series = client.counted_in
            else:
                found = self.metrics.of_client(exchange.series, client, is_denied=exchange.denied)
                client.counted_beside, client.counted_in = exchange.series, found
                exchange.series = found
        exchange.ended_at = monotonic()
        exchange.series.observe(exchange)
        self.access_log.record(exchange)
        entry = (
            exchange.started_wall, exchange.method, exchange.scheme, exchange.authority, exchange.path[:MAX_PATH],
            exchange.gateway, exchange.listener, exchange.identity, exchange.reason, exchange.request_id,
        )  # fmt: skip
        self.recent.append(entry)
        if exchange.denied:
            self.denials.append((entry, exchange.client, exchange.rule, exchange.series, exchange.take(REFUSAL)))
        trace: ExchangeTrace | None = exchange.trace
        if trace is not None:
            exchange.trace = None
            trace.end(exchange)
        if exchange.state:
            exchange.forget_state()


def finish_attempts(exchange: Exchange, route: Route, earlier: Sequence[RouteBackend]) -> None:
    """Run `complete` of those filters that ran for each of these attempts: each gives back what is its own."""
    if not earlier:
        return
    chain = route.chain
    steps = (*(chain.request_headers or ()), *(chain.request_body.steps if chain.request_body is not None else ()))
    of_request = {step.own_mark for step in steps}
    for backend in earlier:
        finish([each for each in backend.chain.complete if each.mark not in of_request], exchange)


def finish_earlier(exchange: Exchange, route: Route, chosen: Sequence[RouteBackend]) -> None:
    """Run `complete` of the filters of backends that were left for others; those of the last one run in the end."""
    last = chosen[-1]
    later = {completion.mark for place in (route, last) for completion in place.chain.complete}
    for backend in chosen:
        if backend is not last:
            finish([each for each in backend.chain.complete if each.mark not in later], exchange)
