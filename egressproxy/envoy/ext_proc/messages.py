"""The messages between Envoy and an external processor, as values. Pure. Sources: Envoy API v3,
service/ext_proc/v3/external_processor.proto, extensions/filters/http/ext_proc/v3/processing_mode.proto,
config/core/v3/base.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Final

from egressproxy.envoy.field_change import FieldChange

#: The path of the method.
PROCESS: Final = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"

#: A google.protobuf.Struct: texts, numbers (float), booleans, None, lists and Structs by names.
Struct = Mapping[str, Any]


class MessagePart(Enum):
    """The part of an exchange that a message is about; the values are the field names in both messages."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


class HeaderSendMode(IntEnum):
    """ProcessingMode.HeaderSendMode. DEFAULT sends headers and skips trailers; in an override it changes nothing."""

    DEFAULT = 0
    SEND = 1
    SKIP = 2


class BodySendMode(IntEnum):
    """ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@dataclass(frozen=True, slots=True)
class ProcessingMode:
    """The parts of an exchange that are sent to the processor."""

    request_header_mode: HeaderSendMode = HeaderSendMode.DEFAULT
    response_header_mode: HeaderSendMode = HeaderSendMode.DEFAULT
    request_body_mode: BodySendMode = BodySendMode.NONE
    response_body_mode: BodySendMode = BodySendMode.NONE
    request_trailer_mode: HeaderSendMode = HeaderSendMode.DEFAULT
    response_trailer_mode: HeaderSendMode = HeaderSendMode.DEFAULT


@dataclass(frozen=True, slots=True)
class ProtocolConfiguration:
    """The client's body modes, sent with the first message of a stream."""

    request_body_mode: BodySendMode = BodySendMode.NONE
    response_body_mode: BodySendMode = BodySendMode.NONE
    send_body_without_waiting_for_header_response: bool = False


@dataclass(frozen=True, slots=True)
class ProcessingRequest:
    """A message to the processor.

    Attributes:
        part: what it holds.
        fields: the headers (with pseudo-headers, names in lower case) or the trailers.
        body: a piece of a body, or the whole.
        end_of_stream: of headers: there is no body and there are no trailers. Of a body: this is the last piece, and
            there are no trailers.
        attributes: by the name of the filter that sets them.
        metadata: metadata_context.filter_metadata, by namespace.
    """

    part: MessagePart
    fields: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    end_of_stream: bool = False
    attributes: Mapping[str, Struct] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, Struct] = field(default_factory=dict, repr=False)
    observability_mode: bool = False
    protocol: ProtocolConfiguration | None = None


@dataclass(frozen=True, slots=True)
class StreamedBody:
    """StreamedBodyResponse: a piece of a body in FULL_DUPLEX_STREAMED. `end_of_stream`: the last piece."""

    body: bytes = field(default=b"", repr=False)
    end_of_stream: bool = False


@dataclass(frozen=True, slots=True)
class ImmediateResponse:
    """The response to the client that ends the exchange. `grpc_status` None: not gRPC."""

    status: int
    headers: tuple[FieldChange, ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    grpc_status: int | None = None
    details: str = ""


@dataclass(frozen=True, slots=True)
class ProcessingResponse:
    """A message of the processor.

    Attributes:
        part: the part of the request; None for an immediate response, and for an extension of the timeout.
        replaces: the status is CONTINUE_AND_REPLACE.
        headers: the changes of headers or trailers, removals first.
        body: the new body of the message, b"" if cleared; None: unchanged.
        streamed: a piece of a body in FULL_DUPLEX_STREAMED.
        override_message_timeout_s: seconds; None: no extension.
    """

    part: MessagePart | None = None
    replaces: bool = False
    headers: tuple[FieldChange, ...] = field(default=(), repr=False)
    body: bytes | None = field(default=None, repr=False)
    streamed: StreamedBody | None = None
    clear_route_cache: bool = False
    immediate: ImmediateResponse | None = None
    dynamic_metadata: Struct = field(default_factory=dict, repr=False)
    mode_override: ProcessingMode | None = None
    override_message_timeout_s: float | None = None
