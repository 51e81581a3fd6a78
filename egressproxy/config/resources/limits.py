"""`limits` of an EgressPolicy."""

from typing import Annotated, Any, Literal

from pydantic import Field

from egressproxy.config.resources.meta import Model
from egressproxy.config.resources.object_references import BackendObjectReference, SecretObjectReference
from egressproxy.config.resources.values import (
    Count,
    Duration,
    HeaderName,
    Positive,
    PositiveDuration,
    RefusedValue,
    check_unique,
)

LimitKey = Literal["Gateway", "Route", "Backend", "Identity", "Namespace", "Model", "Header"]
LimitUnit = Literal["Second", "Minute", "Hour", "Day", "Month"]


class CountedLimit(Model):
    """A limit with a key."""

    per: LimitKey
    """The key that a request counts for. Identity: the service account, else the client's name, else its address."""
    also_per: tuple[LimitKey, ...] = ()
    """Further parts of the key: each combination has a separate count."""
    header: HeaderName | None = None
    """The name of the field for Header."""

    def model_post_init(self, context: Any) -> None:
        check_unique(self.keys, "part", "per and alsoPer")
        if ("Header" in self.keys) != (self.header is not None):
            raise RefusedValue("header names the field of per: Header", "write both, or neither")

    @property
    def keys(self) -> tuple[LimitKey, ...]:
        return (self.per, *self.also_per)


class Rate(CountedLimit):
    """At most `limit` in each `window` or `unit`, and `burst` at once."""

    limit: Positive
    """The number per window."""
    window: PositiveDuration = Duration("1s", 1.0)
    """Length of the window, over which a token bucket refills."""
    unit: LimitUnit | None = None
    """Instead of window. Day and Month are those of the calendar, in UTC."""
    burst: Positive | None = None
    """The size of the token bucket. Default: the limit."""

    def model_post_init(self, context: Any) -> None:
        if self.unit is not None and "window" in self.model_fields_set:
            raise RefusedValue("unit and window say the same", "keep one of them")
        if self.unit in ("Day", "Month") and self.burst is not None:
            raise RefusedValue(f"a {self.unit} does not refill, so burst means nothing", "remove burst")
        super().model_post_init(context)


class AmountRate(Rate):
    """A Rate of bytes or tokens."""

    count: Literal["Total", "Input", "Output"] = "Total"
    """The counted part: the request (Input), the response (Output), or both."""


class CostRate(Rate):
    """A Rate of money, in the currency of the prices."""

    limit: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]  # type: ignore[assignment]
    """The amount per window."""
    unit: LimitUnit | None = "Month"
    """Instead of window. Day and Month are those of the calendar, in UTC."""


class Concurrency(CountedLimit):
    limit: Positive
    """The number at the same time."""


class ModelPrice(Model):
    """The price of a million tokens of these models."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of models, with `*` for any characters. The first match wins."""
    input: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    """The price of request tokens."""
    cached_input: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    """The price of cached request tokens. Default: as input."""
    output: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    """The price of response tokens."""


class LimitStore(Model):
    """The store of counts: memory of this machine, or a shared Redis."""

    type: Literal["Memory", "Redis"] = "Memory"
    """Memory: the processes of this machine count together. Redis: several machines count together."""
    backend_ref: BackendObjectReference | None = None
    """The backend of the Redis: one server, no cluster."""
    secret_ref: SecretObjectReference | None = None
    """The Secret with the password of the Redis."""
    username: str = ""
    """The user name. Default: the default user."""
    database: Annotated[int, Field(strict=True, ge=0, le=1023)] = 0
    """The number of the database."""
    timeout: PositiveDuration = Duration("100ms", 0.1)
    """The time limit of a reply. After a timeout the Redis counts as unavailable until it reconnects."""
    on_failure: Literal["Local", "Allow", "Deny"] = "Local"
    """The behaviour while the Redis is unavailable. Local: this machine gets its fair share of the rest. Deny: 503."""

    def model_post_init(self, context: Any) -> None:
        if self.type == "Redis" and self.backend_ref is None:
            raise RefusedValue("a store of type Redis needs backendRef", "add backendRef")


class Limits(Model):
    """Limits of listeners and requests. 0 or absent: no limit, but heads and buffered bodies have built-in limits, and
    `connectionsPerClient` defaults to three quarters of `connections` and `tunnels`.
    """

    max_head_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] | None = None
    """Size of a request's head; 431 beyond."""
    max_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Fields of a request's head; 431 beyond."""
    max_body_bytes: Count | None = None
    """Size of a request's body; 413 beyond."""
    max_buffered_bytes: Count | None = None
    """Size of a request's body that is buffered for a filter, an authorization server or a translation; 413 beyond.
    Default: 32 MiB; 0: their own limits.
    """
    buffered_bytes_per_client: Count | None = None
    """Bytes of buffered bodies of one client, in each worker; further bodies of the client wait. Default: 64 MiB; 0: no
    limit, for one address with many clients.
    """
    buffered_bytes_per_connection: Count | None = None
    """Bytes of buffered bodies of one HTTP/2 connection. Default: 64 MiB; 0: no limit."""
    connections: Count | None = None
    """Connections to one listener, in each worker."""
    connections_per_client: Count | None = None
    """The most connections of one client. Default: three quarters; 0: all."""
    tunnels: Count | None = None
    """Tunnels of one listener, in each worker."""
    requests: tuple[Rate, ...] = ()
    """Requests by time; 429 with Retry-After beyond."""
    tokens: tuple[AmountRate, ...] = ()
    """Tokens of language models by time, reserved by estimate and settled with the provider's usage; 429 beyond."""
    bytes: tuple[AmountRate, ...] = ()
    """Bytes by time, as the access log counts them; 429 beyond."""
    cost: tuple[CostRate, ...] = ()
    """Money by time, of tokens at these prices; 429 beyond."""
    prices: tuple[ModelPrice, ...] = ()
    """The prices of tokens. A limit of cost refuses models without a price."""
    concurrency: tuple[Concurrency, ...] = ()
    """Requests at the same time."""
    mode: Literal["Enforce", "Report"] = "Enforce"
    """Report: requests above a limit pass, and are reported in log and metrics. Not for sizes and connections."""
    rate_limit_headers: Literal["Denied", "Always", "Never"] = "Denied"
    """The responses with RateLimit fields: refusals, all, or none."""
    max_keys: Annotated[int, Field(strict=True, ge=1, le=4_000_000)] = 16_384
    """The number of separate keys of one limit; 64 bytes of memory each. Further keys share one count. By default, all
    policies with `subjects` share 262,144 keys, except limits per Header or Model.
    """
    store: LimitStore | None = None
    """The store of these limits, except concurrency, which each machine counts."""

    def model_post_init(self, context: Any) -> None:
        if self.cost and not self.prices:
            raise RefusedValue("cost needs prices", "add prices: what tokens of each model cost")

    @property
    def are_counted(self) -> bool:
        """Whether there is a limit of requests, tokens, bytes, cost or concurrency."""
        return bool(self.requests or self.tokens or self.bytes or self.cost or self.concurrency)
