"""ExternalAuth: asks a server of the operator's whether a request may go on. Whatever goes wrong denies.

It runs in the request-headers phase, behind the limits and before everything that changes the request, so that the
server judges what the client has asked for. Source: Gateway API HTTPExternalAuthFilter (GEP-1494).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from egressproxy.envoy.field_change import FieldChange, apply
from egressproxy.errors import BadRequest, GatewayError, GatewayFault, Reason
from egressproxy.filters.header_policy import is_protected
from egressproxy.gateway.backends.buffered_body import BUFFERED_REQUEST, BufferedRequest
from egressproxy.gateway.enforcement import enforce
from egressproxy.gateway.product_types import ExternalAuthorization
from egressproxy.ir.policy import Mode
from egressproxy.ir.route import ExternalAuthIR
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.strict_json import SHORT
from egressproxy.routing.destinations import Denial
from egressproxy.telemetry.event_aggregator import Refusal
from egressproxy.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from egressproxy.ai.filters.access_rules import AccessRules


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`answer` is a denial. None: the request goes on, with these changes of it, and of the response to the client."""

    answer: LocalResponse | None = None
    request: tuple[FieldChange, ...] = ()
    response: tuple[FieldChange, ...] = ()


def is_ours(name: bytes) -> bool:
    """Whether only the gateway writes this field, in any spelling: framing, routing, this hop."""
    return is_protected(name.decode("latin-1"))


def is_for_clients(name: bytes) -> bool:
    """Whether a server may send this field to clients. X-Egress-…, in either spelling, are fields of the gateway."""
    return not (is_ours(name) or name.lower().replace(b"_", b"-").startswith(b"x-egress-"))


def denial(status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes, phrase: bytes = b"") -> CheckResult:
    """A refusal in the server's own words. Raises ValueError for a status or a field that no answer can have; a 407
    would make clients send us the credentials that they have for a proxy.
    """
    if not 200 <= status <= 599 or status == 407:
        raise ValueError(f"status {status}")
    kept = tuple((name, value) for name, value in fields if is_for_clients(name) and name.lower() != b"date")
    return CheckResult(LocalResponse(status, tuple(Fields.of(kept)), b"" if status in (204, 304) else body, phrase))


#: How long a server may think where no policy says it (`backendRequest`).
AUTH_TIMEOUT_S = 5.0


class AuthzClient(Protocol):
    """Puts the question in one protocol."""

    async def check(self, exchange: Exchange, held: BufferedRequest, body: bytes, timeout_s: float) -> CheckResult:
        """Ask about `exchange`, showing this part of its body, in a task that is cancelled after `timeout_s` seconds.
        Raises GatewayError if there is no response, ValueError if it is invalid.
        """


class ExternalAuth(ExternalAuthorization):
    """`client` None: there is no server that could be asked, and every request is refused. `closed_by`: a policy denies
    the place of the server; with a client (Report mode) it is noted and no more.
    """

    ignores_trailers = True

    def __init__(
        self,
        spec: ExternalAuthIR,
        client: AuthzClient | None,
        route: str,
        metrics: Metrics,
        closed_by: Denial | None = None,
    ) -> None:
        self.spec = spec
        self._client = client
        self._closed_by = closed_by
        self._source = spec.place.source
        self.server = spec.backend.backend.label if spec.backend.backend is not None else "-"
        self._route = route
        refused, why = "the authorization server refused a request", "its answer, which the client got, says why"
        self._denied = Refusal(Reason.EXT_AUTH_DENIED, refused, self._source, why, is_of_exchange=True)
        self._metrics = metrics
        #: The changes that the server wants of the answer.
        self._added: StateSlot[tuple[FieldChange, ...]] = StateSlot("external auth")
        self._rules: AccessRules | None = None
        if spec.condition is not None:
            from egressproxy.ai.filters.access_policy import AccessPolicyConfig
            from egressproxy.ai.filters.access_rules import AccessRules

            assert isinstance(spec.condition, AccessPolicyConfig)
            self._rules = AccessRules(spec.condition.rules, spec.condition.listener_port)
        self._timeout_s = spec.backend.policy.timeouts.backend_request_s or AUTH_TIMEOUT_S

    async def request_headers(self, exchange: Exchange) -> LocalResponse | None:
        """Ask the server. Returns its denial. Raises GatewayError without a server or a valid response in time."""
        if self._rules is not None and not await self._is_asked(self._rules, exchange):
            return None
        if self._client is None:
            raise self.unusable()
        if self._closed_by is not None:
            enforce(exchange, Mode.REPORT, self._closed_by.error())
        held = exchange.state.get(BUFFERED_REQUEST)
        assert held is not None
        body = b""
        most = self.spec.max_body
        if most and exchange.request.body != 0:
            body = await held.take_body(most if exchange.max_body_bytes < 0 else min(most, exchange.max_body_bytes))
        started = monotonic()
        result = "error"
        try:
            async with asyncio.timeout(self._timeout_s):
                verdict = await self._client.check(exchange, held, body, self._timeout_s)
            apply(verdict.request, exchange.request.fields)
            result = "allowed" if verdict.answer is None else "denied"
        except TimeoutError:
            result = "timeout"
            raise self._fault("did not answer in time", 504, f"no answer in {self._timeout_s:g} s") from None
        except ValueError as error:
            raise self._fault("returned an invalid response", 502, str(error)) from None
        except BadRequest:
            raise  # the client's fault
        except GatewayError as error:
            status = error.status if error.status >= 500 else 502
            detail = f"{error.reason.value}: {error.message}{': ' if error.detail else ''}{error.detail}"
            raise self._fault("could not be asked", status, detail) from None
        except asyncio.CancelledError:
            result = "cancelled"  # the client has left, or its time is over
            raise
        finally:
            self._metrics.external_auth.count(self._route, self.server, result, monotonic() - started)
        if verdict.response:
            exchange.keep(self._added, verdict.response)
        if verdict.answer is None:
            return None
        exchange.reason = Reason.EXT_AUTH_DENIED
        exchange.rule = self._source
        exchange.denied = True
        self._metrics.notices.refused(exchange.series, self._denied, self._source.partition(" ")[0])
        request = exchange.request
        is_json = request.body != 0 and b"json" in (request.fields.get(b"content-type") or b"")
        if self._rules is not None and verdict.answer.status == 403 and is_json:
            from egressproxy.ai.filters.access_policy import forbidden

            return forbidden(await held.peek(SHORT), self._source) or verdict.answer
        return verdict.answer

    async def _is_asked(self, rules: AccessRules, exchange: Exchange) -> bool:
        """Whether the rules of an XAccessPolicy name this request. Tunnels are refused by the filter of the policy."""
        if exchange.is_tunnel:
            return False
        body: bytes | None = b""
        if rules.looks_at_messages and exchange.request.body != 0:
            held = exchange.state.get(BUFFERED_REQUEST)
            assert held is not None
            body = await held.peek(SHORT + 1)
        return rules.match(exchange, body if body is not None and len(body) <= SHORT else None)

    def response_headers(self, exchange: Exchange) -> None:
        changes = exchange.state.get(self._added)
        if changes:
            apply(changes, exchange.response.fields)

    @property
    def is_usable(self) -> bool:
        return self._client is not None

    def unusable(self) -> GatewayError:
        if self._closed_by is not None:
            return self._closed_by.error()
        reason, happened = Reason.BACKEND_INVALID, "cannot be used"
        if missing := self.spec.backend.unknown_extension:
            reason, happened = Reason.UNKNOWN_EXTENSION, f"needs the {missing}, which this gateway does not have"
        return self._fault(happened, 500, self.spec.backend.error, reason)

    def _fault(self, happened: str, status: int, detail: str, reason: Reason = Reason.EXT_AUTH_ERROR) -> GatewayFault:
        message = f"the authorization server of this route {happened}"
        return GatewayFault(reason, message, status=status, rule=self._source, detail=detail)
