"""HttpAuthzClient: shows the head of a request to a server that speaks HTTP; only status 200 lets the request pass.

Source: Gateway API HTTPExternalAuthFilter with protocol HTTP, HTTPAuthConfig.
"""

from __future__ import annotations

from typing import NamedTuple

from egressproxy.errors import BadRequest, GatewayError, Reason, UpstreamFault
from egressproxy.filters.body import BodyPlan
from egressproxy.filters.chain import Chain, Steps, finish, run_to_end
from egressproxy.gateway.backends.connector import Connector
from egressproxy.gateway.backends.parent_connect import refused_credentials
from egressproxy.gateway.backends.upstream_call import HeldConnection, Repeat, UpstreamCaller, call_upstream
from egressproxy.gateway.ext_authz.buffered_body import BufferedRequest
from egressproxy.gateway.ext_authz.check_result import CheckResult, denial, is_ours
from egressproxy.ir.route import ExternalAuthIR
from egressproxy.model.exchange import Exchange, LocalResponse
from egressproxy.model.field_change import FieldAction, FieldChange
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.path import has_dot_segment
from egressproxy.net.driver import Driver, driven
from egressproxy.net.pieces import Pieces

__all__ = ["HttpAuthzClient", "asked_host", "converse", "passed_body", "question"]

#: The longest answer that is read: a page that tells people where to log in.
MAX_ANSWER_BYTES = 1024 * 1024
#: What an answer says of itself and of its sender; never copied into a request by an empty list.
OF_THE_ANSWER = frozenset(
    b"accept-ranges age allow cache-control date etag expires last-modified location proxy-status retry-after server "
    b"set-cookie vary www-authenticate".split()
)


class HttpAuthzClient:
    """Implements AuthzClient. `chain` are the filters of the server as a backend: its credential, its limits."""

    def __init__(self, spec: ExternalAuthIR, connector: Connector, chain: Chain) -> None:
        self._connector = connector
        self._chain = chain
        self._prefix = spec.path.encode().rstrip(b"/")
        self._wanted = tuple(dict.fromkeys((b"authorization", *(name.encode() for name in spec.allowed_headers))))
        copied = (name.encode() for name in spec.allowed_response_headers)
        self._copied = tuple(name for name in copied if not is_ours(name))
        self._copies_all = not spec.allowed_response_headers

    async def check(self, x: Exchange, held: BufferedRequest, body: bytes, timeout_s: float) -> CheckResult:
        """As `AuthzClient.check`: one HTTP request with the head that the server may see."""
        head = RequestHead(x.request.method, x.request.target, self._fields(x.request.fields))
        head.path = self._path(x.request.path)
        head.body = len(body)
        inner = question(x, head, self._connector)
        inner.upstream_host = asked_host(x)
        connector, chain = self._connector, self._chain
        try:
            answer = await driven(lambda driver: converse(driver, inner, connector, chain, body))
            said = await passed_body(chain.response_body, inner, answer.body)
        finally:
            finish(chain.complete, inner)
        response = answer.head
        if response.status == 200:
            return CheckResult(request=tuple(self._changes(response.fields)))
        return denial(response.status, response.fields, said, response.phrase)

    def _fields(self, asked: Fields) -> Fields:
        return Fields.of((name, value) for name in self._wanted for value in asked.get_all(name))

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


class Answer(NamedTuple):
    """What a server has answered. `trailers` are field lines, or b""."""

    head: ResponseHead
    body: bytes
    trailers: bytes


async def converse(driver: Driver, inner: Exchange, connector: Connector, chain: Chain, body: bytes) -> Answer:
    """Ask the server `inner.request` with this body, through its filters but for those of its answer's body.

    Raises GatewayError.
    """
    caller = _Question(driver)
    await passed(chain.request_headers, inner)
    target = connector.target(inner)
    try:
        upstream = await call_upstream(caller, inner, connector, target, chain, body or None, Repeat.ALWAYS)
        if isinstance(upstream, LocalResponse):
            raise answered_in_its_place()
        response = inner.response
        via = caller.resources.connector
        if response.status == 407 and via is not None and via.behind is not None:
            raise refused_credentials(via.behind)
        await passed(chain.backend_response, inner)
        if not upstream.has_ended:
            upstream.send_response_body_to(caller)
            await upstream.response_end()
        caller.resources.release(reusable=upstream.is_reusable)
        return Answer(response, caller.answer.joined(), caller.trailers)
    except GatewayError as error:
        caller.resources.fail(inner, error)
        raise
    finally:
        caller.resources.release(reusable=False)


class _Question(UpstreamCaller):
    """A caller with a driver of its own. `answer` collects the body of the response, up to a bound."""

    __slots__ = ("_size", "answer", "driver", "resources", "trailers")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.resources = HeldConnection()
        self.answer = Pieces()
        self.trailers = b""
        self._size = 0

    def send_body(self, data: bytes) -> None:
        """Keep a piece of the answer. Raises UpstreamFault above MAX_ANSWER_BYTES."""
        self._size += len(data)
        if self._size > MAX_ANSWER_BYTES:
            raise UpstreamFault(Reason.BAD_RESPONSE, f"the answer is longer than {MAX_ANSWER_BYTES} octets")
        self.answer.append(data)

    def end_body(self, trailers: bytes) -> None:
        """Keep the fields behind the answer."""
        self.trailers = trailers


def question(x: Exchange, head: RequestHead, connector: Connector) -> Exchange:
    """An exchange of our own with the server, for the filters that run for it as a backend."""
    return Exchange(
        x.client, x.gateway, x.listener, x.started_at, identity=x.identity, request_id=x.request_id, route=x.route,
        request=head, method=head.method, path=x.path, backend=connector.name,
    )  # fmt: skip


def asked_host(x: Exchange) -> bytes:
    """The Host that the client has asked for; b"" if it has named none."""
    return x.request.host or (x.authority.host_field(80) if x.authority is not None else b"")


async def passed_body(plan: BodyPlan | None, x: Exchange, body: bytes) -> bytes:
    """The whole body of an answer as its body filters leave it: a client may get it."""
    return body if plan is None else await plan.begin(x).feed_to_end(x, body, True)


async def passed(steps: Steps | None, x: Exchange) -> None:
    """Run a phase of the server's filters. Raises what they refuse with, and UpstreamFault if one responds."""
    if await run_to_end(steps, x) is not None:
        raise answered_in_its_place()


def answered_in_its_place() -> UpstreamFault:
    """The error for a filter that responds instead of the server, where no response can be sent."""
    return UpstreamFault(Reason.FILTER_REJECTED, "a filter of the authorization server answered in its place")
