"""What the messages of Envoy say, as the gateway has it: heads, the client, and how bodies are sent.

Source: Envoy API v3, service/ext_proc/v3/external_processor.proto.
"""

from __future__ import annotations

from collections.abc import Sequence

from egressproxy.envoy.ext_proc.messages import BodySendMode, ProcessingMode, ProcessingRequest, ProtocolConfiguration
from egressproxy.envoy.ext_proc_server.head_changes import dropped_fields
from egressproxy.envoy.field_change import FieldChange
from egressproxy.errors import BadRequest, GatewayFault, LimitExceeded, Reason, UpstreamFault
from egressproxy.gateway.backends.cluster import UPSTREAM_LIMITS
from egressproxy.identity.peers import workload
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity, service_account_name
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.protocols.http1.framing import HeadLimits, Malformed
from egressproxy.protocols.http2.heads import RequestFieldsReader, read_response_fields, read_trailers
from egressproxy.protocols.http2.remembered_fields import FieldList

#: The namespace of dynamic metadata in which Envoy may say who the client is: `namespace` and `serviceAccount`.
METADATA = "egressproxy.io"

#: Fields of a connection, which Envoy keeps in the head of an upgrade.
_CONNECTION = frozenset(b"connection upgrade keep-alive proxy-connection transfer-encoding".split())
_SENDS_BODY = frozenset((BodySendMode.NONE, BodySendMode.STREAMED, BodySendMode.BUFFERED))
_REMEDY = (
    "Envoy's ext_proc filter needs allow_mode_override: true, and in processing_mode request_body_mode and"
    " response_body_mode: BUFFERED"
)


def read_request(message: ProcessingRequest, limits: HeadLimits) -> tuple[RequestHead, tuple[FieldChange, ...]]:
    """The head of a request, and what Envoy has to remove: nobody may pass it on. Raises BadRequest, LimitExceeded."""
    fields: FieldList = [field for field in message.fields if field[0] not in _CONNECTION]
    try:
        head = RequestFieldsReader(limits, is_forward=True).read(fields, ends_stream=message.end_of_stream)
    except Malformed as fault:
        kind = LimitExceeded if fault.status in (413, 414, 431) else BadRequest
        raise kind(fault.reason, fault.message, status=fault.status) from None
    head.max_forwards = -1  # Envoy is the hop that counts
    if len(fields) != len(message.fields):
        head.upgrade = b", ".join([value for name, value in message.fields if name == b"upgrade"])
        head.body = 0 if head.upgrade else head.body
    return head, dropped_fields(fields, head.fields)


def configured_mode(protocol: ProtocolConfiguration | None) -> ProcessingMode:
    """What Envoy sends unless it is asked. Raises EnvoyMisconfigured for bodies in a mode that cannot be changed."""
    if protocol is None:  # before Envoy 1.33: nobody knows
        return ProcessingMode()
    modes = {protocol.request_body_mode, protocol.response_body_mode}
    if not modes <= _SENDS_BODY or protocol.send_body_without_waiting_for_header_response:
        raise EnvoyMisconfigured("Envoy sends bodies in a mode in which filters cannot say what they need")
    return ProcessingMode(request_body_mode=protocol.request_body_mode, response_body_mode=protocol.response_body_mode)


def client_of_envoy(message: ProcessingRequest, trust_domains: Sequence[str]) -> tuple[str, CallerIdentity]:
    """Address and identity of the client, as far as Envoy tells them; "" for no address."""
    attributes: dict[str, object] = {}
    for group in message.attributes.values():
        attributes |= group
    source, uri = attributes.get("source.address"), attributes.get("connection.uri_san_peer_certificate")
    metadata = message.metadata.get(METADATA, {})
    namespace, account = metadata.get("namespace"), metadata.get("serviceAccount")
    identity = ANONYMOUS
    if isinstance(namespace, str) and isinstance(account, str):
        name = service_account_name(namespace, account)
        identity = CallerIdentity(namespace, account, name=name, source="gateway")
    elif isinstance(uri, str) and trust_domains:
        identity = workload([uri], trust_domains)
    return source if isinstance(source, str) and ":" in source else "", identity


def read_response(message: ProcessingRequest, method: bytes) -> ResponseHead:
    """The head of a response to this method. Raises UpstreamFault (502)."""
    fields: FieldList = [field for field in message.fields if field[0] not in _CONNECTION]
    switches = (b":status", b"101") in fields
    if switches:
        fields = [(name, b"200" if name == b":status" else value) for name, value in fields]
    try:
        head = read_response_fields(fields, UPSTREAM_LIMITS, method, ends_stream=message.end_of_stream)
    except Malformed as fault:
        raise UpstreamFault(Reason.BAD_RESPONSE, f"the upstream's response is malformed: {fault.message}") from None
    if switches:
        head.status, head.body = 101, 0
    return head


def read_request_trailers(message: ProcessingRequest) -> bytes:
    """The block of those trailers that may be passed on. Raises BadRequest."""
    try:
        return read_trailers(list(message.fields), UPSTREAM_LIMITS)
    except Malformed as fault:
        raise BadRequest(fault.reason, f"the trailers of the request are malformed: {fault.message}") from None


def read_response_trailers(message: ProcessingRequest) -> bytes:
    """The block of those trailers that may be passed on. Raises UpstreamFault (502)."""
    try:
        return read_trailers(list(message.fields), UPSTREAM_LIMITS)
    except Malformed as fault:
        text = f"the trailers of the upstream's response are malformed: {fault.message}"
        raise UpstreamFault(Reason.BAD_RESPONSE, text) from None


class EnvoyMisconfigured(GatewayFault):
    """Envoy is not configured as filters need it (500)."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.FILTER_FAILED, message, status=500, remedy=_REMEDY)
