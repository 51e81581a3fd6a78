"""HttpAuthzClient: shows the head of a request to a server that speaks HTTP; only status 200 lets the request pass.

Source: Gateway API HTTPExternalAuthFilter with protocol HTTP, HTTPAuthConfig.
"""

from __future__ import annotations

from egressproxy.envoy.ext_authz.filter import CheckResult, denial, is_ours
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import BadRequest, Reason
from egressproxy.filters.chain import Chain
from egressproxy.gateway.backends.buffered_body import BufferedRequest
from egressproxy.gateway.backends.cluster import Cluster
from egressproxy.gateway.own_calls.backend_call import asked_host, own_exchange, unary_call
from egressproxy.ir.route import ExternalAuthIR
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, has_dot_segment

#: What an answer says of itself and of its sender; never copied into a request by an empty list.
OF_THE_ANSWER = frozenset(
    b"accept-ranges age allow cache-control date etag expires last-modified location proxy-status retry-after server "
    b"set-cookie vary www-authenticate".split()
)


class HttpAuthzClient:
    """Implements AuthzClient. `chain` are the filters of the server as a backend: its credential, its limits."""

    def __init__(self, spec: ExternalAuthIR, cluster: Cluster, chain: Chain) -> None:
        self._cluster = cluster
        self._chain = chain
        self._prefix = spec.path.encode().rstrip(b"/")
        self._allowed = tuple(dict.fromkeys((b"authorization", *(name.encode() for name in spec.allowed_headers))))
        copied = (name.encode() for name in spec.allowed_response_headers)
        self._copied = tuple(name for name in copied if not is_ours(name))
        self._copies_all = not spec.allowed_response_headers

    async def check(self, exchange: Exchange, held: BufferedRequest, body: bytes, timeout_s: float) -> CheckResult:
        asked = exchange.request.fields
        shown = Fields.of((name, value) for name in self._allowed for value in asked.get_all(name))
        head = RequestHead(exchange.request.method, exchange.request.target, shown)
        head.path = self._path(exchange.request.path)
        head.body = len(body)
        inner = own_exchange(exchange, head, self._cluster.name)
        inner.upstream_host = asked_host(exchange)
        answer = await unary_call(inner, self._cluster, self._chain, body)
        response = answer.head
        if response.status == 200:
            return CheckResult(request=tuple(self._changes(response.fields)))
        return denial(response.status, response.fields, answer.body, response.phrase)

    def _path(self, path: bytes) -> bytes:
        if not self._prefix:
            return path
        if has_dot_segment(path.partition(b"?")[0]):
            # `/prefix/../other` is a place outside of the prefix, where a server may answer 200 to everybody.
            raise BadRequest(Reason.BAD_TARGET, "the path holds dot segments, which no prefix can contain", close=False)
        return self._prefix + (path if path.startswith(b"/") else b"/")

    def _changes(self, fields: Fields) -> list[FieldChange]:
        """What the server says replaces what the client said, also where the server says nothing."""
        given = [(name, value) for name, value in fields if self._is_copied(name)]
        names = dict.fromkeys(name for name, _ in given) if self._copies_all else self._copied
        cut = [FieldChange(name, FieldAction.REMOVE) for name in names]
        return cut + [FieldChange(name, FieldAction.APPEND, value) for name, value in given]

    def _is_copied(self, name: bytes) -> bool:
        if self._copies_all:
            return not (is_ours(name) or name in OF_THE_ANSWER or name.startswith((b"content-", b"access-control-")))
        return name in self._copied
