"""ExternalProcessor: a server that speaks Envoy's ext_proc looks at exchanges and changes them.

Sources: Envoy API v3, service/ext_proc/v3/external_processor.proto and extensions/filters/http/ext_proc/v3.
Where it differs from Envoy is told in docs/filters/external-processor.md.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Final

from egressproxy.envoy.ext_proc.messages import BodySendMode, HeaderSendMode, MessagePart, ProcessingRequest
from egressproxy.envoy.processors.attributes import Lines, attributes, known_metadata, request_lines, response_lines
from egressproxy.envoy.processors.mutations import MutationChecker, forwarded, rejected_mutations
from egressproxy.envoy.processors.processed_bodies import ProcessedBodies, body_mode, trailer_message
from egressproxy.envoy.processors.processor_answers import ProcessorAnswers, is_event_stream
from egressproxy.envoy.processors.session import ProcessorSession, SessionSettings, StreamBroke
from egressproxy.envoy.processors.settings import ExternalProcessorConfig
from egressproxy.errors import Reason
from egressproxy.filters.base import MORE, BodyMode, Filter, FilterContext, FilterType, Phase
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse

#: The name under which Envoy's filter says attributes.
_NAMESPACE: Final = "envoy.filters.http.ext_proc"

_SEND: Final = HeaderSendMode.SEND
_DUPLEX: Final = BodySendMode.FULL_DUPLEX_STREAMED


class ExternalProcessor(Filter):
    """One stream for each exchange; on a Backend for each attempt. Any error except Rejected is a failure of the
    filter.
    """

    def __init__(self, context: FilterContext) -> None:
        config: ExternalProcessorConfig = context.config
        self._config = config
        self._settings = SessionSettings(config)
        self._shown = forwarded(config.forward_rules)
        calls = [context.calls[ref.label] for ref in config.backend_refs if ref.label in context.calls]
        self._calls = cycle(calls)  # empty while a configuration is only checked, and nothing is asked then
        self._state: StateSlot[ProcessorSession] = StateSlot("ext_proc")
        self._observes = config.observability_mode
        mode = self._settings.mode
        shown = _SEND in (mode.request_trailer_mode, mode.response_trailer_mode)
        self.sees_trailers = shown or config.allow_mode_override
        self.sends_more = mode.response_body_mode is _DUPLEX or config.allow_mode_override
        self.max_buffer_bytes = config.max_body_bytes
        request, response = Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS
        self._is_of_backend = context.phase is Phase.BACKEND_REQUEST
        if self._is_of_backend:
            request, response = Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE
        checker = MutationChecker(config.mutation_rules, rejected_mutations(context.meter).add)
        self._answers = ProcessorAnswers(config, checker, context.source, is_of_backend=self._is_of_backend)
        self._bodies = ProcessedBodies(self._answers, self._shown, config.max_body_bytes, self._observes)
        self.runs_in = frozenset((request, Phase.REQUEST_BODY, response, Phase.RESPONSE_BODY))

    # --- phases ------------------------------------------------------------------------------------------------------
    async def request_headers(self, exchange: Exchange) -> LocalResponse | None:
        with self._begin(exchange) as session:
            if session.mode.request_header_mode is not _SEND:
                return None
            has_body = exchange.request.body != 0 and not exchange.is_tunnel
            part, lines = MessagePart.REQUEST_HEADERS, request_lines(exchange, self._shown)
            message = self._head_message(exchange, part, lines, self._config.request_attributes, has_body=has_body)
            answer = None
            if self._observes:
                session.tell(message)
            elif has_body and session.mode.request_body_mode is _DUPLEX:
                session.check()  # the processor may answer when it has the body: the answer is waited for there
                session.late_head = session.expect(part)
                session.tell(message)
            else:
                answer = self._answers.take_request_head(
                    session, exchange, await session.ask(message), has_body=has_body
                )
            if exchange.is_tunnel:
                session.finish()
            return answer

    async def backend_request(self, exchange: Exchange) -> LocalResponse | None:
        """As `request_headers`, unless the head was shown with a body that is taken whole, which comes before it."""
        return None if self._of_attempt(exchange) is not None else await self.request_headers(exchange)

    async def response_headers(self, exchange: Exchange) -> LocalResponse | None:
        known = self._session(exchange)
        if known is None:
            return None
        with known as session:
            session.check()
            if session.is_over or session.mode.response_header_mode is not _SEND:
                return None
            has_body = exchange.response.body != 0 and exchange.request.method != b"HEAD"
            part, lines = MessagePart.RESPONSE_HEADERS, response_lines(exchange, self._shown)
            message = self._head_message(exchange, part, lines, self._config.response_attributes, has_body=has_body)
            answer = None
            if self._observes:
                session.tell(message)
            elif has_body and session.mode.response_body_mode is _DUPLEX and not is_event_stream(exchange):
                session.late_head = session.expect(part)
                session.tell(message)
            else:
                answer = self._answers.take_response_head(
                    session, exchange, await session.ask(message), has_body=has_body
                )
            if exchange.response.status == 101:
                session.finish()
            return answer

    backend_response = response_headers

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        """As the mode of this exchange says; for the request of a backend, whose session has not begun, the config."""
        of_request = phase is Phase.REQUEST_BODY
        if of_request and self._is_of_backend:
            return body_mode(self._settings.mode.request_body_mode, is_held=True)
        session = self._session(exchange)
        if session is None:
            return None
        new = session.new_request if of_request else session.new_response
        if new is not None:
            return BodyMode.BUFFER if of_request and session.has_made_body else BodyMode.STREAM
        if session.has_failed:
            return BodyMode.STREAM  # the body method raises what has happened meanwhile
        mode = session.mode.request_body_mode if of_request else session.mode.response_body_mode
        return None if session.is_over else body_mode(mode, is_held=of_request or not is_event_stream(exchange))

    async def request_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | LocalResponse:
        if self._is_of_backend and self._of_attempt(exchange) is None:
            answer = await self.request_headers(exchange)
            if answer is not None:
                return answer
        return await self._body(exchange, MessagePart.REQUEST_BODY, data, last=last)

    async def response_body(self, exchange: Exchange, data: bytes, last: bool) -> bytes | LocalResponse:
        """As `request_body`. Raises Rejected for an immediate response that comes too late."""
        return await self._body(exchange, MessagePart.RESPONSE_BODY, data, last=last)

    async def request_trailers(self, exchange: Exchange, fields: Fields) -> None:
        """Show them; in another mode than SEND none go on. Raises Rejected for an immediate response: it is late."""
        await self._trailers(exchange, MessagePart.REQUEST_TRAILERS, fields)

    async def response_trailers(self, exchange: Exchange, fields: Fields) -> None:
        await self._trailers(exchange, MessagePart.RESPONSE_TRAILERS, fields)

    def complete(self, exchange: Exchange) -> None:
        session = exchange.take(self._state)
        if session is not None:
            session.finish()

    def _head_message(
        self, exchange: Exchange, part: MessagePart, lines: Lines, names: tuple[str, ...], *, has_body: bool
    ) -> ProcessingRequest:
        return ProcessingRequest(
            part,
            lines,
            end_of_stream=not has_body,
            attributes={_NAMESPACE: attributes(names, exchange, self._shown)} if names else {},
            metadata=known_metadata(exchange, self._config.metadata_options.forwarding_namespaces),
            observability_mode=self._observes,
        )

    # --- bodies ------------------------------------------------------------------------------------------------------
    async def _body(self, exchange: Exchange, part: MessagePart, data: bytes, *, last: bool) -> bytes | LocalResponse:
        session = self._session(exchange)
        if session is None:
            return data
        if part is MessagePart.RESPONSE_BODY and session.has_more is None:
            more = MORE.get(exchange)
            session.has_more = partial(more, self) if more is not None else None
        with session:
            made = await self._bodies.changed(session, exchange, part, data, last=last)
            if session.immediate is not None and not session.is_off:
                answer = self._answers.immediate(session, exchange)
                if answer is not None:
                    return self._answers.in_time(answer, exchange, part, session)
            return made

    # --- trailers ----------------------------------------------------------------------------------------------------
    async def _trailers(self, exchange: Exchange, part: MessagePart, fields: Fields) -> None:
        session = self._session(exchange)
        modes = session.mode if session is not None else self._settings.mode
        of_request = part is MessagePart.REQUEST_TRAILERS
        if (modes.request_trailer_mode if of_request else modes.response_trailer_mode) is not _SEND:
            fields.block = b""
            return
        if session is None:
            return
        with session:
            if part in session.early_trailers:
                response = session.early_trailers.pop(part)
            elif session.is_over:
                session.check()
                return
            elif self._observes:
                if session.is_full:
                    session.close()
                session.tell(trailer_message(part, fields, self._shown, is_observed=True))
                return
            else:
                response = await session.ask(trailer_message(part, fields, self._shown))
            self._answers.take_trailers(session, exchange, fields, response)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        session = self._session(exchange)
        return sum([len(kept) for kept in session.kept.values() if kept]) if session is not None else 0

    # --- the session -------------------------------------------------------------------------------------------------
    def _begin(self, exchange: Exchange) -> ProcessorSession:
        """A session of this exchange, or of this attempt: one of the attempt before it is given up."""
        before = exchange.state.get(self._state)
        if before is not None:
            before.close()
        call = next(self._calls, None)
        if call is None:
            raise StreamBroke(Reason.NO_ENDPOINT, "there is no backend to call")
        session = ProcessorSession(self._settings, call, exchange)
        exchange.keep(self._state, session)
        return session

    def _of_attempt(self, exchange: Exchange) -> ProcessorSession | None:
        session = exchange.state.get(self._state)
        return session if session is not None and session.attempt == exchange.attempts else None

    def _session(self, exchange: Exchange) -> ProcessorSession | None:
        """The session, while the processor may be asked."""
        session = exchange.state.get(self._state)
        return None if session is None or session.is_off else session


EXTERNAL_PROCESSOR: Final = FilterType(
    name="egressproxy.io/ExternalProcessor:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=ExternalProcessorConfig,
    build=ExternalProcessor,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    summary="Shows exchanges to a server that speaks Envoy's ext_proc, and does what it says.",
)
