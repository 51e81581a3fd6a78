"""MessageRelay: a WebSocket whose messages pass filters, between the two ends that the gateway reads.

One response is under way at a time: what the client says meanwhile waits, but for its Close frame. A message that is
not understood ends the WebSocket, since nobody can say what it would do; so do an answer that a filter refuses and
a credential that is refused. Another request does not: the client is told by an event of its API.

| what ends it | the client's side closes with | the server's |
|---|---|---|
| a Close frame of either side | the same code | the same |
| an end without one | the connection alone | the same |
| the client breaks the protocol | the code of that | 1001 |
| the server breaks the protocol | 1014 | the code of that |
| a message that is not understood, a credential or an answer that is refused | 1008, behind an event | 1001 |
| another rule is in force, or nothing was said for as long as a tunnel may be idle | 1012, 1001 | 1001 |
| too much is held for this client | 1013 | 1001 |
"""

from __future__ import annotations

from typing import Final

from egressproxy.errors import GatewayError, Reason
from egressproxy.filters.base import Rejected
from egressproxy.filters.messages import MessageApi, MessageKind, Messages
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.exchange.accounting import Accounting
from egressproxy.gateway.exchange.client import Client
from egressproxy.gateway.exchange.error_responses import about_error
from egressproxy.gateway.exchange.message_exchange import ConfigurationChanged, MessageExchange
from egressproxy.gateway.exchange.websocket_end import WebSocketEnd
from egressproxy.gateway.route import Route
from egressproxy.model.exchange import Exchange
from egressproxy.model.strict_json import Unreadable
from egressproxy.net.cooperative import TimeSlice, in_turns
from egressproxy.net.driver import PAUSE
from egressproxy.net.held_bytes import Hold
from egressproxy.net.pending_protocol import PendingProtocol
from egressproxy.net.timers import Deadline
from egressproxy.protocols.websocket.frames import CloseCode, WebSocketFault, close_payload

#: Seconds that each side has to answer a Close frame, and to take what it was sent.
CLOSE_S: Final = 5.0
#: The same where one of them has broken the protocol, so that nothing it says is read.
FAULT_S: Final = 1.0
#: Bytes of messages up to which nothing is counted as held.
UNCOUNTED: Final = 64 * 1024


async def relay_messages(
    accounting: Accounting, exchange: Exchange, client: Client, upstream: PendingProtocol, client_rest: bytes,
    upstream_rest: bytes, messages: Messages, *, deflates: bool,
) -> None:  # fmt: skip
    """Messages both ways until an end of the WebSocket. Takes both transports; the rests were read already."""
    relay = MessageRelay(accounting, exchange, client, messages, deflates=deflates)
    head_in, head_out = client.bytes_in - len(client_rest), client.bytes_out
    exchange.series.tunnel_opened()
    exchange.forget_heads()
    try:
        relay.start(upstream, client_rest, upstream_rest)
        client_rest = upstream_rest = b""
        await relay.run()
    finally:
        relay.release()
        exchange.series.tunnel_ended()
        client.tunnel_ended()
        # What responses have counted for themselves is not counted twice.
        exchange.bytes_in = max(head_in, head_in + relay.client.bytes_in - relay.counted_in)
        exchange.bytes_out = max(head_out, head_out + relay.client.bytes_out - relay.counted_out)


class MessageRelay:
    """`client` and `server` are the ends. `counted_in`, `counted_out`: bytes that responses have counted."""

    def __init__(
        self, accounting: Accounting, exchange: Exchange, client: Client, messages: Messages, *, deflates: bool
    ) -> None:
        pipeline = client.pipeline
        assert messages.api is not None
        assert pipeline.route is not None
        assert pipeline.backend is not None
        self._accounting = accounting
        self._exchange = exchange
        self._owner = client
        self._messages = messages
        self._api: MessageApi = messages.api
        self._route: Route = pipeline.route
        self._backend: RouteBackend = pipeline.backend
        self._response: MessageExchange | None = None
        self._hold: Hold | None = None
        self._deadline = Deadline(accounting.wheel, self._time_is_over)
        self._in_hand = 0  # bytes of the message that filters have
        self._is_late = self._is_over = False
        self._last_activity = accounting.wheel.now
        self.counted_in = self.counted_out = 0
        self.client = WebSocketEnd(self._changed, is_client=True, deflates=deflates)
        self.server = WebSocketEnd(self._changed, is_client=False, deflates=deflates)

    def start(self, upstream: PendingProtocol, client_rest: bytes, upstream_rest: bytes) -> None:
        """Take both transports."""
        client, server, transport = self.client, self.server, self._owner.transport
        self._deadline.after(self._route.tunnel_idle_s)
        transport.set_protocol(client)
        client.connection_made(transport)
        server.connection_made(upstream.transport)
        if client_rest:
            client.data_received(client_rest)
        if self._owner.has_ended:
            client.eof_received()
        if upstream_rest:
            server.data_received(upstream_rest)
        upstream.hand_over(server)

    async def run(self) -> None:
        """Relay, and close both sides in order."""
        time_slice = TimeSlice()
        while not self._is_over:
            if not await self._step():
                await PAUSE
                time_slice = TimeSlice()
            elif time_slice.is_over:
                await time_slice.next()
        has_fault = self.client.fault is not None or self.server.fault is not None
        self._deadline.after(FAULT_S if has_fault else CLOSE_S)
        while not (self._is_late or (self.client.says_no_more and self.server.says_no_more)):
            await PAUSE
        for end in (self.client, self.server):
            if not end.is_lost:
                end.transport.close()
        self._is_late = False
        self._deadline.after(CLOSE_S)
        while not (self.client.is_lost and self.server.is_lost):
            if self._is_late:
                self._abort()
                self._is_late = False
            await PAUSE

    def release(self) -> None:
        """Give back all that the relay holds, after any end."""
        self._abort()
        self._deadline.close()
        self.client.release()
        self.server.release()
        if self._hold is not None:
            self._hold.release()
            self._hold = None
        self._end_response(Reason.CLIENT_GONE)

    # --- events ----------------------------------------------------------------------------------------------------
    def _changed(self) -> None:
        self._last_activity = self._accounting.wheel.now
        self._count_held()
        self._owner.driver.resume()

    def _time_is_over(self) -> None:
        idle_s = self._route.tunnel_idle_s
        since = self._accounting.wheel.now - self._last_activity
        if self._is_over or since >= idle_s:
            self._is_late = True
            self._owner.driver.resume()
        else:
            self._deadline.after(idle_s - since)

    def _count_held(self) -> None:
        held, hold = self._in_hand + self.client.held + self.server.held, self._hold
        if hold is None:
            if held <= UNCOUNTED:
                return
            hold = self._hold = self._owner.state.new_hold(self._owner.client, self._owner.held_of_connection)
        hold.add(held - hold.size)
        if held <= UNCOUNTED:
            hold.release()
            self._hold = None
        elif not hold.has_room() or self._owner.handler_has_no_memory:
            fault = WebSocketFault(CloseCode.TRY_LATER, "too much is held for this client")
            self.client.fault = self.client.fault or fault

    def _abort(self) -> None:
        for end in (self.client, self.server):
            if not end.is_lost and hasattr(end, "transport"):
                end.transport.abort()

    # --- what comes next -------------------------------------------------------------------------------------------
    async def _step(self) -> bool:
        """Whether something was done, so that there may be more."""
        client, server = self.client, self.server
        if client.fault is not None:
            self._break(client.fault, client)
        elif server.messages and not client.is_write_blocked:
            await self._from_server()
            self._put_down()
        elif server.fault is not None:
            self._break(server.fault, server)
        elif client.messages and self._response is None and not server.is_write_blocked:
            await self._from_client()
            self._put_down()
        elif client.says_no_more:
            self._pass_end(client, Reason.CLIENT_GONE)
        elif server.says_no_more and not server.messages:
            self._pass_end(server, Reason.UPSTREAM_CLOSED)
        elif self._is_late:
            self._exchange.reason = Reason.CLIENT_TIMEOUT
            self._end_response(Reason.CLIENT_TIMEOUT)
            self._close(CloseCode.GOING_AWAY, "nothing was said for too long")
        else:
            return False
        return True

    async def _take(self, end: WebSocketEnd) -> bytes | None:
        """The next message; None for one that breaks the protocol."""
        try:
            message = await in_turns(end.take())
        except WebSocketFault as fault:
            self._break(fault, end)
            return None
        self._in_hand = len(message)
        self._count_held()
        return message

    def _put_down(self) -> None:
        self._in_hand = 0
        self._count_held()

    async def _from_client(self) -> None:
        size = len(self.client.messages[0].data)
        message = await self._take(self.client)
        if message is None:
            return
        response = MessageExchange(
            self._accounting, self._owner, self._exchange, self._api, self._messages, self._route, self._backend
        )
        response.exchange.bytes_in = size
        try:
            kind = await in_turns(self._api.kind_of(message))
        except Unreadable as error:
            self._response = response
            refusal = Rejected(f"a message of this WebSocket cannot be looked at: {error}", status=400)
            self._refuse(refusal)
            self._close(CloseCode.POLICY, refusal.message)
            return
        if kind is MessageKind.NO_CONTENT:
            self.server.send_text(self._api.without_content(message))
            return
        self._response = response
        try:
            message = await response.request(message)
            if self.client.says_no_more:  # it has left while filters waited: the server does not begin
                return
            self.server.send_text(message)
            if kind is MessageKind.ASKS_RESPONSE:
                response.sent()
            else:
                response.told()
                self._end_response()
        except GatewayError as error:
            self._refuse(error)
            if error.close or error.reason in (Reason.CREDENTIALS_REFUSED, Reason.CREDENTIALS_REQUIRED):
                self._close(CloseCode.POLICY, error.message)
        except ConfigurationChanged:
            self._end_response(Reason.DRAINED)
            self._close(CloseCode.SERVICE_RESTART, "the configuration has changed: open the WebSocket again")

    async def _from_server(self) -> None:
        response = self._response
        message = await self._take(self.server)
        if message is None:
            return
        try:
            aside = self._api.outside_response(message, is_asked=response is not None)
        except Unreadable as error:
            self._break(WebSocketFault(CloseCode.POLICY, f"it cannot be read: {error}"), self.server)
            return
        if aside is not None:
            if aside:
                self.client.send_text(aside)
            return
        if response is None:
            unasked = WebSocketFault(CloseCode.POLICY, "the server has said what no request has asked for")
            self._break(unasked, self.server)
            return
        try:
            made, is_last = await response.answer(message)
        except GatewayError as error:
            self._refuse(error)
            self._close(CloseCode.POLICY, error.message)
            return
        for each in made:
            self.client.send_text(each)
        if is_last:
            self._end_response()

    # --- ends ------------------------------------------------------------------------------------------------------
    def _refuse(self, error: GatewayError) -> None:
        """Tell the client of an error in the way of its API, and end the response under way."""
        error.__traceback__ = error.__context__ = None  # their frames hold what may hold the error: no cycle
        response = self._response
        assert response is not None
        response.fail(error)
        about = about_error(error, response.exchange.request_id)
        self.client.send_text(self._api.error(about, error.retry_after_s))
        self._end_response()

    def _end_response(self, reason: Reason = Reason.OK) -> None:
        response, self._response = self._response, None
        if response is not None:
            self.counted_in += response.exchange.bytes_in
            self.counted_out += response.exchange.bytes_out
            response.end(reason)

    def _break(self, fault: WebSocketFault, end: WebSocketEnd) -> None:
        """`end` has broken the protocol."""
        fault.__traceback__ = None
        end.fault = fault
        is_client = end is self.client
        reason = self._exchange.reason = Reason.BAD_FRAMING if is_client else Reason.BAD_RESPONSE
        self._exchange.detail = str(fault)
        self._end_response(reason)
        if is_client:
            self._close(fault.code, str(fault))
        else:
            self.server.fail(fault.code, str(fault))
            self._close(CloseCode.BAD_GATEWAY, "the server breaks the protocol")

    def _pass_end(self, end: WebSocketEnd, reason: Reason) -> None:
        """`end` says no more: the other one is told in the same way."""
        self._end_response(reason)
        for each in (self.client, self.server):
            if end.close_seen is not None:
                each.say_close(end.close_seen)
            elif not each.is_lost:
                each.transport.close()
        self._is_over = True

    def _close(self, code: int, reason: str) -> None:
        self.client.fail(code, reason)
        self.server.say_close(close_payload(CloseCode.GOING_AWAY))
        self._is_over = True
