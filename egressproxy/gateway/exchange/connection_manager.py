"""HttpConnectionManager: the driver of HTTP requests. `pipeline` says what comes next; here that is done.

Runs on the client connection's Driver (ARCHITECTURE.md, "The loop, the poller and the driver"): an await here is a
pause of this exchange alone, and costs nothing where nothing has to be waited for. Every way out of `serve` passes
`finish`, except where a tunnel has the exchange, which `relay` completes. An error passes `handle_error` before, which
does what `Pipeline.end` says.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from egressproxy.errors import GatewayError
from egressproxy.filters.chain import run
from egressproxy.filters.filter_step import FilterAnswered, FilterSteps
from egressproxy.gateway.answers import Answer
from egressproxy.gateway.backends.buffered_body import BUFFERED_REQUEST, BufferedRequest
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.backends.mirror_request import mirror_requests_of
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.upstream_call import call_upstream, proxy_credentials_fault
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.attempt_driver import AttemptDriver
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.clock import STOPPED, started_clock
from egressproxy.gateway.exchange.connect import serve_connect, switch_protocols
from egressproxy.gateway.exchange.error_responses import error_event, internal_fault
from egressproxy.gateway.exchange.filter_answers import answer_of, answer_to_browser, run_response_filters
from egressproxy.gateway.exchange.identification import identify
from egressproxy.gateway.exchange.pipeline import (
    ADMIT_AGAIN,
    CALL,
    END_EVENTS,
    ENTER_GATE,
    FILTER,
    FILTER_BODY,
    IDENTIFY,
    OFFER_BODY,
    RESPOND,
    RESPOND_ERROR,
    RESPOND_INSTEAD,
    RESPOND_SELF,
    SEND,
    START_CLOCK,
    SWITCH,
    Pipeline,
)
from egressproxy.gateway.exchange.readmission import admit_again
from egressproxy.gateway.exchange.request_body import read_request_body
from egressproxy.gateway.exchange.response_body import (
    Server,
    begin_response,
    filter_response,
    relay_response,
    wait_until_taken,
)
from egressproxy.gateway.identity.challenges import Unauthenticated
from egressproxy.gateway.open_connections import clients_of_process
from egressproxy.gateway.products import PRODUCTS
from egressproxy.gateway.route import Route
from egressproxy.model.attempt_trail import ATTEMPTS_FIELD, AttemptTrail
from egressproxy.model.exchange import Exchange
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead


class HttpConnectionManager(Server):
    """Serves every exchange of this process. Implements RequestHandler for its client connections."""

    def __init__(self, accounting: Accounting, connections: int | None = None) -> None:
        """`connections`: see ProcessLimits."""
        self.accounting = accounting
        self.wheel = accounting.wheel
        self.pseudonym = accounting.pseudonym
        self.clients = clients_of_process(connections)
        self.self_service = PRODUCTS.self_service()
        self.is_draining = False
        self.ends_connections = False  # each with the response under way: draining, or short of memory
        self.last_idle_s = 0.0  # since a drain has begun: how long a client may take to ask once more
        self.has_no_memory = False  # every request is refused, and no body that is held grows

    # --- called by client connections ----------------------------------------------------------------------------
    def on_request(self, client: Client, head: RequestHead) -> None:
        client.driver.start(self.serve(client, head))

    def on_bad_request(self, client: Client, error: GatewayError) -> None:
        """What came is no request: it is answered, counted and logged like one."""
        exchange = self.accounting.new_exchange(client.client, client.listener, client.identity)
        client.pipeline.close = True
        self.handle_error(exchange, client, error)
        self.finish(exchange, client, None)

    def on_deadline(self, client: Client) -> None:
        """RequestHandler: the deadline of the client's connection has passed. End the exchange if its time is over."""
        fault = client.clock.look(client)
        if fault is not None:
            client.driver.throw(fault)

    def on_lost(self, client: Client) -> None:
        client.state.leave(client)

    # --- the life of an exchange ---------------------------------------------------------------------------------
    async def serve(self, client: Client, head: RequestHead) -> None:
        """Carry out what the pipeline says, to the end of the exchange."""
        pipeline, port = client.pipeline, client.state.port
        exchange = pipeline.exchange = self.accounting.new_exchange(client.client, port.first, client.identity, head)
        exchange.request = head
        exchange.method = head.method
        try:
            if head.method == b"CONNECT":
                answer = await serve_connect(self.accounting, exchange, client, head)
                if answer is not None:
                    self.answer(exchange, client, answer)
                return
            found: Answer | LocalResponse | None = None
            actions = pipeline.request(exchange, head, port, client.server_name, client.tunnel)
            for action in actions:
                if action == ENTER_GATE:
                    route: Route = pipeline.route  # type: ignore[assignment]
                    if self.accounting.gate is not None:
                        pipeline.tenant = self.accounting.gate.admit(exchange, route.priority)
                    client.clock = started_clock(client, route.clock_s, route.idle_s)
                elif action == FILTER:
                    steps: FilterSteps = pipeline.steps  # type: ignore[assignment]  # set with the action
                    outcome = run(steps, exchange)
                    if outcome is not None:
                        pipeline.answer = await answer_of(outcome, steps, exchange, pipeline)
                elif action == CALL:
                    client.body_limit = exchange.max_body_bytes
                    body = pipeline.body
                    pipeline.choose(exchange)
                    backend: RouteBackend = pipeline.backend  # type: ignore[assignment]  # `choose` sets it
                    if backend.mirrors is not None:  # before filters of this backend add its credential
                        pipeline.mirror_requests = mirror_requests_of(backend.mirrors, exchange)
                    cluster: Cluster = backend.cluster  # type: ignore[assignment]  # `choose` gives none without
                    chain = pipeline.response_chain = backend.chain
                    target = cluster.target(exchange)
                    found = await call_upstream(client, pipeline, exchange, cluster, target, chain, body)
                    if pipeline.held_bytes is not None:
                        body = None
                        pipeline.release_request(exchange, pipeline.held_bytes)
                    if isinstance(found, LocalResponse):
                        pipeline.answer = await run_response_filters(found, exchange, pipeline)
                    elif exchange.response.status == 407:
                        raise proxy_credentials_fault(pipeline.cluster)
                elif action == SEND:
                    if chain.response_body is not None:
                        await filter_response(self, exchange, client, chain.response_body, found)  # type: ignore[arg-type]
                    elif not begin_response(self, exchange, client, None, found):  # type: ignore[arg-type]
                        await relay_response(exchange, client, None, found)  # type: ignore[arg-type]
                    if pipeline.held_bytes is not None and client.is_write_blocked:
                        exchange.first_byte_at = exchange.first_byte_at or monotonic()
                        await wait_until_taken(client)
                elif action == RESPOND:
                    self.answer(exchange, client, pipeline.answer)  # type: ignore[arg-type]
                elif action == IDENTIFY:
                    await identify(self.accounting, exchange, client, pipeline.listener, head)  # type: ignore[arg-type]
                elif action == FILTER_BODY:
                    client.body_limit = exchange.max_body_bytes
                    pipeline.body = await read_request_body(exchange, client, head, pipeline.route)  # type: ignore[arg-type]
                elif action == OFFER_BODY:
                    if BUFFERED_REQUEST not in exchange.state:
                        exchange.keep(BUFFERED_REQUEST, BufferedRequest(client, head))
                elif action == START_CLOCK:
                    route = pipeline.route  # type: ignore[assignment]
                    client.clock = started_clock(client, route.clock_s, route.idle_s)
                elif action == ADMIT_AGAIN:
                    pipeline.route, _ = await admit_again(exchange, client, pipeline.route, pipeline.listener)  # type: ignore[arg-type]
                elif action == SWITCH:
                    await switch_protocols(self.accounting, exchange, client)
                elif action == RESPOND_SELF:
                    await self.respond_self(exchange, client, head, pipeline)
                else:
                    found = await AttemptDriver(exchange, client).run(actions)
                    chain = pipeline.response_chain  # type: ignore[assignment]  # set with it
        except FilterAnswered as answered:
            await self.answer_instead(exchange, client, answered)
        except Unauthenticated as error:
            answer = answer_to_browser(exchange, client, pipeline.listener, head, error)  # type: ignore[arg-type]
            if answer is not None:
                self.answer(exchange, client, answer)
            else:
                self.handle_error(exchange, client, error)
        except BaseException as error:  # also what a filter may raise to end more than itself
            self.handle_error(exchange, client, error)
        finally:
            if not pipeline.is_handed_over:
                self.finish(exchange, client, head)

    async def respond_self(self, exchange: Exchange, client: Client, head: RequestHead, pipeline: Pipeline) -> None:
        """RESPOND_SELF: what a client may ask at egress.internal."""
        held, listener = BufferedRequest(client, head), pipeline.listener
        assert listener is not None
        self.answer(exchange, client, await self.self_service.answer(exchange, listener, head, held))

    # --- the end -------------------------------------------------------------------------------------------------
    def answer(self, exchange: Exchange, client: Client, answer: LocalResponse) -> None:
        answer = client.own_answer(answer, exchange)
        is_last = exchange.says_close or self.ends_connections or client.state.is_closed or client.is_last
        close = client.pipeline.close or is_last or not client.is_request_read  # RFC 9112 section 9.6
        client.pipeline.close = close or has_stray_bytes(exchange, client)
        exchange.status = answer.status
        client.send_answer(answer, close=client.pipeline.close, with_body=exchange.method != b"HEAD")

    async def answer_instead(self, exchange: Exchange, client: Client, answered: FilterAnswered) -> None:
        """RESPOND_INSTEAD, unless a response has begun."""
        answered.__traceback__ = answered.__context__ = None  # frames of the traceback may hold the error: no cycle
        pipeline = client.pipeline
        try:
            if pipeline.end(exchange, answered, is_lost=client.is_lost) != RESPOND_INSTEAD:
                raise answered
            if pipeline.upstream is not None:
                pipeline.release(reusable=pipeline.upstream.is_reusable())
            self.answer(exchange, client, await run_response_filters(answered.answer, exchange, pipeline))
        except BaseException as error:  # also what a filter may raise to end more than itself
            self.handle_error(exchange, client, error)

    def handle_error(self, exchange: Exchange, client: Client, failure: BaseException) -> None:
        """An error ends the exchange, as `Pipeline.end` says. What is no GatewayError is a fault of ours, or of a
        filter.
        """
        error = (
            failure if isinstance(failure, GatewayError) else internal_fault(failure, f"exchange {exchange.request_id}")
        )
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
        pipeline = client.pipeline
        self.accounting.record_error(exchange, pipeline, error)
        action, response_filter = pipeline.end(exchange, error, is_lost=client.is_lost), pipeline.response_filter
        pipeline.fail(exchange, error)
        if action != RESPOND_ERROR:
            pipeline.close = True
            last = b""
            if action == END_EVENTS and response_filter is not None:
                form = PRODUCTS.error_form(exchange, client.backends)
                last = error_event(error, exchange, form, response_filter.chain, response_filter.tail)
            if last:
                client.send_body(last)
                client.end_body(b"")
            else:
                client.break_off(error)
            return
        pipeline.close = pipeline.close or error.close or not client.is_request_read
        answer = client.error_answer(error, exchange)
        trail = AttemptTrail.of(exchange)
        if trail is not None and trail.is_shown:
            answer = replace(answer, fields=(*answer.fields, (ATTEMPTS_FIELD, trail.field)))
        self.answer(exchange, client, answer)

    def finish(self, exchange: Exchange, client: Client, head: RequestHead | None) -> None:
        """Always, once: filters, slots, metrics, log; then the connection goes on or closes. `head` is None for bytes
        that were no request.
        """
        pipeline = client.pipeline
        try:
            if not exchange.bytes_in:  # a tunnel has counted for itself
                # What is buffered belongs to the next request; behind a malformed one there is none.
                exchange.bytes_in = client.bytes_in - (client.unread() if head is not None else 0)
                exchange.bytes_out = client.bytes_out
            self.accounting.account(exchange, pipeline)
        finally:
            # A client whose answer began before a drain has not heard of it: it may ask once more, and hears it then.
            close = pipeline.close or (self.ends_connections and not self.is_draining) or client.state.is_closed
            if self.last_idle_s:
                client.idle_s = self.last_idle_s
            client.clock = STOPPED
            pipeline.reset()  # what waits for its next request holds nothing of the last
            if client.is_lost:
                client.state.leave(client)
            else:
                if head is None or head.upgrade or exchange.is_tunnel:
                    close = close or (client.tunnel is None and has_stray_bytes(exchange, client))
                client.finish(close=close)


def has_stray_bytes(exchange: Exchange, client: Client) -> bool:
    """Whether bytes came behind a CONNECT or an upgrade: if that fails, they must not be read as a request."""
    return exchange.asks_to_switch and client.unread() > 0
