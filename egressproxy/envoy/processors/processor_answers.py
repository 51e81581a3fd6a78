"""ProcessorAnswers: does with an exchange what a processor has answered.

Source: Envoy API v3, service/ext_proc/v3/external_processor.proto.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, ParamSpec

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    ImmediateResponse,
    MessagePart,
    ProcessingResponse,
)
from egressproxy.envoy.processors.attributes import keep_metadata
from egressproxy.envoy.processors.mutations import MutationChecker
from egressproxy.envoy.processors.session import InvalidMessage, ProcessorSession
from egressproxy.envoy.processors.settings import ExternalProcessorConfig
from egressproxy.errors import Reason
from egressproxy.filters.base import Rejected
from egressproxy.gateway.backends.buffered_body import BUFFERED_REQUEST, MADE_BODY
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.grpc.statuses import encoded_message, is_grpc

P = ParamSpec("P")

_MAX_DETAILS: Final = 200

_BUFFERED, _DUPLEX, _NONE = BodySendMode.BUFFERED, BodySendMode.FULL_DUPLEX_STREAMED, BodySendMode.NONE


class ProcessorAnswers:
    """What all exchanges of one filter share: what a processor may change, and what is kept of what it says."""

    __slots__ = ("_checker", "_ignores_immediate", "_is_of_backend", "_namespaces", "_source")

    def __init__(
        self, config: ExternalProcessorConfig, checker: MutationChecker, source: str, *, is_of_backend: bool
    ) -> None:
        """`source`: the object that declares the filter; `is_of_backend`: it runs for each attempt."""
        self._checker = checker
        self._source = source
        self._is_of_backend = is_of_backend
        self._namespaces = config.metadata_options.receiving_namespaces
        self._ignores_immediate = config.disable_immediate_response

    def take_request_head(
        self, session: ProcessorSession, exchange: Exchange, response: ProcessingResponse | None, *, has_body: bool
    ) -> LocalResponse | None:
        """Do what the answer to the head of the request says; `has_body`: that has one. Returns an immediate response.
        Raises InvalidMessage, HeaderNotAllowed and InvalidMutation.
        """
        if response is None:
            return self.immediate(session, exchange)
        # The request of a backend goes as the config says: that was decided before the processor was asked.
        session.override(response.mode_override, of_response=self._is_of_backend)
        keep_metadata(exchange, response, self._namespaces)
        self._change(session, self._checker.change_request, response.headers, exchange, replaces=response.replaces)
        if response.replaces:
            session.mode = replace(session.mode, request_body_mode=_NONE, request_trailer_mode=HeaderSendMode.SKIP)
            body = response.body or b""
            if self._is_of_backend and not has_body and body:
                raise session.failed(InvalidMessage())  # where it would go, nobody looks for a body any more
            if has_body:
                session.new_request = body
            elif body and not exchange.is_tunnel:
                session.new_request = body
                session.has_made_body = True
                exchange.take(BUFFERED_REQUEST)  # the client has sent none
                exchange.keep(MADE_BODY, body)
                exchange.request.body = len(body)
        return None

    def take_response_head(
        self, session: ProcessorSession, exchange: Exchange, response: ProcessingResponse | None, *, has_body: bool
    ) -> LocalResponse | None:
        """As `take_request_head`. Returns a response, too, where a body is put behind a head without one."""
        if response is None:
            return self.immediate(session, exchange)
        session.override(response.mode_override, of_response=True)
        keep_metadata(exchange, response, self._namespaces)
        self._change(session, self._checker.change_response, response.headers, exchange)
        if response.replaces:
            session.mode = replace(session.mode, response_body_mode=_NONE, response_trailer_mode=HeaderSendMode.SKIP)
            body = response.body or b""
            if has_body:
                session.new_response = body
            elif body and exchange.request.method != b"HEAD" and exchange.response.status not in (101, 204, 205, 304):
                return LocalResponse(
                    exchange.response.status, tuple(exchange.response.fields), body, exchange.response.phrase
                )
        return None

    def take_whole_body(
        self,
        session: ProcessorSession,
        exchange: Exchange,
        part: MessagePart,
        data: bytes,
        response: ProcessingResponse | None,
    ) -> bytes:
        """The body as the answer to one BUFFERED has it, and the head, which has not gone yet. Raises as the others."""
        if response is None:
            return data
        of_request = part is MessagePart.REQUEST_BODY
        change = self._checker.change_request if of_request else self._checker.change_response
        self._change(session, change, response.headers, exchange)
        keep_metadata(exchange, response, self._namespaces)
        return data if response.body is None else response.body

    def take_trailers(
        self, session: ProcessorSession, exchange: Exchange, fields: Fields, response: ProcessingResponse | None
    ) -> None:
        """Change trailers. Raises Rejected for an immediate response; HeaderNotAllowed and InvalidMutation."""
        if response is None:
            answer = self.immediate(session, exchange)
            if answer is not None:
                raise Rejected("the processor answered in place of trailers", status=answer.status)
            return
        keep_metadata(exchange, response, self._namespaces)
        self._change(session, self._checker.change_trailers, response.headers, fields)

    @staticmethod
    def _change(session: ProcessorSession, change: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """The session fails with what the change raises."""
        try:
            change(*args, **kwargs)
        except Exception as error:
            raise session.failed(error) from None

    def immediate(self, session: ProcessorSession, exchange: Exchange) -> LocalResponse | None:
        """The response that the processor wants the client to have; None: none. Raises InvalidMessage."""
        immediate, session.immediate = session.immediate, None
        if immediate is None:
            return None
        session.finish()
        if self._ignores_immediate:
            return None
        status = immediate.status or 200
        if not 200 <= status <= 599 or status == 407:
            raise session.failed(InvalidMessage())
        fields = Fields()
        if immediate.body:
            fields.add(b"content-type", b"text/plain")
        self._change(session, self._checker.change_answer, immediate.headers, fields)
        if status >= 400:
            exchange.reason, exchange.rule, exchange.denied = Reason.FILTER_REJECTED, self._source, True
            exchange.detail = immediate.details[:_MAX_DETAILS]
        return local_response(immediate, status, fields, exchange)

    def in_time(
        self, answer: LocalResponse, exchange: Exchange, part: MessagePart, session: ProcessorSession
    ) -> LocalResponse:
        """The answer, where the head has not gone yet. Raises Rejected, which breaks the response off."""
        if part is MessagePart.REQUEST_BODY:
            return answer
        mode = session.mode.response_body_mode
        if mode is _BUFFERED or (mode is _DUPLEX and not is_event_stream(exchange)):
            return answer
        raise Rejected("the processor ended the response with one of its own", status=answer.status)


def local_response(immediate: ImmediateResponse, status: int, fields: Fields, exchange: Exchange) -> LocalResponse:
    """The response that a processor wants a client to have, with these fields; in the words of gRPC for a call."""
    if immediate.grpc_status is not None and is_grpc(exchange.request.fields.get(b"content-type")):
        fields.set(b"content-type", b"application/grpc")
        fields.set(b"grpc-status", b"%d" % immediate.grpc_status)
        if immediate.body:
            fields.set(b"grpc-message", encoded_message(immediate.body.decode("utf-8", "replace")))
        return LocalResponse(200, tuple(fields))
    return LocalResponse(status, tuple(fields), b"" if status in (204, 205, 304) else immediate.body)


def is_event_stream(exchange: Exchange) -> bool:
    """Whether the response goes on as it comes (a stream of events has no end that is worth waiting for)."""
    content_type = exchange.response.fields.get(b"content-type") or b""
    return content_type.lower().startswith(b"text/event-stream")
