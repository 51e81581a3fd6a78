"""The messages of envoy.service.ext_proc.v3.ExternalProcessor/Process as bytes, for both ends. Pure. Import it only
where external processing is configured: see `model/protobuf`. Sources: as `messages`; google/protobuf/struct.proto and
duration.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    ImmediateResponse,
    MessagePart,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StreamedBody,
    Struct,
)
from egressproxy.model.field_change import FieldAction, FieldChange
from egressproxy.model.protobuf import WireError, message_types, parsed, text_bytes, without_defaults

M = TypeVar("M", HeaderSendMode, BodySendMode)

#: Enums and booleans are varints. The fields of a oneof stand alone here: that two of them are set is seen.
_TYPES: Final = message_types(
    "envoy.ext_proc",
    {
        "Request": "request_headers=2:HttpHeaders response_headers=3:HttpHeaders request_body=4:HttpBody"
        " response_body=5:HttpBody request_trailers=6:HttpTrailers response_trailers=7:HttpTrailers"
        " metadata_context=8:Metadata attributes=9*:NamedStruct observability_mode=10:uint64"
        " protocol_config=11:ProtocolConfiguration",
        "HttpHeaders": "headers=1:HeaderMap end_of_stream=3:uint64",
        "HttpBody": "body=1:bytes end_of_stream=2:uint64",
        "HttpTrailers": "trailers=1:HeaderMap",
        "HeaderMap": "headers=1*:HeaderValue",
        "HeaderValue": "key=1:bytes value=2:bytes raw_value=3:bytes",
        "Metadata": "filter_metadata=1*:NamedStruct",
        "NamedStruct": "key=1 value=2:Struct",
        "ProtocolConfiguration": "request_body_mode=1:uint64 response_body_mode=2:uint64"
        " send_body_without_waiting_for_header_response=3:uint64",
        "Response": "request_headers=1:Common response_headers=2:Common request_body=3:Common"
        " response_body=4:Common request_trailers=5:Trailers response_trailers=6:Trailers"
        " immediate_response=7:Immediate dynamic_metadata=8:Struct mode_override=9:ProcessingMode"
        " override_message_timeout=10:Duration",
        "Common": "response=1:CommonResponse",
        "CommonResponse": "status=1:uint64 header_mutation=2:HeaderMutation body_mutation=3:BodyMutation"
        " clear_route_cache=5:uint64",
        "Trailers": "header_mutation=1:HeaderMutation",
        "HeaderMutation": "set_headers=1*:HeaderValueOption remove_headers=2*:bytes",
        "HeaderValueOption": "header=1:HeaderValue append=2:BoolValue append_action=3:uint64",
        "BoolValue": "value=1:uint64",
        "BodyMutation": "body=1:bytes clear_body=2:uint64 streamed_response=3:StreamedBodyResponse",
        "StreamedBodyResponse": "body=1:bytes end_of_stream=2:uint64",
        "Immediate": "status=1:Code headers=2:HeaderMutation body=3:bytes grpc_status=4:GrpcStatus details=5:bytes",
        "Code": "code=1:uint64",
        "GrpcStatus": "status=1:uint64",
        "ProcessingMode": "request_header_mode=1:uint64 response_header_mode=2:uint64 request_body_mode=3:uint64"
        " response_body_mode=4:uint64 request_trailer_mode=5:uint64 response_trailer_mode=6:uint64",
        "Duration": "seconds=1:uint64 nanos=2:uint64",
        "Struct": "fields=1*:Field",
        "Field": "key=1 value=2:Value",
        "Value": "null_value=1:uint64 number_value=2:double string_value=3 bool_value=4:uint64"
        " struct_value=5:Struct list_value=6:ListValue",
        "ListValue": "values=1*:Value",
    },
)
#: What one answer of a processor may hold: each line, and each value of the metadata, is read by itself.
_MAX_LINES: Final = 1000
_MAX_METADATA_BYTES: Final = 64 * 1024

_REQUEST, _RESPONSE = _TYPES["Request"], _TYPES["Response"]

_PARTS: Final = {part.value: part for part in MessagePart}
_HEADERS: Final = frozenset((MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS))
_BODIES: Final = frozenset((MessagePart.REQUEST_BODY, MessagePart.RESPONSE_BODY))

#: HeaderAppendAction by its numbers. Where neither it nor `append` is set, Envoy's ext_proc overwrites.
_ACTIONS: Final = (FieldAction.SET, FieldAction.ADD_IF_ABSENT, FieldAction.SET, FieldAction.SET_IF_PRESENT)
_ACTION_NUMBERS: Final = {FieldAction.ADD_IF_ABSENT: 1, FieldAction.SET: 2, FieldAction.SET_IF_PRESENT: 3}


# --- to the processor --------------------------------------------------------------------------------------------
def request_bytes(request: ProcessingRequest) -> bytes:
    """A ProcessingRequest. Values of headers go as `raw_value`, as Envoy sends them."""
    part = request.part
    ends = {"end_of_stream": 1} if request.end_of_stream else {}
    if part in _HEADERS:
        content: dict[str, Any] = {"headers": _header_map(request.fields), **ends}
    elif part in _BODIES:
        content = {"body": request.body, **ends} if request.body else ends
    else:
        content = {"trailers": _header_map(request.fields)}
    made: dict[str, Any] = {part.value: content}
    if request.attributes:
        made["attributes"] = _named(request.attributes)
    if request.metadata:
        made["metadata_context"] = {"filter_metadata": _named(request.metadata)}
    if request.observability_mode:
        made["observability_mode"] = 1
    if request.protocol is not None:
        protocol = request.protocol
        made["protocol_config"] = without_defaults(
            {
                "request_body_mode": int(protocol.request_body_mode),
                "response_body_mode": int(protocol.response_body_mode),
                "send_body_without_waiting_for_header_response": int(
                    protocol.send_body_without_waiting_for_header_response
                ),
            }
        )
    data: bytes = _REQUEST(**made).SerializeToString()
    return data


def read_request(data: bytes) -> ProcessingRequest:
    """Read a ProcessingRequest. Raises WireError for bytes that are none, and for what holds no part, or two."""
    message = parsed(_REQUEST, data)
    part = _only_part(message)
    if part is None:
        raise WireError("the message holds no part of an exchange")
    content = getattr(message, part.value)
    trailers = content.trailers if part not in _HEADERS | _BODIES else None
    headers = content.headers if part in _HEADERS else trailers
    config = message.protocol_config
    return ProcessingRequest(
        part,
        tuple([(h.key, h.raw_value or h.value) for h in headers.headers]) if headers is not None else (),
        content.body if part in _BODIES else b"",
        trailers is None and bool(content.end_of_stream),
        {each.key: _struct(each.value) for each in message.attributes},
        {each.key: _struct(each.value) for each in message.metadata_context.filter_metadata},
        bool(message.observability_mode),
        ProtocolConfiguration(
            _mode(BodySendMode, config.request_body_mode),
            _mode(BodySendMode, config.response_body_mode),
            bool(config.send_body_without_waiting_for_header_response),
        )
        if message.HasField("protocol_config")
        else None,
    )


# --- from the processor ------------------------------------------------------------------------------------------
def response_bytes(response: ProcessingResponse) -> bytes:
    """A ProcessingResponse as protobuf, which `read_response` reads."""
    made: dict[str, Any] = {}
    part, immediate = response.part, response.immediate
    if part is not None:
        mutation = _mutation(response.headers)
        made[part.value] = _common(response, mutation) if part in _HEADERS | _BODIES else mutation
    if immediate is not None:
        content = {"status": {"code": immediate.status}, **_mutation(immediate.headers, "headers")}
        if immediate.grpc_status is not None:
            content["grpc_status"] = {"status": immediate.grpc_status}
        made["immediate_response"] = content | without_defaults(
            {"body": immediate.body, "details": immediate.details.encode()}
        )
    if response.dynamic_metadata:
        made["dynamic_metadata"] = _made_struct(response.dynamic_metadata)
    if response.mode_override is not None:
        mode = response.mode_override
        made["mode_override"] = without_defaults({name: int(getattr(mode, name)) for name in ProcessingMode.__slots__})
    if response.override_message_timeout_s is not None:
        seconds, part_s = divmod(response.override_message_timeout_s, 1)
        made["override_message_timeout"] = {"seconds": int(seconds), "nanos": int(part_s * 1_000_000_000)}
    data: bytes = _RESPONSE(**made).SerializeToString()
    return data


def read_response(data: bytes) -> ProcessingResponse:
    """Read a ProcessingResponse. Raises WireError for bytes that are none, for two answers in one, for values that the
    protocol does not have, and for more lines or metadata than are read.
    """
    message = parsed(_RESPONSE, data)
    part = _only_part(message)
    immediate = _immediate(message.immediate_response) if message.HasField("immediate_response") else None
    if part is not None and immediate is not None:
        raise WireError("the answer is of two kinds")
    more_s: float | None = None
    if message.HasField("override_message_timeout"):
        more_s = message.override_message_timeout.seconds + message.override_message_timeout.nanos / 1_000_000_000
    mode = None
    if message.HasField("mode_override"):
        modes = message.mode_override
        mode = ProcessingMode(
            _mode(HeaderSendMode, modes.request_header_mode),
            _mode(HeaderSendMode, modes.response_header_mode),
            _mode(BodySendMode, modes.request_body_mode),
            _mode(BodySendMode, modes.response_body_mode),
            _mode(HeaderSendMode, modes.request_trailer_mode),
            _mode(HeaderSendMode, modes.response_trailer_mode),
        )
    metadata = {}
    if message.HasField("dynamic_metadata"):
        if message.dynamic_metadata.ByteSize() > _MAX_METADATA_BYTES:
            raise WireError(f"dynamic_metadata has more than {_MAX_METADATA_BYTES} bytes")
        metadata = _struct(message.dynamic_metadata)
    replaces, changes, body, streamed, clears = False, None, None, None, False
    if part in _HEADERS | _BODIES:
        common = getattr(message, part.value).response
        if common.status > 1:
            raise WireError(f"nobody knows the status {common.status}")
        replaces, clears, changes = bool(common.status), bool(common.clear_route_cache), common.header_mutation
        body, streamed = _body(common.body_mutation)
    elif part is not None:
        changes = getattr(message, part.value).header_mutation
    return ProcessingResponse(
        part, replaces, _changes(changes) if changes is not None else (), body, streamed, clears, immediate,
        metadata, mode, more_s,
    )  # fmt: skip


# --- parts of messages -------------------------------------------------------------------------------------------
def _only_part(message: Any) -> MessagePart | None:
    found = [_PARTS[field.name] for field, _ in message.ListFields() if field.name in _PARTS]
    if len(found) > 1:
        raise WireError("the message holds two parts of an exchange")
    return found[0] if found else None


def _mode(kind: type[M], number: int) -> M:
    try:
        return kind(number)
    except ValueError:
        raise WireError(f"nobody knows the mode {number}") from None


def _common(response: ProcessingResponse, mutation: dict[str, Any]) -> dict[str, Any]:
    common = dict(mutation)
    if response.replaces:
        common["status"] = 1
    if response.clear_route_cache:
        common["clear_route_cache"] = 1
    if response.streamed is not None:
        piece = response.streamed
        common["body_mutation"] = {
            "streamed_response": without_defaults({"body": piece.body, "end_of_stream": int(piece.end_of_stream)})
        }
    elif response.body is not None:
        common["body_mutation"] = {"body": response.body} if response.body else {"clear_body": 1}
    return {"response": common}


def _body(mutation: Any) -> tuple[bytes | None, StreamedBody | None]:
    kinds = [name for name in ("body", "clear_body", "streamed_response") if mutation.HasField(name)]
    if len(kinds) > 1:
        raise WireError("the body is changed in two ways")
    if mutation.HasField("streamed_response"):
        piece = mutation.streamed_response
        return None, StreamedBody(piece.body, bool(piece.end_of_stream))
    if mutation.HasField("body") or mutation.clear_body:
        return mutation.body, None
    return None, None


def _immediate(message: Any) -> ImmediateResponse:
    return ImmediateResponse(
        message.status.code,
        _changes(message.headers),
        message.body,
        message.grpc_status.status if message.HasField("grpc_status") else None,
        message.details.decode("utf-8", "replace"),
    )


def _mutation(changes: Iterable[FieldChange], name: str = "header_mutation") -> dict[str, Any]:
    removed, given = [], []
    for change in changes:
        if change.action is FieldAction.REMOVE:
            removed.append(change.name)
            continue
        option: dict[str, Any] = {"header": _header(change.name, change.value)}
        if change.action is FieldAction.APPEND:
            option["append"] = {"value": 1}  # the action of this name has the number 0, which means that none is set
        else:
            option["append_action"] = _ACTION_NUMBERS[change.action]
        given.append(option)
    mutation = without_defaults({"set_headers": given, "remove_headers": removed})
    return {name: mutation} if mutation else {}


def _changes(mutation: Any) -> tuple[FieldChange, ...]:
    if max(len(mutation.set_headers), len(mutation.remove_headers)) > _MAX_LINES:
        raise WireError(f"more than {_MAX_LINES} lines are changed")
    removed = [FieldChange(name.lower(), FieldAction.REMOVE) for name in mutation.remove_headers]
    return (*removed, *[_change(option) for option in mutation.set_headers])


def _change(option: Any) -> FieldChange:
    header, action = option.header, option.append_action
    if header.value and header.raw_value:
        raise WireError("a header has a value and a raw_value")
    name, value = header.key.lower(), header.raw_value or header.value
    if option.HasField("append"):
        if action:
            raise WireError("a header has an append and an append_action")
        return FieldChange(name, FieldAction.APPEND if option.append.value else FieldAction.SET, value)
    if action >= len(_ACTIONS):
        raise WireError(f"nobody knows the append_action {action}")
    return FieldChange(name, _ACTIONS[action], value)


def _header_map(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"headers": [_header(name, value) for name, value in fields]}


def _header(name: bytes, value: bytes) -> dict[str, bytes]:
    return {"key": text_bytes(name), "raw_value": value}


def _named(structs: Mapping[str, Struct]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _made_struct(struct)} for name, struct in structs.items()]


def _made_struct(struct: Struct) -> dict[str, Any]:
    return {"fields": [{"key": name, "value": _made_value(value)} for name, value in struct.items()]}


def _made_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {"null_value": 0}
    if isinstance(value, bool):
        return {"bool_value": int(value)}
    if isinstance(value, int | float):
        return {"number_value": value}
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, Mapping):
        return {"struct_value": _made_struct(value)}
    return {"list_value": {"values": [_made_value(each) for each in value]}}


def _struct(message: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in message.fields}


def _value(message: Any) -> Any:
    if message.HasField("struct_value"):
        return _struct(message.struct_value)
    if message.HasField("list_value"):
        return [_value(each) for each in message.list_value.values]
    if message.HasField("bool_value"):
        return bool(message.bool_value)
    for name in ("string_value", "number_value"):
        if message.HasField(name):
            return getattr(message, name)
    return None
