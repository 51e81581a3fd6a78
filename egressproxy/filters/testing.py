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
from dataclasses import dataclass
from ipaddress import ip_address
from os import PathLike
from typing import Any

from egressproxy.errors import GatewayError, GatewayFault, Reason
from egressproxy.filters.base import Phase
from egressproxy.filters.body import BodyPlan
from egressproxy.filters.catalog import Catalog
from egressproxy.filters.chain import Chain, Steps, compile_chain, finish, run
from egressproxy.filters.instances import FilterBuildError, FilterInstances
from egressproxy.ir.policy import ExtensionIR
from egressproxy.model.authority import parse_authority
from egressproxy.model.exchange import CallerIdentity, Exchange, LocalResponse
from egressproxy.model.fields import Fields
from egressproxy.model.message import RequestHead, ResponseHead
from egressproxy.model.secret import SecretBytes
from egressproxy.telemetry.notices import Notices

__all__ = ["FilterBuildError", "FilterHarness", "FilterResult", "GatewayError", "exchange", "response"]

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
#: A body: whole, or in the pieces in which it arrives. b"" and () are no body at all.
Body = bytes | Sequence[bytes]

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
    scheme, _, rest = ("http", "", url) if method == "CONNECT" else url.partition("://")
    if scheme not in _DEFAULT_PORTS or "#" in rest:
        raise ValueError(f"{url!r} is not a URL of a request: write http://HOST[:PORT]/PATH, or HOST:PORT for CONNECT")
    host, slash, path = rest.partition("/")
    x = Exchange(client, "test/gateway", "test", time.monotonic())
    x.request_id = "test-1"
    x.method = method.encode()
    x.scheme = scheme.encode()
    if method == "CONNECT":
        x.is_tunnel = True
        x.kind = "tunnel"
        x.authority = parse_authority(url.encode())
        target = url.encode()
    else:
        host, slash, path = rest.partition("/")
        x.authority = parse_authority(host.encode(), _DEFAULT_PORTS[scheme])
        target = (slash + path or "/").encode()
        x.path = target.partition(b"?")[0]
    x.identity = CallerIdentity(*identity.split("/"))
    x.backend = backend
    x.backend_is_secure = backend_is_secure
    x.addresses = tuple(map(ip_address, addresses))
    x.request = RequestHead(x.method, target, _fields(headers))
    x.request.authority = x.authority
    x.request.host = x.authority.host_field(_DEFAULT_PORTS[scheme])
    return x


def response(status: int = 200, headers: Headers = (), *, phrase: str = "") -> ResponseHead:
    """The head that the made-up backend sends. Raises ValueError as `exchange` does."""
    return ResponseHead(status, phrase.encode("latin-1"), _fields(headers))


@dataclass(slots=True)
class FilterResult:
    """What came of an exchange.

    Attributes:
        exchange: with `request` as the backend gets it, and `notes`.
        local_response: what the filter returned instead of asking the backend, else None.
        error: what ended the exchange: a Rejected of the filter's (`status`, `message`, `remedy`, `rule`), or a fault
            with the reason `filter_failed`, whose `detail` has the type of the exception and its place; else None.
        failures: what the gateway logs of a filter that failed, one sentence each; also where `fail_open` let it pass.
        request_pieces: what goes to the backend for each piece of the request's body; b"" where nothing goes yet.
        response_pieces: what goes to the client for each piece of the response's body.
    """

    exchange: Exchange
    local_response: LocalResponse | None = None
    error: GatewayError | None = None
    failures: tuple[str, ...] = ()
    request_pieces: tuple[bytes, ...] = ()
    response_pieces: tuple[bytes, ...] = ()

    @property
    def request(self) -> RequestHead:
        """The head of the request, as the filter leaves it."""
        return self.exchange.request

    @property
    def response(self) -> ResponseHead:
        """The head that the client gets. Raises AssertionError if the exchange ended with an error."""
        assert self.error is None, f"the exchange ended with an error: {self.error!r} {self.error.detail}"
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
        self._notices = Notices()
        instances = FilterInstances(Catalog(), notices=self._notices)
        # In the order of `check`: all that can be said without running the filter's file is said first.
        instances.hold_code()
        instances.place(spec)
        instances.release_code()
        unknown = {label.rstrip("/") for label in given} - instances.secrets(spec).keys()
        if unknown:
            raise ValueError(f"the config of filter {name} does not refer to the Secret {', '.join(sorted(unknown))}")
        self._chain: Chain = compile_chain([spec], instances.place)

    def run(
        self,
        x: Exchange,
        *,
        request_body: Body = (),
        response: ResponseHead | None = None,
        response_body: Body = (),
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
            self.run_async(x, request_body=request_body, response=response, response_body=response_body, phases=phases)
        )

    async def run_async(
        self,
        x: Exchange,
        *,
        request_body: Body = (),
        response: ResponseHead | None = None,
        response_body: Body = (),
        phases: Iterable[Phase] | None = None,
    ) -> FilterResult:
        """As `run`, in the running event loop."""
        wanted = _TUNNEL_PHASES if x.is_tunnel else frozenset(Phase)
        if phases is not None:
            wanted = frozenset(phases)
        result = FilterResult(x)
        sent, received = _pieces(request_body), _pieces(response_body)
        x.request.body = sum(map(len, sent))
        try:
            await self._to_backend(result, sent, wanted)
            if result.local_response is None:
                x.response = response or ResponseHead(200, b"OK", Fields())
                x.response.body = sum(map(len, received))
                await self._to_client(result, received, wanted)
        except GatewayError as error:
            result.error = error
            x.status, x.reason, x.rule, x.detail = error.status, error.reason, error.rule, error.detail
        if phases is None:
            finish(self._chain.complete or (), x)
        result.failures = tuple(notice.message for notice in self._notices.take())
        return result

    async def _to_backend(self, result: FilterResult, sent: tuple[bytes, ...], wanted: frozenset[Phase]) -> None:
        chain, x = self._chain, result.exchange
        if await self._headers(chain.request_headers, Phase.REQUEST_HEADERS, result, wanted):
            return
        x.upstream_host = x.upstream_host or x.request.host
        result.request_pieces = await _through(chain.request_body, Phase.REQUEST_BODY, x, sent, wanted)
        if await self._headers(chain.connect, Phase.CONNECT, result, wanted):
            result.local_response = None
            raise GatewayFault(Reason.FILTER_FAILED, "a filter answered in the connect phase", status=502)
        await self._headers(chain.backend_request, Phase.BACKEND_REQUEST, result, wanted)

    async def _to_client(self, result: FilterResult, received: tuple[bytes, ...], wanted: frozenset[Phase]) -> None:
        chain, x = self._chain, result.exchange
        for phase, steps in (
            (Phase.BACKEND_RESPONSE, chain.backend_response),
            (Phase.RESPONSE_HEADERS, chain.response_headers),
        ):
            if await self._headers(steps, phase, result, wanted):
                return
        x.status = x.response.status
        result.response_pieces = await _through(chain.response_body, Phase.RESPONSE_BODY, x, received, wanted)

    async def _headers(self, steps: Steps | None, phase: Phase, result: FilterResult, wanted: frozenset[Phase]) -> bool:
        """Run a header phase; true if the filter responded, and the client gets that."""
        if steps is None or phase not in wanted:
            return False
        x = result.exchange
        outcome = run(steps, x)
        if isinstance(outcome, asyncio.Task):
            outcome = await outcome
        if outcome is None:
            return False
        result.local_response = outcome
        result.response_pieces = (outcome.body,) if outcome.body else ()
        x.status = outcome.status
        x.response = ResponseHead(outcome.status, outcome.phrase, Fields.of(outcome.fields))
        if phase is not Phase.RESPONSE_HEADERS and phase is not Phase.CONNECT:
            # Response filters see a filter's response, too.
            await self._headers(self._chain.response_headers, Phase.RESPONSE_HEADERS, result, wanted)
        return True


async def _through(
    plan: BodyPlan | None, phase: Phase, x: Exchange, pieces: tuple[bytes, ...], wanted: frozenset[Phase]
) -> tuple[bytes, ...]:
    """The pieces of a body as its filters let them go on."""
    if plan is None or not pieces or phase not in wanted:
        return pieces
    chain = plan.begin(x)
    sent = []
    for number, piece in enumerate(pieces, 1):
        given = chain.feed(x, piece, number == len(pieces))
        sent.append(given if isinstance(given, bytes) else await given)
    return tuple(sent)


def _pieces(body: Body) -> tuple[bytes, ...]:
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
