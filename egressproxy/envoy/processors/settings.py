"""The config of ExternalProcessor, in the names of Envoy's ext_proc filter.

Source: Envoy API v3, extensions/filters/http/ext_proc/v3/ext_proc.proto and processing_mode.proto,
HeaderMutationRules. `grpc_service` is `backendRefs` here, and `failure_mode_allow` is
the extension's `failOpen`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Literal

from egressproxy.envoy.ext_proc.messages import BodySendMode, HeaderSendMode, ProcessingMode
from egressproxy.envoy.processors.attributes import REQUEST_ATTRIBUTES, RESPONSE_ATTRIBUTES
from egressproxy.filters.settings import (
    CalledGrpcBackendRef,
    Checked,
    FieldName,
    FieldValue,
    FilterConfig,
    Within,
    duration_of_at_most,
)
from egressproxy.ir.policy import FieldFault


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def _attribute(name: str, known: frozenset[str]) -> str:
    if name not in known:
        raise ValueError(f"{name!r} is not an attribute that is known here: {', '.join(sorted(known))}")
    return name


#: ext_proc.proto: message_timeout and max_message_timeout are at most an hour.
DurationText = Annotated[str, duration_of_at_most(3600.0, "an hour")]
RequestAttribute = Annotated[str, Checked(partial(_attribute, known=REQUEST_ATTRIBUTES))]
ResponseAttribute = Annotated[str, Checked(partial(_attribute, known=REQUEST_ATTRIBUTES | RESPONSE_ATTRIBUTES))]
Expression = Annotated[str, Within(max_length=1024), Checked(_expression)]
Namespaces = Annotated[tuple[Annotated[str, Within(min_length=1, max_length=253)], ...], Within(max_length=64)]

_HeaderMode = Literal["DEFAULT", "SEND", "SKIP"]
_BodyMode = Literal["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]


@dataclass(frozen=True, slots=True)
class ModeConfig(FilterConfig):
    """Which parts of an exchange the processor is sent. DEFAULT sends headers and skips trailers."""

    request_header_mode: _HeaderMode = "DEFAULT"
    response_header_mode: _HeaderMode = "DEFAULT"
    request_body_mode: _BodyMode = "NONE"
    response_body_mode: _BodyMode = "NONE"
    request_trailer_mode: _HeaderMode = "DEFAULT"
    response_trailer_mode: _HeaderMode = "DEFAULT"

    def __post_init__(self) -> None:
        for body, trailers, field in (
            (self.request_body_mode, self.request_trailer_mode, "requestTrailerMode"),
            (self.response_body_mode, self.response_trailer_mode, "responseTrailerMode"),
        ):
            if body == "FULL_DUPLEX_STREAMED" and trailers != "SEND":
                raise FieldFault("a body that is sent FULL_DUPLEX_STREAMED needs the trailer mode SEND", field)

    @property
    def mode(self) -> ProcessingMode:
        """As the protocol has it, with the defaults of DEFAULT."""
        send, skip = HeaderSendMode.SEND, HeaderSendMode.SKIP

        def of(name: str, default: HeaderSendMode) -> HeaderSendMode:
            return HeaderSendMode[name] or default

        return ProcessingMode(
            of(self.request_header_mode, send),
            of(self.response_header_mode, send),
            BodySendMode[self.request_body_mode],
            BodySendMode[self.response_body_mode],
            of(self.request_trailer_mode, skip),
            of(self.response_trailer_mode, skip),
        )


@dataclass(frozen=True, slots=True)
class MutationRules(FilterConfig):
    """Which fields the processor may change. Fields that the gateway itself writes (framing, this hop) never."""

    allow_all_routing: bool = False
    """`:authority`, `host` and `:method` too. The Host that is sent changes, never the place that is dialled."""
    allow_envoy: bool = False
    """Fields that begin with x-envoy, too."""
    disallow_system: bool = False
    """No pseudo-header, such as `:path`."""
    disallow_all: bool = False
    """No fields except those of `allowExpression`."""
    allow_expression: Expression = ""
    """A regular expression of names that may be changed, whatever the switches above say."""
    disallow_expression: Expression = ""
    """A regular expression of names that may not be changed."""
    disallow_is_error: bool = False
    """A change that is not allowed is a failure of the processor. By default it is left out."""


@dataclass(frozen=True, slots=True)
class ForwardRules(FilterConfig):
    """Which fields the processor is shown; names are exact, or end in `*`. Pseudo-headers count as fields."""

    allowed_headers: Annotated[tuple[str, ...], Within(max_length=256)] = ()
    """Empty: all."""
    disallowed_headers: Annotated[tuple[str, ...], Within(max_length=256)] = ()
    """Beats `allowedHeaders`."""


SHOWS_ALL: Final = ForwardRules()
USUAL_RULES: Final = MutationRules()


@dataclass(frozen=True, slots=True)
class MetadataOptions(FilterConfig):
    """Dynamic metadata: what processors of one exchange tell each other."""

    forwarding_namespaces: Namespaces = ()
    """What earlier processors have said under these is shown as metadata_context."""
    receiving_namespaces: Namespaces = ()
    """What this one says under these is kept."""


@dataclass(frozen=True, slots=True)
class InitialMetadata(FilterConfig):
    """A field of the call to the processor."""

    key: FieldName
    value: FieldValue

    def __post_init__(self) -> None:
        if self.key.lower().startswith("grpc-") or self.key.lower() in ("te", "content-type", "host"):
            raise FieldFault(f"{self.key} is written by gRPC itself", "key")


@dataclass(frozen=True, slots=True)
class ExternalProcessorConfig(FilterConfig):
    """ExternalProcessor."""

    backend_refs: Annotated[tuple[CalledGrpcBackendRef, ...], Within(min_length=1, max_length=16)]
    """The processor. With several each exchange goes to the next one."""
    processing_mode: ModeConfig = ModeConfig()
    """What the processor is sent. By default the heads of requests and responses."""
    allow_mode_override: bool = False
    """The processor may change the mode of an exchange in its answer to headers."""
    message_timeout: DurationText = ""
    """How long it may take to answer a message. By default the extension's `timeout` alone bounds it."""
    max_message_timeout: DurationText = ""
    """The longest `override_message_timeout` that it may ask for. By default it may not ask."""
    max_body_bytes: Annotated[int, Within(ge=1, le=64 * 1024 * 1024)] = 1024 * 1024
    """The longest body that BUFFERED takes. BUFFERED_PARTIAL sends this much, and lets the rest pass."""
    request_attributes: tuple[RequestAttribute, ...] = ()
    """Attributes that go with the first message of a request."""
    response_attributes: tuple[ResponseAttribute, ...] = ()
    """Attributes that go with the first message of a response."""
    mutation_rules: MutationRules = MutationRules()
    """The fields that the processor may change."""
    forward_rules: ForwardRules = ForwardRules()
    """The fields that the processor sees, in attributes, too. By default all."""
    metadata_options: MetadataOptions = MetadataOptions()
    """Dynamic metadata that it gets and gives."""
    disable_immediate_response: bool = False
    """An immediate response is not sent: the processor is asked nothing more of this exchange."""
    observability_mode: bool = False
    """It is told, and not waited for: its answers are ignored. Bodies go STREAMED or not at all."""
    deferred_close_timeout: DurationText = "5s"
    """How long the processor may take to end a stream that we have ended."""
    grpc_initial_metadata: Annotated[tuple[InitialMetadata, ...], Within(max_length=32)] = ()
    """Fields of each call, to which the filters of the backend may add."""

    def __post_init__(self) -> None:
        mode = self.processing_mode
        bodies = {mode.request_body_mode, mode.response_body_mode}
        if self.observability_mode and bodies - {"NONE", "STREAMED"}:
            raise FieldFault("observabilityMode sends bodies STREAMED or NONE; change processingMode", "processingMode")
        if self.observability_mode and self.allow_mode_override:
            why = "observabilityMode ignores all answers, so that allowModeOverride has no effect"
            raise FieldFault(why, "allowModeOverride")
