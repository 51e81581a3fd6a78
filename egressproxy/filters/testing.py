"""Tests of a filter without a network: build it as the gateway does, give it a request, look at the result.

`FilterHarness` builds the filter and runs its phases with the code of the data plane; only the backend is made up. What
is wrong with the config or the file is raised in the words of `egressproxy check`. What the gateway does around a
filter (routing, limits, retries) does not happen here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from os import PathLike
from typing import Any

from egressproxy.doors.catalog import Catalog
from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Phase
from egressproxy.filters.body import BodyChain
from egressproxy.filters.body_plan import BodyPlan
from egressproxy.filters.chain import Chain, compile_chain, finish, run_to_end
from egressproxy.filters.filter_step import FilterAnswered, FilterSteps
from egressproxy.filters.filter_trace import failures_shown
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.authority import parse_authority
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import SENT_BODY, Exchange
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.event_aggregator import EventAggregator, event_reason
from egressproxy.telemetry.filter_meter import FilterMetrics

__all__ = ["FilterBuildError", "FilterHarness", "FilterResult", "GatewayError", "exchange", "response"]

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
#: A body: whole, or in the pieces in which it arrives. b"" and () are no body at all.
Body = bytes | Sequence[bytes]
ByteQueue = tuple[bytes, ...]

_TUNNEL_PHASES = frozenset((Phase.REQUEST_HEADERS, Phase.CONNECT))
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: What the codec takes out of a head (RFC 9110 section 7.6.1, and the framing).
_TAKEN_OUT = frozenset((
    "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "transfer-encoding", "upgrade", "via",
))  # fmt: skip


def exchange(
    method: str,
    url: str,
    headers: Headers = (),
    *,
    identity: str = "-/-",
    client: str = "192.0.2.1:40000",
    backend: str = "-",
    backend_is_secure: bool = False,
    addresses: Iterable[str] = (),
) -> Exchange:
    """An exchange as a filter first sees it, with the head of this request.

    `url` is absolute (`https://api.example.com/v1?n=1`), for CONNECT `host:port`. `identity` is
    "namespace/service-account" of the client, `backend` "namespace/name"; `addresses` are those that the connect phase
    sees. Raises ValueError for a URL or field that a request cannot have, and for fields that the gateway takes out
    before filters run (Host, Content-Length, Connection, …).
    """
    is_tunnel = method == "CONNECT"
    scheme, _, rest = ("http", "", url) if is_tunnel else url.partition("://")
    if scheme not in _DEFAULT_PORTS or "#" in rest:
        raise ValueError(f"{url!r} is not a URL of a request: write http://HOST[:PORT]/PATH, or HOST:PORT for CONNECT")
    if is_tunnel:
        authority = parse_authority(url.encode())
        target, path = url.encode(), b"-"
    else:
        host, slash, rest = rest.partition("/")
        authority = parse_authority(host.encode(), _DEFAULT_PORTS[scheme])
        target = (slash + rest or "/").encode()
        path = target.partition(b"?")[0]
    head = RequestHead(method.encode(), target, _fields(headers))
    head.authority = authority
    head.host = authority.host_field(_DEFAULT_PORTS[scheme])
    namespace, _, service_account = identity.partition("/")
    identified = CallerIdentity(namespace or "-", service_account or "-")
    exchange = Exchange(
        client, "test/gateway", "test", time.monotonic(), identified, request_id="test-1", backend=backend
    )
    exchange.is_tunnel = is_tunnel
    exchange.scheme = scheme.encode()
    exchange.authority = authority
    exchange.method = head.method
    exchange.path = path
    exchange.request = head
    exchange.backend_is_secure = backend_is_secure
    exchange.addresses = tuple(map(ip_address, addresses))
    return exchange


def response(status: int = 200, headers: Headers = (), *, phrase: str = "") -> ResponseHead:
    """The head that the made-up backend sends. Raises ValueError as `exchange` does."""
    return ResponseHead(status, phrase.encode("latin-1"), _fields(headers))


@dataclass(slots=True)
class FilterResult:
    """What came of an exchange.

    Attributes:
        exchange: with `request` as the backend gets it, and `notes`.
        local_response: what the filter returned instead of asking the backend, else None.
        error: what ended the exchange: a Rejected of the filter's (`status`, `message`, `remedy`, `rule`), NextAttempt
            where it has asked for another attempt, or a fault
            with the reason `filter_failed`, whose `detail` has the type of the exception and its place; else None.
        failures: what the gateway logs of a filter that failed, one sentence each; also where `fail_open` let it pass.
        tracebacks: the exceptions with which the filter failed, each with its text and traceback. They are logged, too,
            so that pytest shows them with a failing test.
        events: what the filter told with `context.notices`, each as "Reason: message".
        request_pieces: what goes to the backend for each piece of the request's body; b"" where nothing goes yet.
        response_pieces: what goes to the client for each piece of the response's body.
        request_trailers: what the filter leaves of them; empty where it does not see them. The gateway leaves out what
            must not come late (RFC 9110 section 6.5.1), too.
        response_trailers: the same of the response.
    """

    exchange: Exchange
    local_response: LocalResponse | None = None
    error: GatewayError | None = None
    failures: tuple[str, ...] = ()
    tracebacks: tuple[str, ...] = field(default=(), repr=False)
    events: tuple[str, ...] = ()
    request_pieces: tuple[bytes, ...] = ()
    response_pieces: tuple[bytes, ...] = ()
    request_trailers: Fields = field(default_factory=Fields)
    response_trailers: Fields = field(default_factory=Fields)

    @property
    def excluded_backends(self) -> frozenset[str]:
        """The backends that the filter has excluded, "namespace/name"."""
        choice = self.exchange.backend_choice
        return frozenset(choice.excluded) if choice is not None else frozenset()

    @property
    def preferred_backend(self) -> str:
        """The backend that the filter prefers; "" if it has none."""
        choice = self.exchange.backend_choice
        return choice.preferred if choice is not None else ""

    @property
    def request(self) -> RequestHead:
        """The head of the request, as the filter leaves it."""
        return self.exchange.request

    @property
    def response(self) -> ResponseHead:
        """The head that the client gets. Raises AssertionError if the exchange ended with an error."""
        told = "\n".join(("", *self.tracebacks))
        assert self.error is None, f"the exchange ended with an error: {self.error!r} {self.error.detail}{told}"
        return self.exchange.response

    @property
    def request_body(self) -> bytes:
        """The whole body that goes to the backend."""
        return b"".join(self.request_pieces)

    @property
    def response_body(self) -> bytes:
        """The whole body that goes to the client; empty for errors."""
        return b"".join(self.response_pieces)

    @property
    def status(self) -> int:
        """The status that the client gets; 0 where none has been decided on."""
        return self.exchange.status


class FilterHarness:
    """One filter, built from an extension as it stands in a manifest.

    `config` is the extension's `config`: for a Python filter `{"path": …, "config": {…}, "secrets": […]}`. `folder` is
    the folder of the manifest, where `path` starts. `secrets` are values by "name/key"; each must be one that `config`
    refers to. `timeout_s` is in seconds, 0 for none.

    Raises FilterBuildError where the configuration would be refused, and ValueError for a Secret that the config does
    not refer to.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        phase: Phase | str,
        type: str = "egressproxy.io/Python:v1",
        folder: str | PathLike[str] = ".",
        secrets: Mapping[str, bytes] | None = None,
        name: str = "test",
        fail_open: bool = False,
        timeout_s: float = 5.0,
        source: str = "EgressPolicy test/policy",
    ) -> None:
        given = {label: SecretBytes(value) for label, value in (secrets or {}).items()}
        spec = ExtensionIR(
            name,
            type,
            phase.value if isinstance(phase, Phase) else phase,
            fail_open=fail_open,
            timeout_s=timeout_s,
            config=json.dumps(config),
            secrets=tuple(given.items()),
            scope="Gateway test/gateway",
            source=source,
            folder=str(folder),
        )
        self._name = name
        self._notices = EventAggregator()
        self._metrics = FilterMetrics()
        self._instances = instances = FilterInstances(Catalog(), notices=self._notices, metrics=self._metrics)
        # In the order of `check`: all that can be said without running the filter's file is said first.
        instances.hold_code()
        with failures_shown():
            instances.place(spec)
            instances.release_code()
            if unknown := {label.rstrip("/") for label in given} - instances.secrets(spec).keys():
                names = ", ".join(sorted(unknown))
                raise ValueError(f"the config of filter {name} does not refer to the Secret {names}")
            self._chain: Chain = compile_chain([spec], instances.place)

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The filter's own metrics by name and labels, without the label `filter`; of a histogram the sums."""
        read = self._metrics.read()
        return {
            name: {labels[1:]: value for labels, value in each.values.items()}
            for name, each in read.items()
            if name != "egress_filter_blocked"  # of the gateway
        }

    def close(self) -> None:
        """Take the filter out of service, as a reload does."""
        self._instances.close()

    def run(
        self,
        exchange: Exchange,
        *,
        request_body: Body = (),
        request_trailers: Headers = (),
        response: ResponseHead | None = None,
        response_body: Body = (),
        response_trailers: Headers = (),
        phases: Iterable[Phase] | None = None,
    ) -> FilterResult:
        """Run the phases of one exchange, in the order of Phase, and then `complete`; of a tunnel, its two phases.

        The made-up backend sends `response` (default: 200 without fields) and `response_body`. With `phases`, only
        these run, and not `complete`. Errors that end the exchange are in the result. Raises RuntimeError in a running
        event loop: await `run_async` there.
        """
        if asyncio.events._get_running_loop() is not None:
            raise RuntimeError("`run` starts an event loop, and one is running: write `await harness.run_async(…)`")
        return asyncio.run(
            self.run_async(
                exchange,
                request_body=request_body,
                request_trailers=request_trailers,
                response=response,
                response_body=response_body,
                response_trailers=response_trailers,
                phases=phases,
            )
        )

    async def run_async(
        self,
        exchange: Exchange,
        *,
        request_body: Body = (),
        request_trailers: Headers = (),
        response: ResponseHead | None = None,
        response_body: Body = (),
        response_trailers: Headers = (),
        phases: Iterable[Phase] | None = None,
    ) -> FilterResult:
        """As `run`, in the running event loop."""
        wanted = frozenset(phases) if phases is not None else _TUNNEL_PHASES if exchange.is_tunnel else frozenset(Phase)
        left_out: dict[str, Any] = {phase.method: None for phase in Phase if phase not in wanted}
        chain = replace(self._chain, **left_out)
        result = FilterResult(
            exchange, request_trailers=_fields(request_trailers), response_trailers=_fields(response_trailers)
        )
        sent, received = _pieces(request_body), _pieces(response_body)
        exchange.request.body = sum(map(len, sent))
        response = response or ResponseHead(200, b"OK", Fields())
        response.body = sum(map(len, received))
        with failures_shown() as shown:
            try:
                try:
                    await _run_phases(chain, result, sent, response, received)
                except FilterAnswered as answered:
                    await _respond(answered.answer, chain, result, chain.response_headers)
                _check_types(exchange, self._name)
            except GatewayError as error:
                result.error = error
                exchange.status, exchange.reason, exchange.rule, exchange.detail = (
                    error.status,
                    error.reason,
                    error.rule,
                    error.detail,
                )
            if phases is None:
                finish(chain.complete, exchange)
        result.tracebacks = tuple(shown)
        notices = self._notices.take()
        failed = event_reason(Reason.FILTER_FAILED)
        result.failures = tuple(notice.message for notice in notices if notice.reason == failed)
        result.events = tuple(f"{notice.reason}: {notice.message}" for notice in notices if notice.reason != failed)
        return result


async def _run_phases(
    chain: Chain, result: FilterResult, sent: ByteQueue, response: ResponseHead, received: ByteQueue
) -> None:
    """All phases in their order, up to one that responds. Raises GatewayError, FilterAnswered for a body's response."""
    exchange = result.exchange
    if await _responds(chain.request_headers, chain, result):
        return
    exchange.upstream_host = exchange.upstream_host or exchange.request.host
    result.request_pieces, body = await _through(chain.request_body, exchange, sent, result.request_trailers)
    await _show(body, exchange, result.request_trailers)
    if await run_to_end(chain.connect, exchange) is not None:
        raise GatewayFault(Reason.FILTER_FAILED, "a filter answered in the connect phase", status=502)
    exchange.attempts += 1
    _stop(result.request_trailers, not chain.stops_request_trailers)
    _stop(result.request_trailers, not chain.stops_backend_trailers)
    result.request_pieces, body = await _through(
        chain.backend_request_body, exchange, result.request_pieces, result.request_trailers
    )
    if chain.needs_body >= 0:
        exchange.keep(SENT_BODY, b"".join(result.request_pieces))
    if await _responds(chain.backend_request, chain, result):
        return
    if chain.needs_body >= 0:
        exchange.keep(SENT_BODY, None)
    await _show(body, exchange, result.request_trailers)
    exchange.response = response
    for steps in chain.response_phases:
        if await _responds(steps, chain, result):
            return
    result.response_pieces, body = await _through(chain.response_body, exchange, received, result.response_trailers)
    await _show(body, exchange, result.response_trailers)
    _stop(result.response_trailers, not chain.response_phases or chain.lets_response_trailers)
    exchange.status = exchange.response.status


def _check_types(exchange: Exchange, name: str) -> None:
    """Raise GatewayFault for text where the gateway writes bytes: no head could be sent."""
    for what in ("path", "method"):
        if not isinstance(value := getattr(exchange.request, what), bytes):
            detail = f"filter {name} set x.request.{what} to {type(value).__name__}: write bytes"
            raise GatewayFault(Reason.FILTER_FAILED, f"filter {name} failed", status=502, detail=detail)


def _stop(trailers: Fields, lets: bool) -> None:
    """Drop them where the filter looks at the head and does not see them."""
    if not lets:
        trailers.block = b""


async def _responds(steps: FilterSteps | None, chain: Chain, result: FilterResult) -> bool:
    """Run a header phase; true if a filter responded, and the client gets that as the response filters leave it."""
    exchange = result.exchange
    answer = await run_to_end(steps, exchange)
    if answer is None:
        return False
    await _respond(answer, chain, result, chain.response_headers if steps is not chain.response_headers else None)
    return True


async def _respond(
    answer: LocalResponse, chain: Chain, result: FilterResult, response_filters: FilterSteps | None
) -> None:
    """The client gets this response of a filter; `response_filters` see it."""
    exchange = result.exchange
    result.local_response = answer
    result.response_pieces = (answer.body,) if answer.body else ()
    exchange.status = answer.status
    exchange.response = ResponseHead(answer.status, answer.phrase, Fields.of(answer.fields))
    if response_filters is not None:
        await _responds(response_filters, chain, result)


async def _through(
    plan: BodyPlan | None, exchange: Exchange, pieces: ByteQueue, trailers: Fields
) -> tuple[ByteQueue, BodyChain | None]:
    """The pieces of a body as its filters let them go on, and the filters. These trailers follow."""
    chain = plan.begin(exchange) if plan is not None and pieces else None
    if chain is None:
        return pieces, None
    if plan is not None and plan.phase is Phase.RESPONSE_BODY and not chain.holds:
        exchange.status = exchange.response.status  # the head goes before the body
    made = []
    for number, piece in enumerate(pieces, 1):
        is_last = number == len(pieces)
        if is_last and len(trailers):
            chain.expect_trailers(exchange, trailers.block)
        made.append(await chain.feed_to_end(exchange, piece, is_last))
    return tuple(made), chain


async def _show(chain: BodyChain | None, exchange: Exchange, trailers: Fields) -> None:
    """Let the filters of a body see and change its trailers."""
    if chain is not None and len(trailers):
        outcome = chain.run_trailers(exchange, trailers.block)
        left = outcome if isinstance(outcome, bytes) else await outcome
        trailers.block = left if chain.lets_trailers else b""


def _pieces(body: Body) -> ByteQueue:
    if isinstance(body, bytes):
        return (body,) if body else ()
    return tuple(body)


def _fields(headers: Headers) -> Fields:
    lines = headers.items() if isinstance(headers, Mapping) else headers
    made = Fields()
    for name, value in lines:
        if name.lower() in _TAKEN_OUT:
            raise ValueError(f"filters do not see {name}: the gateway takes it out before, and writes it itself")
        made.add(name.encode(), value.encode("latin-1"))
    return made
