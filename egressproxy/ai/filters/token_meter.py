"""TokenMeter: tokens, time and cost of requests to AI providers, in metrics (by OpenTelemetry's names) and the log.

The numbers are the provider's. The filter requests the usage of an OpenAI chat stream, and hides it from a client that
did not. Nothing is estimated: responses without usage have a count of their own.
Source: OpenTelemetry semantic conventions, generative AI metrics and model server metrics (in development).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from egressproxy.ai.apis.apis import Operation
from egressproxy.ai.apis.message import READ_AT_ONCE
from egressproxy.ai.apis.shared import add_usage, operation, provider_name, usage_told
from egressproxy.ai.apis.usage import TokenUsage
from egressproxy.ai.apis.websockets import asks_for_messages
from egressproxy.ai.limits.prices import cost_of, price_of
from egressproxy.ai.limits.token_use import TokenUse, told_in_head
from egressproxy.filters.base import BodyMode, BodyResult, Filter, FilterContext, FilterType, OfMessages, Phase
from egressproxy.filters.limits.qos_config import TokenPrice
from egressproxy.filters.limits.rules import KeyText, key_text
from egressproxy.filters.messages import are_read
from egressproxy.filters.settings import FieldName, FilterConfig, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES, FieldFault
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.exchange_trace import ExchangeTrace
from egressproxy.model.fields import media_type
from egressproxy.model.work import Work
from egressproxy.net.cooperative import in_turns
from egressproxy.telemetry.counters import OVERFLOW

#: The boundaries that the conventions name.
TOKEN_BUCKETS: Final = tuple(4.0**power for power in range(14))
FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_LABELS: Final = (
    "route", "backend", "tenant", "gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model",
    "gen_ai_response_model",
)  # fmt: skip
#: Attributes of spans that the log has not: the labels behind the first three.
_OF_SPANS: Final = ("gen_ai.operation.name", "gen_ai.provider.name")
_READ_TYPES: Final = frozenset((b"application/json", b"text/event-stream", b"application/vnd.amazon.eventstream"))
#: The most characters of a model's name in the log.
_LOGGED: Final = 128


@dataclass(frozen=True, slots=True)
class TokenMeterConfig(FilterConfig):
    """Prices, and the label for the tenant."""

    prices: tuple[TokenPrice, ...] = ()
    """The prices of tokens; the first entry that matches the model wins."""
    currency: Annotated[str, Within(pattern=r"^[A-Z]{3}$")] = "USD"
    """The ISO 4217 code of the prices' currency, a label of the metric."""
    tenant: Literal["Namespace", "Identity", "Header", "None"] = "Namespace"
    """The value of the label `tenant`: the client's namespace, its namespace and service account (the address if
    unknown), or the value of a field."""
    tenant_header: FieldName | Literal[""] = ""
    """The field for `tenant: Header`. Clients can forge it, unless your own filter or proxy sets it."""
    max_models: Annotated[int, Within(ge=1, le=1000)] = 100
    """The most models with separate metrics; others are counted together."""
    max_tenants: Annotated[int, Within(ge=1, le=1000)] = 200
    """The most tenants with separate metrics; others are counted together."""
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request to a provider that is read; 413 beyond."""

    def __post_init__(self) -> None:
        if (self.tenant == "Header") != bool(self.tenant_header):
            raise FieldFault(
                "`tenantHeader` names the field for `tenant: Header`: write both, or neither", "tenantHeader"
            )


class _Measured(TokenUse):
    """A TokenUse with timestamps."""

    wants_model = True

    def __init__(self, now: float) -> None:
        super().__init__()
        self.began_at = now
        self.first_at = self.ended_at = 0.0


class TokenMeter(Filter):
    """Counts at the end of each exchange. A model gets a label only once a provider has served it, so clients cannot
    fill the metrics with invented names.
    """

    runs_in = frozenset((Phase.REQUEST_HEADERS, Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY))
    max_answer_bytes = 8 * 1024 * 1024
    decodes = True
    ignores_trailers = True
    of_messages = OfMessages.ASKS

    def __init__(self, context: FilterContext, clock: Callable[[], float] = time.monotonic) -> None:
        config: TokenMeterConfig = context.config
        self.max_buffer_bytes = config.max_body_bytes
        self._clock = clock
        self._measured: StateSlot[_Measured] = StateSlot("token meter")
        self._prices = config.prices
        self._currency = config.currency
        self._tenant: KeyText | None = None
        if config.tenant != "None":
            self._tenant = key_text((config.tenant,), config.tenant_header)
        self._models: set[str] = set()
        self._tenants: set[str] = set()
        self._max_models = config.max_models
        self._max_tenants = config.max_tenants
        meter = context.meter
        self._usage = meter.histogram(
            "gen_ai_client_token_usage",
            "Tokens of one request, as its provider told them.",
            TOKEN_BUCKETS,
            (*_LABELS, "gen_ai_token_type"),
        )
        self._first = meter.histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From the head of the request to the first piece of text of a stream.",
            FIRST_TOKEN_BUCKETS,
            _LABELS,
        )
        self._each = meter.histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Of a stream, for each token behind the first one.",
            PER_TOKEN_BUCKETS,
            _LABELS,
        )
        self._tokens = meter.counter("egress_ai_tokens", "Tokens, by kind.", (*_LABELS, "kind"))
        self._cost = meter.counter("egress_ai_cost", "What the tokens cost.", (*_LABELS, "currency"))
        self._untold = meter.counter(
            "egress_ai_untold",
            "Answers of status 2xx that told no usage, and unseen sessions.",
            ("route", "backend", "tenant"),
        )

    def request_headers(self, exchange: Exchange) -> None:
        if exchange.request.upgrade:
            asks_for_messages(exchange, needs_them=False)
        elif not exchange.is_tunnel and exchange.request.body and operation(exchange) is not None:
            exchange.keep(self._measured, _Measured(self._clock()))

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        measured = exchange.state.get(self._measured)
        if measured is None:
            return None
        if phase is Phase.REQUEST_BODY:
            return BodyMode.BUFFER
        if media_type(exchange.response.fields) not in _READ_TYPES or exchange.response.status >= 300:
            return None
        measured.begin_answer(exchange, media_type(exchange.response.fields))
        return BodyMode.STREAM

    def request_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        measured = exchange.state.get(self._measured)
        if measured is None:
            return data
        return (
            in_turns(measured.reading(exchange, data, 0, 0))
            if len(data) > READ_AT_ONCE
            else measured.read(exchange, data, 0, 0)
        )

    def response_headers(self, exchange: Exchange) -> None:
        if exchange.state.get(self._measured) is not None:
            add_usage(exchange, told_in_head(exchange))

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> BodyResult:
        measured = exchange.state.get(self._measured)
        if measured is None:
            return data
        if measured.takes_long(data):
            return in_turns(self._feeding(exchange, measured, data, last))
        had_tokens = measured.seen_tokens
        return self._timed(measured, had_tokens, measured.feed(exchange, data, last))

    def _feeding(self, exchange: Exchange, measured: _Measured, data: bytes, last: bool) -> Work[bytes]:
        had_tokens = measured.seen_tokens
        return self._timed(measured, had_tokens, (yield from measured.feeding(exchange, data, last)))

    def _timed(self, measured: _Measured, had_tokens: int, data: bytes) -> bytes:
        if measured.seen_tokens > had_tokens:
            measured.ended_at = self._clock()
            measured.first_at = measured.first_at or measured.ended_at
        return data

    def complete(self, exchange: Exchange) -> None:
        measured = exchange.state.get(self._measured)
        if measured is None:
            if exchange.status == 101 and b"realtime" in exchange.request.path and not are_read(exchange):
                self._untold.add(1, exchange.route, exchange.backend, self._tenant_of(exchange))
            return
        asked = operation(exchange)
        usage = usage_told(exchange)
        tenant = self._tenant_of(exchange)
        if not 200 <= exchange.status < 300 or asked is None:
            return
        if usage is None:
            if exchange.has_response:  # to an event of a realtime session that asks for nothing there is none
                self._untold.add(1, exchange.route, exchange.backend, tenant)
            return
        labels = self._labels(exchange, asked, measured, tenant)
        self._usage.observe(usage.input_tokens, *labels, "input")
        self._usage.observe(usage.output_tokens, *labels, "output")
        for kind, count in (
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cached", usage.cached_tokens),
            ("cache_write", usage.cache_write_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if count:
                self._tokens.add(count, *labels, kind)
        if measured.first_at:
            self._first.observe(measured.first_at - measured.began_at, *labels, exchange=exchange)
            if usage.output_tokens > 1:
                self._each.observe((measured.ended_at - measured.first_at) / (usage.output_tokens - 1), *labels)
        price = price_of(self._prices, measured.served_model or measured.model)
        price = price or price_of(self._prices, measured.model)
        if price is not None:
            self._cost.add(cost_of(usage, price), *labels, self._currency)
        exchange.add_log_fields(self._log_fields(measured, usage, price))
        trace: ExchangeTrace | None = exchange.trace
        if trace is not None:
            found = zip(_OF_SPANS, labels[3:5], strict=True)
            trace.add_attributes({name: label for name, label in found if label != "-"})

    def _log_fields(self, measured: _Measured, usage: TokenUsage, price: TokenPrice | None) -> dict[str, object]:
        fields: dict[str, object] = {
            "gen_ai.request.model": measured.model[:_LOGGED],
            "gen_ai.response.model": measured.served_model[:_LOGGED],
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
        if usage.cached_tokens:
            fields["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        if usage.cache_write_tokens:
            fields["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write_tokens
        if measured.first_at:
            fields["gen_ai.response.time_to_first_chunk"] = round(measured.first_at - measured.began_at, 3)
        if price is not None:
            fields["ai_cost"] = round(cost_of(usage, price), 9)
            fields["ai_currency"] = self._currency
        return fields

    def _labels(self, exchange: Exchange, asked: Operation, measured: _Measured, tenant: str) -> tuple[str, ...]:
        served = measured.served_model or measured.model
        return (
            exchange.route,
            exchange.backend,
            tenant,
            asked.api.operation_name,
            provider_name(exchange, asked),
            _bounded(measured.model, self._models, self._max_models),
            _bounded(served, self._models, self._max_models),
        )

    def _tenant_of(self, exchange: Exchange) -> str:
        if self._tenant is None:
            return "-"
        tenant = self._tenant(exchange, "").decode("utf-8", "replace") or "-"
        return _bounded(tenant, self._tenants, self._max_tenants)

    def held_bytes(self, exchange: Exchange, phase: Phase) -> int:
        measured = exchange.state.get(self._measured)
        return measured.held_bytes if measured is not None else 0


def _bounded(name: str, known: set[str], most: int) -> str:
    if name in known:
        return name
    if len(known) >= most:
        return OVERFLOW
    known.add(name)
    return name


TOKEN_METER = FilterType(
    name="egressproxy.io/TokenMeter:v1",
    phases=frozenset((Phase.REQUEST_HEADERS,)),
    also=frozenset((Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS, Phase.RESPONSE_BODY)),
    config_model=TokenMeterConfig,
    build=TokenMeter,
    summary="Counts tokens, times and costs of requests to AI providers by OpenTelemetry's names.",
)
