"""OtlpSender: requests of an exporter to its collector, by OTLP over HTTP or gRPC.

They go over the cluster of the backend, with its TLS, its pools and its filters, as all calls of the gateway's own do.
None of them is an exchange of a client, so that none is traced. Source: OpenTelemetry protocol 1.x.
"""

from __future__ import annotations

import asyncio
import gzip
from time import monotonic
from typing import Final

from egressproxy.errors import GatewayError
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.own_calls.backend_call import CallResponse, own_exchange, unary_call
from egressproxy.ir.telemetry import CollectorIR, OtlpProtocol, Signal
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.protocols.grpc.framing import call_fields, framed, reply
from egressproxy.telemetry.tracing.exporter import NotTaken
from egressproxy.telemetry.tracing.otlp import rejected

_GRPC_PATHS: Final = {
    signal: b"/opentelemetry.proto.collector.%b.v1.%bService/Export" % (name, name.capitalize())
    for signal, name in ((Signal.TRACES, b"trace"), (Signal.METRICS, b"metrics"), (Signal.LOGS, b"logs"))
}
_HTTP_FIELDS: Final = ((b"content-type", b"application/x-protobuf"), (b"user-agent", b"egressproxy"))
#: Statuses after which a request is sent again ("OTLP/HTTP Response", "Retryable Response Codes").
_RETRYABLE: Final = frozenset((429, 502, 503, 504))
_LONGEST_WAIT_S: Final = 300.0
#: Fields that an operator cannot set: they would contradict the request.
_OURS: Final = frozenset((
    "connection", "content-encoding", "content-length", "content-type", "expect", "grpc-encoding", "grpc-timeout",
    "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
))  # fmt: skip


class OtlpSender:
    """`cluster` None: the collector cannot be reached, for the reason `fault`."""

    __slots__ = ("_chain", "_cluster", "_fault", "_spec", "name")

    def __init__(self, spec: CollectorIR, cluster: Cluster | None, chain: Chain, fault: str) -> None:
        self._spec = spec
        self._cluster = cluster
        self._chain = chain
        self._fault = fault
        self.name = spec.backend.backend.label if spec.backend.backend is not None else "-"

    async def send(self, request: bytes) -> tuple[int, str]:
        """Send a request of the signal. Returns how much of it the collector has refused, and why. Raises NotTaken."""
        cluster = self._cluster
        if cluster is None:
            raise NotTaken(f"backend {self.name} cannot be used: {self._fault}")
        spec = self._spec
        is_grpc, timeout_s = spec.protocol is OtlpProtocol.GRPC, spec.timeout_s
        fields = Fields.of(call_fields(timeout_s) if is_grpc else _HTTP_FIELDS)
        if spec.is_compressed:
            request = await asyncio.to_thread(gzip.compress, request, 1)
            fields.set(b"grpc-encoding" if is_grpc else b"content-encoding", b"gzip")
        for name, secret in spec.headers:
            if name not in _OURS:
                fields.set(name.encode(), secret.reveal())
        head = RequestHead(b"POST", _GRPC_PATHS[spec.signal] if is_grpc else spec.path.encode(), fields)
        body = framed(request, is_compressed=spec.is_compressed) if is_grpc else request
        head.te_trailers = is_grpc
        head.body = len(body)
        inner = own_exchange(Exchange("-", "-", "-", monotonic()), head, self.name)
        inner.path = head.path
        inner.backend_is_secure = cluster.spec.backend.tls is not None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await unary_call(inner, cluster, self._chain, body)
            return rejected(_message(answer) if is_grpc else _content(answer))
        except TimeoutError:
            raise NotTaken(f"backend {self.name} did not answer within {timeout_s:g} s", 0.0) from None
        except GatewayError as error:
            is_final = is_grpc and inner.has_response and error.status not in _RETRYABLE
            after_s = None if is_final else 0.0
            raise NotTaken(f"backend {self.name}: {error.message} {error.detail}".rstrip(), after_s) from None


def _message(answer: CallResponse) -> bytes:
    return reply(answer.head.status, answer.head.fields, answer.body, Fields(answer.trailers))


def _content(answer: CallResponse) -> bytes:
    """The body of an answer of HTTP. Raises NotTaken unless its status is 200."""
    status = answer.head.status
    if status == 200:
        return answer.body
    after_s: float | None = None
    if status in _RETRYABLE:
        asked = answer.head.fields.get(b"retry-after") or b""
        after_s = min(float(asked), _LONGEST_WAIT_S) if asked.isdigit() else 0.0
    raise NotTaken(f"the collector answered {status}", after_s)
