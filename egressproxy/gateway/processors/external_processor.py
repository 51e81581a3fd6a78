"""ExternalProcessor: a server that speaks Envoy's ext_proc looks at exchanges and changes them.

Sources: Envoy API v3, service/ext_proc/v3/external_processor.proto and extensions/filters/http/ext_proc/v3.
Where it differs from Envoy is told in docs/filters/external-processor.md.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Final

from egressproxy.errors import Reason
from egressproxy.filters.base import BodyMode, Filter, FilterContext, FilterType, Phase, Rejected
from egressproxy.filters.settings import CalledBackendRef
from egressproxy.gateway.ext_authz.buffered_body import HELD
from egressproxy.gateway.processors.attributes import attributes, keep_metadata, known_metadata
from egressproxy.gateway.processors.bodies import (
    body_mode,
    duplex_piece,
    is_event_stream,
    partial,
    pieces_of,
    streamed,
    tell_body,
    unanswered,
)
from egressproxy.gateway.processors.heads import local_response, request_lines, response_lines
from egressproxy.gateway.processors.mutations import MutationChecker, forwarded, rejected_mutations
from egressproxy.gateway.processors.session import InvalidMessage, ProcessorSession, SessionSettings, StreamBroke
from egressproxy.gateway.processors.settings import ExternalProcessorConfig
from egressproxy.gateway.processors.trailers import (
    before_trailers,
    last_duplex_piece,
    trailer_message,
    trailers_behind,
)
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.fields import Fields
from egressproxy.protocols.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    MessagePart,
    ProcessingRequest,
    ProcessingResponse,
)

__all__ = ["EXTERNAL_PROCESSOR", "ExternalProcessor"]

#: The name under which Envoy's filter says attributes.
_NAMESPACE: Final = "envoy.filters.http.ext_proc"
_MAX_DETAILS: Final = 200

_SEND: Final = HeaderSendMode.SEND
_STREAMED, _BUFFERED = BodySendMode.STREAMED, BodySendMode.BUFFERED
_PARTIAL, _DUPLEX, _NONE = BodySendMode.BUFFERED_PARTIAL, BodySendMode.FULL_DUPLEX_STREAMED, BodySendMode.NONE


class _MadeBody:
    """The body that a processor has given to a request without one, where the conductor looks for a body."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


class ExternalProcessor(Filter):
    """One stream for each exchange; on a Backend, one for each attempt. Whatever it raises is a failure of the
    processor, named by its class, but for Rejected.
    """

    def __init__(self, context: FilterContext) -> None:
        config: ExternalProcessorConfig = context.config
        self._config = config
        self._settings = SessionSettings(config)
        self._source = context.source
        self._checker = MutationChecker(config.mutation_rules, rejected_mutations(context.meter).add)
        self._shown = forwarded(config.forward_rules)
        calls = [context.calls[ref.label] for ref in config.backend_refs if ref.label in context.calls]
        self._calls = cycle(calls)  # empty while a configuration is only checked, and nothing is asked then
        self._note = f"ext_proc {id(self)}"
        self._observes = config.observability_mode
        mode = self._settings.mode
        shown = _SEND in (mode.request_trailer_mode, mode.response_trailer_mode)
        self.sees_trailers = shown or config.allow_mode_override
        self.max_buffer_bytes = config.max_body_bytes
        request, response = Phase.REQUEST_HEADERS, Phase.RESPONSE_HEADERS
        self._is_of_backend = context.phase is Phase.BACKEND_REQUEST
        if self._is_of_backend:
            request, response = Phase.BACKEND_REQUEST, Phase.BACKEND_RESPONSE
        self.runs_in = frozenset((request, Phase.REQUEST_BODY, response, Phase.RESPONSE_BODY))

    # --- phases ------------------------------------------------------------------------------------------------------
    async def request_headers(self, x: Exchange) -> LocalResponse | None:
        """Open the stream, show the head of the request, and do what the processor says."""
        session = self._begin(x)
        try:
            return await self._request_headers(session, x)
        except BaseException:  # cancelled, too: its time is over, or the client has left
            session.give_up()
            raise

    async def backend_request(self, x: Exchange) -> LocalResponse | None:
        """As `request_headers`, unless the head was shown with a body that is taken whole, which comes before it."""
        return None if self._of_attempt(x) is not None else await self.request_headers(x)

    async def response_headers(self, x: Exchange) -> LocalResponse | None:
        """Show the head of the response, and do what the processor says."""
        session = self._session(x)
        if session is None:
            return None
        try:
            return await self._response_headers(session, x)
        except BaseException:  # cancelled, too: its time is over, or the client has left
            session.give_up()
            raise

    backend_response = response_headers

    def body_mode_for(self, x: Exchange, phase: Phase) -> BodyMode | None:
        """As the mode of this exchange says; for the request of a backend, whose session has not begun, the config."""
        of_request = phase is Phase.REQUEST_BODY
        if of_request and self._is_of_backend:
            return body_mode(self._settings.mode.request_body_mode, is_held=True)
        session = self._session(x)
        if session is None:
            return None
        new = session.new_request if of_request else session.new_response
        if new is not None:
            return BodyMode.BUFFER if of_request and session.has_made_body else BodyMode.STREAM
        if session.has_failed:
            return BodyMode.STREAM  # the body method raises what has happened meanwhile
        mode = session.mode.request_body_mode if of_request else session.mode.response_body_mode
        return None if session.is_over else body_mode(mode, is_held=of_request or not is_event_stream(x))

    async def request_body(self, x: Exchange, data: bytes, last: bool) -> bytes | LocalResponse:
        """Show the body, or a piece of it. Returns what the processor has made of it."""
        if self._is_of_backend and self._of_attempt(x) is None:
            answer = await self.request_headers(x)
            if answer is not None:
                return answer
        return await self._body(x, MessagePart.REQUEST_BODY, data, last=last)

    async def response_body(self, x: Exchange, data: bytes, last: bool) -> bytes | LocalResponse:
        """As `request_body`. Raises Rejected for an immediate response that comes too late."""
        return await self._body(x, MessagePart.RESPONSE_BODY, data, last=last)

    async def request_trailers(self, x: Exchange, fields: Fields) -> None:
        """Show the trailers, and do what the processor says. Where its mode is not SEND, none go on.

        Raises Rejected for an immediate response, which comes too late.
        """
        await self._trailers(x, MessagePart.REQUEST_TRAILERS, fields)

    async def response_trailers(self, x: Exchange, fields: Fields) -> None:
        """As `request_trailers`."""
        await self._trailers(x, MessagePart.RESPONSE_TRAILERS, fields)

    def complete(self, x: Exchange) -> None:
        """End the stream."""
        session: ProcessorSession | None = x.notes.pop(self._note, None) if x.notes is not None else None
        if session is not None:
            session.finish()

    # --- heads -------------------------------------------------------------------------------------------------------
    async def _request_headers(self, session: ProcessorSession, x: Exchange) -> LocalResponse | None:
        if session.mode.request_header_mode is not _SEND:
            return None
        has_body = x.request.body != 0 and not x.is_tunnel
        message = ProcessingRequest(
            MessagePart.REQUEST_HEADERS,
            request_lines(x, self._shown),
            end_of_stream=not has_body,
            attributes=self._attributes(self._config.request_attributes, x),
            metadata=known_metadata(x, self._config.metadata_options.forwarding_namespaces),
            observability_mode=self._observes,
        )
        answer = None
        if self._observes:
            session.tell(message)
        elif has_body and session.mode.request_body_mode is _DUPLEX:
            session.check()  # the processor may answer when it has the body: the answer is waited for there
            session.late_head = session.expect(MessagePart.REQUEST_HEADERS)
            session.tell(message)
        else:
            response = await session.ask(message)
            answer = self._take_request_head(session, x, response, has_body=has_body)
        if x.is_tunnel:
            session.finish()
        return answer

    async def _response_headers(self, session: ProcessorSession, x: Exchange) -> LocalResponse | None:
        if session.is_off:
            return None
        session.check()
        if session.is_over or session.mode.response_header_mode is not _SEND:
            return None
        has_body = x.response.body != 0 and x.request.method != b"HEAD"
        message = ProcessingRequest(
            MessagePart.RESPONSE_HEADERS,
            response_lines(x, self._shown),
            end_of_stream=not has_body,
            attributes=self._attributes(self._config.response_attributes, x),
            metadata=known_metadata(x, self._config.metadata_options.forwarding_namespaces),
            observability_mode=self._observes,
        )
        answer = None
        if self._observes:
            session.tell(message)
        elif has_body and session.mode.response_body_mode is _DUPLEX and not is_event_stream(x):
            session.late_head = session.expect(MessagePart.RESPONSE_HEADERS)
            session.tell(message)
        else:
            response = await session.ask(message)
            answer = self._take_response_head(session, x, response, has_body=has_body)
        if x.response.status == 101:
            session.finish()
        return answer

    def _take_request_head(
        self, session: ProcessorSession, x: Exchange, response: ProcessingResponse | None, *, has_body: bool
    ) -> LocalResponse | None:
        """Do what the answer to the head of the request says."""
        if response is None:
            return self._immediate(session, x)
        # The request of a backend goes as the config says: that was decided before the processor was asked.
        session.override(response.mode_override, of_response=self._is_of_backend)
        keep_metadata(x, response, self._config.metadata_options.receiving_namespaces)
        try:
            self._checker.change_request(response.headers, x, replaces=response.replaces)
        except Exception as error:
            raise session.failed(error) from None
        if response.replaces:
            session.mode = replace(session.mode, request_body_mode=_NONE, request_trailer_mode=HeaderSendMode.SKIP)
            body = response.body or b""
            if self._is_of_backend and not has_body and body:
                raise session.failed(InvalidMessage())  # where it would go, nobody looks for a body any more
            if has_body:
                session.new_request = body
            elif body and not x.is_tunnel:
                session.new_request = body
                session.has_made_body = True
                x.note(HELD, _MadeBody(body))
                x.request.body = len(body)
        return None

    def _take_response_head(
        self, session: ProcessorSession, x: Exchange, response: ProcessingResponse | None, *, has_body: bool
    ) -> LocalResponse | None:
        """Do what the answer to the head of the response says."""
        if response is None:
            return self._immediate(session, x)
        session.override(response.mode_override, of_response=True)
        keep_metadata(x, response, self._config.metadata_options.receiving_namespaces)
        try:
            self._checker.change_response(response.headers, x)
        except Exception as error:
            raise session.failed(error) from None
        if response.replaces:
            session.mode = replace(session.mode, response_body_mode=_NONE, response_trailer_mode=HeaderSendMode.SKIP)
            body = response.body or b""
            if has_body:
                session.new_response = body
            elif body and x.request.method != b"HEAD" and x.response.status not in (101, 204, 205, 304):
                return LocalResponse(x.response.status, tuple(x.response.fields), body, x.response.phrase)
        return None

    # --- bodies ------------------------------------------------------------------------------------------------------
    async def _body(self, x: Exchange, part: MessagePart, data: bytes, *, last: bool) -> bytes | LocalResponse:
        session = self._session(x)
        if session is None:
            return data
        try:
            made = await self._changed_body(session, x, part, data, last=last)
            if session.immediate is not None and not session.is_off:
                answer = self._immediate(session, x)
                if answer is not None:
                    return self._in_time(answer, x, part, session)
            return made
        except BaseException:  # cancelled, too: its time is over, or the client has left
            session.give_up()
            raise

    async def _changed_body(
        self, session: ProcessorSession, x: Exchange, part: MessagePart, data: bytes, *, last: bool
    ) -> bytes:
        of_request = part is MessagePart.REQUEST_BODY
        new = session.new_request if of_request else session.new_response
        if new is not None:
            if of_request:
                session.new_request = b""
            else:
                session.new_response = b""
            return new
        session.check()
        mode = session.mode.request_body_mode if of_request else session.mode.response_body_mode
        if session.is_over or session.is_off:
            return data
        trailers = trailers_behind(session, x, part, self._shown) if last else None
        is_end = last and trailers is None  # of the stream
        if self._observes:
            tell_body(session, part, data, last=is_end)
            return data
        if mode is _STREAMED:
            return await streamed(session, part, data, last=is_end)
        if mode is _PARTIAL:
            return await partial(session, part, data, self.max_buffer_bytes, last=last, is_end=is_end)
        if mode is _DUPLEX:
            if of_request or not is_event_stream(x):
                return await self._duplex_whole(session, x, part, data, trailers)
            if trailers is None:
                return await duplex_piece(session, part, data, last=last)
            return await last_duplex_piece(session, part, data, trailers)
        response = await session.ask(ProcessingRequest(part, body=data, end_of_stream=is_end))
        return self._take_whole(session, x, part, data, response)

    async def _duplex_whole(
        self,
        session: ProcessorSession,
        x: Exchange,
        part: MessagePart,
        data: bytes,
        trailers: ProcessingRequest | None,
    ) -> bytes:
        """FULL_DUPLEX_STREAMED, of a body that is here: the head waits until its answer has come, too."""
        session.collected.add(part)
        for piece, is_last in pieces_of(data, last=trailers is None):
            await session.stream_body(part, piece, is_last=is_last)
        behind = None
        if trailers is not None:
            behind = session.expect(trailers.part)
            session.tell(trailers)
        head, session.late_head = session.late_head, None
        if head is not None:
            of_request = part is MessagePart.REQUEST_BODY
            head_part = MessagePart.REQUEST_HEADERS if of_request else MessagePart.RESPONSE_HEADERS
            response = await session.answered(head_part, head)
            if response is None and (session.immediate is not None or session.is_over):
                return unanswered(session, data)
            if of_request:
                self._take_request_head(session, x, response, has_body=True)
                new, session.new_request = session.new_request, None
            else:
                self._take_response_head(session, x, response, has_body=True)
                new, session.new_response = session.new_response, None
            if new is not None:
                return new
        if trailers is not None and behind is not None:
            return await before_trailers(session, part, trailers.part, behind)
        made = []
        while True:
            pieces = await session.next_streamed(part)
            made += [piece.body for piece in pieces]
            if pieces and pieces[-1].end_of_stream:
                return b"".join(made)
            if not pieces:
                return unanswered(session, data if not made else None)

    def _take_whole(
        self,
        session: ProcessorSession,
        x: Exchange,
        part: MessagePart,
        data: bytes,
        response: ProcessingResponse | None,
    ) -> bytes:
        """The answer to a body BUFFERED may change the head, too: that has not gone yet."""
        if response is None:
            return data
        try:
            if part is MessagePart.REQUEST_BODY:
                self._checker.change_request(response.headers, x)
            else:
                self._checker.change_response(response.headers, x)
        except Exception as error:
            raise session.failed(error) from None
        keep_metadata(x, response, self._config.metadata_options.receiving_namespaces)
        return data if response.body is None else response.body

    # --- trailers ----------------------------------------------------------------------------------------------------
    async def _trailers(self, x: Exchange, part: MessagePart, fields: Fields) -> None:
        session = self._session(x)
        modes = session.mode if session is not None else self._settings.mode
        of_request = part is MessagePart.REQUEST_TRAILERS
        if (modes.request_trailer_mode if of_request else modes.response_trailer_mode) is not _SEND:
            fields.block = b""
            return
        if session is None:
            return
        try:
            await self._changed_trailers(session, x, part, fields)
        except BaseException:  # cancelled, too: its time is over, or the client has left
            session.give_up()
            raise

    async def _changed_trailers(
        self, session: ProcessorSession, x: Exchange, part: MessagePart, fields: Fields
    ) -> None:
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
        if response is None:
            answer = self._immediate(session, x)
            if answer is not None:
                raise Rejected("the processor answered in place of trailers", status=answer.status)
            return
        keep_metadata(x, response, self._config.metadata_options.receiving_namespaces)
        try:
            self._checker.change_trailers(response.headers, fields)
        except Exception as error:
            raise session.failed(error) from None

    # --- immediate responses -----------------------------------------------------------------------------------------
    def _immediate(self, session: ProcessorSession, x: Exchange) -> LocalResponse | None:
        """The response that the processor wants the client to have; None: none. Raises InvalidMessage."""
        immediate, session.immediate = session.immediate, None
        if immediate is None:
            return None
        session.finish()
        if self._config.disable_immediate_response:
            return None
        status = immediate.status or 200
        if not 200 <= status <= 599 or status == 407:
            raise session.failed(InvalidMessage())
        fields = Fields()
        if immediate.body:
            fields.add(b"content-type", b"text/plain")
        try:
            self._checker.change_answer(immediate.headers, fields)
        except Exception as error:
            raise session.failed(error) from None
        if status >= 400:
            x.reason, x.rule, x.denied = Reason.FILTER_REJECTED, self._source, True
            x.detail = immediate.details[:_MAX_DETAILS]
        return local_response(immediate, status, fields, x)

    def _in_time(
        self, answer: LocalResponse, x: Exchange, part: MessagePart, session: ProcessorSession
    ) -> LocalResponse:
        """The answer, where the head has not gone yet. Raises Rejected, which breaks the response off."""
        mode = session.mode.response_body_mode
        is_held = mode is _BUFFERED or (mode is _DUPLEX and not is_event_stream(x))
        if part is MessagePart.REQUEST_BODY or is_held:
            return answer
        raise Rejected("the processor ended the response with one of its own", status=answer.status)

    # --- what goes with a message ------------------------------------------------------------------------------------
    def _attributes(self, names: tuple[str, ...], x: Exchange) -> dict[str, dict[str, object]]:
        return {_NAMESPACE: attributes(names, x)} if names else {}

    # --- the session -------------------------------------------------------------------------------------------------
    def _begin(self, x: Exchange) -> ProcessorSession:
        """A session of this exchange, or of this attempt: one of the attempt before it is given up."""
        before: ProcessorSession | None = x.notes.get(self._note) if x.notes is not None else None
        if before is not None:
            before.close()
        call = next(self._calls, None)
        if call is None:
            raise StreamBroke("there is no backend to call")
        session = ProcessorSession(self._settings, call, x)
        x.note(self._note, session)
        return session

    def _of_attempt(self, x: Exchange) -> ProcessorSession | None:
        """The session of this attempt, if it has begun."""
        session: ProcessorSession | None = x.notes.get(self._note) if x.notes is not None else None
        return session if session is not None and session.attempt == x.attempts else None

    def _session(self, x: Exchange) -> ProcessorSession | None:
        """The session, while the processor may be asked."""
        session: ProcessorSession | None = x.notes.get(self._note) if x.notes is not None else None
        return None if session is None or session.is_off else session

    def __repr__(self) -> str:
        return f"ExternalProcessor({', '.join(ref.label for ref in self._config.backend_refs)})"


def _refs(config: ExternalProcessorConfig) -> tuple[tuple[str, CalledBackendRef], ...]:
    return tuple((f"backendRefs[{index}]", ref) for index, ref in enumerate(config.backend_refs))


EXTERNAL_PROCESSOR: Final = FilterType(
    name="egressproxy.io/ExternalProcessor:v1",
    phases=frozenset((Phase.REQUEST_HEADERS, Phase.BACKEND_REQUEST)),
    config_model=ExternalProcessorConfig,
    build=ExternalProcessor,
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.BACKEND_RESPONSE, Phase.RESPONSE_BODY)),
    backend_refs=_refs,
    summary="Shows exchanges to a server that speaks Envoy's ext_proc, and does what it says.",
)
