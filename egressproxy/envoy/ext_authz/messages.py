"""The messages of envoy.service.auth.v3.Authorization/Check: a question about a request, and what was decided. Sources:
Envoy API v3, service/auth/v3/{external_auth,attribute_context}.proto, config/core/v3/{base,address}.proto,
google/rpc/status.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.envoy.protobuf import WireError, message_types, parsed, text_bytes, without_defaults

#: The path of the method.
CHECK = b"/envoy.service.auth.v3.Authorization/Check"

Address = tuple[str, int]

#: Texts are bytes: what comes is checked where it is used, and a server may say more than UTF-8. An entry of a map is
#: a message with the fields 1 and 2.
_TYPES: Final = message_types(
    "envoy",
    {
        "CheckRequest": "attributes=1:AttributeContext",
        "AttributeContext": "source=1:Peer destination=2:Peer request=4:Request",
        "Peer": "address=1:Address",
        "Address": "socket_address=1:SocketAddress",
        "SocketAddress": "address=2 port_value=3:uint64",
        "Request": "time=1:Timestamp http=2:HttpRequest",
        "Timestamp": "seconds=1:uint64 nanos=2:uint64",
        "HttpRequest": "id=1 method=2:bytes headers=3*:Header path=4:bytes host=5:bytes scheme=6:bytes size=9:uint64"
        " protocol=10:bytes body=11:bytes raw_body=12:bytes",
        "CheckResponse": "status=1:Status denied_response=2:DeniedResponse ok_response=3:OkResponse"
        " error_response=5*:bytes",
        "Status": "code=1:uint64",
        "DeniedResponse": "status=1:Status headers=2*:HeaderValueOption body=3:bytes",
        "OkResponse": "headers=2*:HeaderValueOption headers_to_remove=5*:bytes"
        " response_headers_to_add=6*:HeaderValueOption query_parameters_to_set=7*:bytes"
        " query_parameters_to_remove=8*:bytes",
        "HeaderValueOption": "header=1:Header append=2:BoolValue append_action=3:uint64",
        "Header": "key=1:bytes value=2:bytes raw_value=3:bytes",
        "BoolValue": "value=1:uint64",
    },
)
_CHECK_REQUEST, _CHECK_RESPONSE = _TYPES["CheckRequest"], _TYPES["CheckResponse"]


#: What is done with a header, by the numbers of Envoy's HeaderAppendAction; but 0 sets: that is the default of `append`
#: here.
_ACTIONS: Final = (FieldAction.SET, FieldAction.ADD_IF_ABSENT, FieldAction.SET, FieldAction.SET_IF_PRESENT)


@dataclass(frozen=True, slots=True)
class HttpAttributes:
    """AttributeContext.HttpRequest; `started` in seconds since 1970. `headers` by lower-case name."""

    id: str
    method: bytes
    headers: Mapping[bytes, bytes]
    path: bytes
    host: bytes
    scheme: bytes
    protocol: bytes
    started: float
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """`status` is that of a denial. `headers` are for the request (what is to be removed comes first) or, of a denial,
    for the client; `response_headers` are added to what the client is answered in the end.
    """

    is_allowed: bool
    status: int = 0
    headers: tuple[FieldChange, ...] = ()
    response_headers: tuple[FieldChange, ...] = ()
    body: bytes = b""


def check_request(http: HttpAttributes, source: Address, destination: Address) -> bytes:
    """A CheckRequest. An address without a host is left out."""
    seconds = int(http.started)
    time = {"seconds": seconds, "nanos": int((http.started - seconds) * 1_000_000_000)}
    attributes = {"source": _peer(source), "destination": _peer(destination)}
    made: bytes = _CHECK_REQUEST(
        attributes={**attributes, "request": {"time": without_defaults(time), "http": _http(http)}}
    ).SerializeToString()
    return made


def check_answer(data: bytes) -> CheckAnswer:
    """Read a CheckResponse. Raises WireError, also for neither yes nor no, for both, and for what we do not do."""
    answer = parsed(_CHECK_RESPONSE, data)
    has_status, is_ok, is_denied = map(answer.HasField, ("status", "ok_response", "denied_response"))
    if answer.error_response:
        raise WireError("the service answers with an error of its own")
    if is_ok and is_denied:
        raise WireError("the answer is both yes and no")
    if is_denied or answer.status.code:
        denied = answer.denied_response
        return CheckAnswer(False, denied.status.code or 403, _options(denied.headers), body=denied.body)
    if not is_ok and not has_status:
        raise WireError("the answer is empty: neither a status nor a response")
    ok = answer.ok_response
    if ok.query_parameters_to_set or ok.query_parameters_to_remove:
        raise WireError("the service wants to change query parameters, which is not supported")
    removed = tuple([FieldChange(name.lower(), FieldAction.REMOVE) for name in ok.headers_to_remove])
    return CheckAnswer(
        True, headers=removed + _options(ok.headers), response_headers=_options(ok.response_headers_to_add)
    )


def _http(http: HttpAttributes) -> dict[str, Any]:
    made = {
        "id": http.id, "method": text_bytes(http.method), "path": text_bytes(http.path), "host": text_bytes(http.host),
        "scheme": text_bytes(http.scheme), "size": len(http.body), "protocol": text_bytes(http.protocol),
        "body": http.body, "headers": [_header(name, value) for name, value in http.headers.items()],
    }  # fmt: skip
    if not http.body.isascii():
        try:
            http.body.decode()
        except UnicodeDecodeError:  # `body` is a string
            made["raw_body"] = made.pop("body")
    return without_defaults(made)


def _header(name: bytes, value: bytes) -> dict[str, bytes]:
    return without_defaults({"key": text_bytes(name), "value": text_bytes(value)})


def _peer(address: Address) -> dict[str, Any] | None:
    host, port = address
    return {"address": {"socket_address": without_defaults({"address": host, "port_value": port})}} if host else None


def _options(options: Any) -> tuple[FieldChange, ...]:
    return tuple([_option(option) for option in options])


def _option(option: Any) -> FieldChange:
    header, action = option.header, option.append_action
    name, value = header.key.lower(), header.value or header.raw_value
    if option.HasField("append"):
        return FieldChange(name, FieldAction.APPEND if option.append.value else FieldAction.SET, value)
    if action >= len(_ACTIONS):
        raise WireError(f"nobody knows the append_action {action}")
    return FieldChange(name, _ACTIONS[action], value)
