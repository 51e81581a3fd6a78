"""GrpcAuthzClient: asks a server that speaks Envoy's ext_authz, envoy.service.auth.v3.Authorization/Check.

Source: Gateway API HTTPExternalAuthFilter with protocol GRPC, GRPCAuthConfig.
"""

from __future__ import annotations

from collections.abc import Iterable

from egressproxy.envoy.ext_authz.filter import CheckResult, denial, is_for_clients, is_ours
from egressproxy.envoy.ext_authz.messages import CHECK, CheckAnswer, HttpAttributes, check_answer, check_request
from egressproxy.envoy.field_change import FieldChange, apply
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.own_calls.backend_call import CallResponse, asked_host, own_exchange, unary_call
from egressproxy.ir.route import ExternalAuthIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead
from egressproxy.protocols.grpc.framing import call_fields, framed, reply


class GrpcAuthzClient:
    """Implements AuthzClient. `chain` has the filters of the server as a backend; they may add metadata to the call."""

    def __init__(self, spec: ExternalAuthIR, cluster: Cluster, chain: Chain) -> None:
        self._cluster = cluster
        self._chain = chain
        self._allowed = frozenset(name.encode() for name in spec.allowed_headers)

    async def check(self, exchange: Exchange, held: BufferedRequest, body: bytes, timeout_s: float) -> CheckResult:
        message = framed(
            check_request(self._attributes(exchange, body), _address(exchange.client), held.local_address())
        )
        head = RequestHead(b"POST", CHECK, Fields.of(call_fields(timeout_s)))
        head.te_trailers = True
        head.body = len(message)
        inner = own_exchange(exchange, head, self._cluster.name)
        inner.backend_is_secure = self._cluster.spec.backend.tls is not None
        answer = await unary_call(inner, self._cluster, self._chain, message, _payload)
        return _verdict(check_answer(answer.body))

    def _attributes(self, exchange: Exchange, body: bytes) -> HttpAttributes:
        request = exchange.request
        host = asked_host(exchange)
        headers = {b":authority": host, b":method": request.method, b":path": request.path, b":scheme": exchange.scheme}
        for name, value in request.fields:
            known = headers.get(name)
            separator = b"; " if name == b"cookie" else b","
            headers[name] = value if known is None else known + separator + value
        if self._allowed:
            headers = {name: value for name, value in headers.items() if name in self._allowed}
            if b"host" in self._allowed:
                headers[b"host"] = host
        return HttpAttributes(
            exchange.request_id, request.method, headers, request.path, host, exchange.scheme,
            b"HTTP/1.0" if request.http_1_0 else b"HTTP/1.1", exchange.started_wall, body,
        )  # fmt: skip


def _payload(answer: CallResponse) -> bytes:
    return reply(answer.head.status, answer.head.fields, answer.body, Fields(answer.trailers))


def _address(client: str) -> tuple[str, int]:
    host, _, port = client.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else ("", 0)


def _verdict(answer: CheckAnswer) -> CheckResult:
    """Raises ValueError for a denial that no client could be told."""
    changes = _permitted(answer.headers)
    if not answer.is_allowed:
        fields = Fields()
        apply(changes, fields)
        return denial(answer.status, fields, answer.body)
    response = tuple(change for change in _permitted(answer.response_headers) if is_for_clients(change.name))
    return CheckResult(request=changes, response=response)


def _permitted(changes: Iterable[FieldChange]) -> tuple[FieldChange, ...]:
    """Pseudo-headers, Host, and whatever else the gateway itself writes are not the server's to say."""
    return tuple(change for change in changes if not (is_ours(change.name) or change.name.startswith(b":")))
