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
    """What is counted for whom."""

    per: LimitKey
    """Whose count a request adds to. Identity: the service account, else the name of the client, or its address where
    it is not known.
    """
    also_per: tuple[LimitKey, ...] = ()
    """Further parts: each combination has a count of its own."""
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
    """At most `limit` in each `window` or `unit`; `burst` at once (default: as many as the limit)."""

    limit: Positive
    """How many in each window."""
    window: PositiveDuration = Duration("1s", 1.0)
    """Length of the window, in which the count refills steadily."""
    unit: LimitUnit | None = None
    """Instead of window. Day and Month are those of the calendar, in UTC."""
    burst: Positive | None = None
    """How many at once. Default: as many as the limit."""

    def model_post_init(self, context: Any) -> None:
        if self.unit is not None and "window" in self.model_fields_set:
            raise RefusedValue("unit and window say the same", "keep one of them")
        if self.unit in ("Day", "Month") and self.burst is not None:
            raise RefusedValue(f"a {self.unit} does not refill, so burst means nothing", "remove burst")
        super().model_post_init(context)


class AmountRate(Rate):
    """A Rate of bytes or tokens."""

    count: Literal["Total", "Input", "Output"] = "Total"
    """Those of the request (Input), of the answer (Output), or both."""


class CostRate(Rate):
    """A Rate of money, in the currency of the prices."""

    limit: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]  # type: ignore[assignment]
    """How much in each window."""
    unit: LimitUnit | None = "Month"
    """Instead of window. Day and Month are those of the calendar, in UTC."""


class Concurrency(CountedLimit):
    limit: Positive
    """How many at the same time."""


class ModelPrice(Model):
    """What tokens of these models cost, for each million of them."""

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of models, with `*` for any characters. The first entry that matches counts."""
    input: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    """Of the request."""
    cached_input: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    """Of what the provider had in its cache. Default: as input."""
    output: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    """Of the answer."""


class LimitStore(Model):
    """Where counts are kept: this process, or a Redis that several share."""

    type: Literal["Memory", "Redis"] = "Memory"
    """Memory: this machine's processes count together. Redis: several machines do."""
    backend_ref: BackendObjectReference | None = None
    """The backend of the Redis: one server, no cluster."""
    secret_ref: SecretObjectReference | None = None
    """The Secret with its password."""
    username: str = ""
    """Its user. Default: the default one."""
    database: Annotated[int, Field(strict=True, ge=0, le=1023)] = 0
    """The number of its database."""
    timeout: PositiveDuration = Duration("100ms", 0.1)
    """How long a reply may take. Then the Redis is away until it can be reached again."""
    on_failure: Literal["Local", "Allow", "Deny"] = "Local"
    """While it is away. Local: this machine counts by itself, its fair share of what is left. Deny: 503."""

    def model_post_init(self, context: Any) -> None:
        if self.type == "Redis" and self.backend_ref is None:
            raise RefusedValue("a store of type Redis needs backendRef", "add backendRef")


class Limits(Model):
    """0 or absent: no limit, or the built-in one for heads and for what is held of bodies; absent
    `connectionsPerClient`: three quarters of `connections` and `tunnels`.
    """

    max_head_bytes: Annotated[int, Field(strict=True, ge=1024, le=1_048_576)] | None = None
    """Size of a request's head; 431 beyond."""
    max_fields: Annotated[int, Field(strict=True, ge=1, le=10_000)] | None = None
    """Fields of a request's head; 431 beyond."""
    max_body_bytes: Count | None = None
    """Size of a request's body; 413 beyond."""
    max_buffered_bytes: Count | None = None
    """Size of a request's body that something has to hold: a filter, an authorization server, a translation; 413
    beyond. Default: 32 MiB; 0: as much as each of them takes.
    """
    buffered_bytes_per_client: Count | None = None
    """Bytes of bodies that are held for one client, in each worker; beyond them its further bodies wait. Default:
    64 MiB; 0: no limit, where one address is many clients.
    """
    buffered_bytes_per_connection: Count | None = None
    """The same of one connection with HTTP/2. Default: 64 MiB; 0: no limit."""
    connections: Count | None = None
    """Connections to one listener, in each worker."""
    connections_per_client: Count | None = None
    """Of these, the share of one client. Default: three quarters; 0: all of them."""
    tunnels: Count | None = None
    """Tunnels of one listener, in each worker."""
    requests: tuple[Rate, ...] = ()
    """Requests by time; 429 with Retry-After beyond."""
    tokens: tuple[AmountRate, ...] = ()
    """Tokens of language models by time, reserved before and settled when the provider has told them; 429 beyond."""
    bytes: tuple[AmountRate, ...] = ()
    """Bytes by time, as the access log counts them; 429 beyond."""
    cost: tuple[CostRate, ...] = ()
    """Money by time, of tokens at these prices; 429 beyond."""
    prices: tuple[ModelPrice, ...] = ()
    """What tokens cost. A model without a price is refused where cost is limited."""
    concurrency: tuple[Concurrency, ...] = ()
    """Requests at the same time."""
    mode: Literal["Enforce", "Report"] = "Enforce"
    """Report: what these limits would refuse passes, and log and metrics tell of it. Not for sizes and connections."""
    rate_limit_headers: Literal["Denied", "Always", "Never"] = "Denied"
    """On which responses RateLimit fields say what is left: on those that are refused, on all, or on none."""
    max_keys: Annotated[int, Field(strict=True, ge=1, le=4_000_000)] = 16_384
    """How many keys of one limit have counts of their own; 64 bytes of memory each. What is beyond shares one.
    Without it, all policies with `subjects` have room for 262,144 together, but for limits per Header or Model.
    """
    store: LimitStore | None = None
    """Where these limits are counted, but for concurrency, which each machine counts."""

    def model_post_init(self, context: Any) -> None:
        if self.cost and not self.prices:
            raise RefusedValue("cost needs prices", "add prices: what tokens of each model cost")

    @property
    def are_counted(self) -> bool:
        """Whether any of them counts requests, or what they take."""
        return bool(self.requests or self.tokens or self.bytes or self.cost or self.concurrency)
