"""HttpAuthzClient: shows the head of a request to a server that speaks HTTP; only status 200 lets the request pass.

Source: Gateway API HTTPExternalAuthFilter with protocol HTTP, HTTPAuthConfig.
"""

from __future__ import annotations

from egressproxy.errors import BadRequest, GatewayError, Reason, RetrySafety, UpstreamFault
from egressproxy.filters.body import BodyPlan
from egressproxy.filters.chain import Chain, Steps, finish, run
from egressproxy.gateway.backends.connector import Connector
from egressproxy.gateway.backends.parent_connect import absolute_form, refused_credentials, with_field
from egressproxy.gateway.ext_authz.buffered_body import BufferedRequest
from egressproxy.gateway.ext_authz.check_result import CheckResult, FieldAction, FieldChange, denial, is_ours
from egressproxy.ir.route import ExternalAuthIR
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.path import has_dot_segment
from egressproxy.net.driver import Driver, driven, pause
from egressproxy.net.pieces import Pieces
from egressproxy.protocols.http1.upstream import UpstreamConnection
from egressproxy.protocols.http1.writer import request_bytes

__all__ = ["HttpAuthzClient", "passed", "passed_body", "question"]

#: The longest answer that is read: a page that tells people where to log in.
MAX_ANSWER_OCTETS = 1024 * 1024
#: A question changes nothing: where an idle connection has died, or an endpoint is not there, it goes to another.
MAX_ATTEMPTS = 3
#: What an answer says of itself and of its sender; never copied into a request by an empty list.
OF_THE_ANSWER = frozenset(
    b"accept-ranges age allow cache-control date etag expires last-modified location proxy-status retry-after server "
    b"set-cookie vary www-authenticate".split()
)


class HttpAuthzClient:
    """Implements Asker. `chain` are the filters of the server as a backend: its credential, its limits."""

    def __init__(self, spec: ExternalAuthIR, connector: Connector, chain: Chain) -> None:
        self._connector = connector
        self._chain = chain
        self._prefix = spec.path.encode().rstrip(b"/")
        self._wanted = tuple(dict.fromkeys((b"authorization", *(name.encode() for name in spec.allowed_headers))))
        copied = (name.encode() for name in spec.allowed_response_headers)
        self._copied = tuple(name for name in copied if not is_ours(name))
        self._copies_all = not spec.allowed_response_headers

    async def ask(self, x: Exchange, held: BufferedRequest, body: bytes, timeout_s: float) -> CheckResult:
        head = RequestHead(x.request.method, x.request.target, self._fields(x.request.fields))
        head.path = self._path(x.request.path)
        head.body = len(body)
        inner = question(x, head, self._connector)
        inner.upstream_host = x.request.host or (x.authority.host_field(80) if x.authority is not None else b"")
        try:
            response, answer = await driven(lambda driver: self._converse(driver, inner, body))
        finally:
            if self._chain.complete is not None:
                finish(self._chain.complete, inner)
        if response.status == 200:
            return CheckResult(request=tuple(self._changes(response.fields)))
        return denial(response.status, response.fields, answer, response.phrase)

    def _fields(self, asked: Fields) -> Fields:
        shown = Fields()
        for name in self._wanted:
            for value in asked.get_all(name):
                shown.add(name, value)
        return shown

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

    async def _converse(self, driver: Driver, inner: Exchange, body: bytes) -> tuple[ResponseHead, bytes]:
        """The whole answer. Raises GatewayError."""
        head = inner.request
        block, path = head.fields.block, head.path
        await passed(self._chain.request_headers, inner)
        while True:
            inner.attempts += 1
            target = self._connector.target(inner)
            inner.backend_is_secure = target.tls is not None
            via, way = self._connector.way(inner, target)
            upstream, reusable = via.take(inner, way), False
            try:
                if upstream is None:
                    upstream = await via.acquire(inner, way, self._chain.connect)
                await passed(self._chain.backend_request, inner)
                host, shown, is_behind_parent = inner.upstream_host, None, via is not self._connector
                if is_behind_parent:
                    host, shown = target.host_field, self._connector.proxy_authorization
                    head.path = absolute_form(host, head.path)
                message = request_bytes(head, host, self._connector.network.pseudonym)
                upstream.begin(driver, head)
                upstream.send(message if shown is None else with_field(message, shown))
                answer = await self._exchange(upstream, inner, body)
                if is_behind_parent and answer[0].status == 407:
                    raise refused_credentials(self._connector.spec.backend)
                reusable = upstream.is_reusable
                return answer
            except GatewayError as error:
                is_stale = error.retry is RetrySafety.IF_REUSED and upstream is not None and upstream.was_reused
                if inner.attempts >= MAX_ATTEMPTS or not (is_stale or self._connector.has_other_endpoint(error)):
                    raise
                head.fields.block, head.path = block, path
            finally:
                if upstream is not None:
                    via.release(way, upstream, reusable=reusable)

    async def _exchange(self, upstream: UpstreamConnection, inner: Exchange, body: bytes) -> tuple[ResponseHead, bytes]:
        """The answer, once the head of the question is sent."""
        if body:
            upstream.send_body(body)
            upstream.end_body(b"")
        response = upstream.next_head()
        while response is None or response.is_interim:
            if response is None:
                await pause()
            response = upstream.next_head()
        if response.status == 101:
            raise UpstreamFault(Reason.BAD_RESPONSE, "the server switched to a protocol that was not asked for")
        inner.response = response
        await passed(self._chain.backend_response, inner)
        if upstream.has_ended:
            return response, b""
        answer = _Answer()
        upstream.send_response_body_to(answer)
        await upstream.response_end()
        return response, await passed_body(self._chain.response_body, inner, answer.parts.joined())


class _Answer:
    """The body of an answer, up to a bound."""

    __slots__ = ("_octets", "parts")

    def __init__(self) -> None:
        self.parts = Pieces()
        self._octets = 0

    def send_body(self, data: bytes) -> None:
        self._octets += len(data)
        if self._octets > MAX_ANSWER_OCTETS:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"the answer is longer than {MAX_ANSWER_OCTETS} octets")
        self.parts.append(data)

    def end_body(self, trailers: bytes) -> None:
        pass


def question(x: Exchange, head: RequestHead, connector: Connector) -> Exchange:
    """An exchange of our own with the server, for the filters that run for it as a backend."""
    inner = Exchange(x.client, x.gateway, x.listener, x.started_at)
    inner.identity, inner.request_id, inner.route = x.identity, x.request_id, x.route
    inner.request, inner.method, inner.path = head, head.method, x.path
    inner.backend = connector.name
    return inner


async def passed_body(plan: BodyPlan | None, x: Exchange, body: bytes) -> bytes:
    """What the filters of the answer's body make of a whole one: a client may get it."""
    if plan is None:
        return body
    outcome = plan.begin(x).feed(x, body, True)
    return outcome if isinstance(outcome, bytes) else await outcome


async def passed(steps: Steps | None, x: Exchange) -> None:
    """Run a phase that may refuse, and has nobody to answer to."""
    if steps is None:
        return
    outcome = run(steps, x)
    if outcome is not None and not isinstance(outcome, LocalResponse):
        outcome = await outcome
    if outcome is not None:
        raise UpstreamFault(Reason.FILTER_REJECTED, "a filter of the authorization server answered in its place")
