"""QoSControllerConfig: the configuration of limits, as an extension or from `limits` of an EgressPolicy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from egressproxy.filters.limits.rules import Per
from egressproxy.filters.limits.windows import CALENDAR, SECONDS
from egressproxy.filters.settings import CalledBackendRef, FieldName, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES, FieldFault

_PRICE = Within(ge=0, allow_inf_nan=False)

LimitType = Literal["Requests", "Bytes", "Tokens", "Cost", "Concurrency"]
#: The default number of keys of a limit.
MAX_KEYS: Final = 16_384
_UNITS: Final = (*SECONDS, *CALENDAR)
_NUMBER: Final = Within(gt=0, allow_inf_nan=False)
_Short = Annotated[int, Within(ge=1)] | None


@dataclass(frozen=True, slots=True)
class TokenPrice(FilterConfig):
    """The price of a million tokens of these models, in the currency of the limits."""

    models: Annotated[tuple[str, ...], Within(min_length=1)]
    """Names of models, with `*` for any characters."""
    input: Annotated[float, _PRICE]
    """The price of request tokens."""
    output: Annotated[float, _PRICE]
    """The price of response tokens."""
    cached_input: Annotated[float, _PRICE] | None = None
    """The price of cached request tokens. Default: as `input`."""


@dataclass(frozen=True, slots=True)
class LimitEntry(FilterConfig):
    """One limit: at most `limit` of `type` in each `unit` (or `window`), for each key that `per` names."""

    type: LimitType
    """The counted unit. Cost: money, by `prices`. Concurrency: exchanges at the same time."""
    limit: Annotated[float, _NUMBER]
    """The limit; for Cost in the currency of the prices."""
    unit: Literal["", "Second", "Minute", "Hour", "Day", "Month"] = ""
    """Second, Minute and Hour are token buckets; Day and Month are calendar periods in UTC."""
    window: Annotated[float, Within(ge=0, allow_inf_nan=False)] = 0.0
    """The seconds of a token bucket, instead of `unit`."""
    burst: Annotated[float, Within(ge=0, allow_inf_nan=False)] = 0.0
    """The size of a token bucket; 0: the limit."""
    per: tuple[Per, ...] = ()
    """The key that a request counts for; several: each combination. Empty: one count for all requests."""
    header: FieldName | Literal[""] = ""
    """The name of the field for Header."""
    count: Literal["Total", "Input", "Output"] = "Total"
    """For Tokens and Bytes: those of the request (Input), of the response (Output), or both."""
    name: Annotated[str, Within(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$|^$")] = ""
    """The name in metrics, messages and RateLimit fields. Default: derived from type, window and key."""

    def __post_init__(self) -> None:
        if self.type == "Concurrency":
            if self.unit or self.window or self.burst:
                field = "unit" if self.unit else "window" if self.window else "burst"
                raise FieldFault("Concurrency has no `unit`, `window` and `burst`: remove them", field)
            if self.limit != int(self.limit):
                raise FieldFault("the `limit` of Concurrency is a whole number", "limit")
        elif not self.unit and not self.window:
            raise ValueError("write `unit` (Second, Minute, Hour, Day or Month)")
        elif self.unit and self.window:
            raise FieldFault("write `unit` or `window`, not both", "window")
        elif self.burst and self.unit in CALENDAR:
            raise FieldFault(f"`burst` means nothing in a {self.unit}, which does not refill: remove it", "burst")
        if self.type in ("Requests", "Concurrency", "Cost") and self.count != "Total":
            raise FieldFault(f"`count` is for Tokens and Bytes, not for {self.type}", "count")
        if ("Header" in self.per) != bool(self.header):
            raise FieldFault("`header` names the field for `per: [Header]`: write both, or neither", "header")
        if len(set(self.per)) < len(self.per):
            raise FieldFault("an entry of `per` stands more than once", "per")

    @property
    def label(self) -> str:
        """`name`, or a name from type, window and key: requests-minute-identity."""
        if self.name:
            return self.name
        counted = self.type if self.count == "Total" else f"{self.count}-{self.type}"
        span = self.unit or (f"{self.window:g}s" if self.window else "")
        return "-".join(part for part in (counted, span, *self.per) if part).lower()


@dataclass(frozen=True, slots=True)
class StoreConfig(FilterConfig):
    """The store of the counters. Concurrency is counted on each machine."""

    backend_ref: CalledBackendRef
    """The backend of a Redis that the fleet shares; one server, no cluster."""
    type: Literal["Redis"] = "Redis"
    """Redis."""
    secret_ref: SecretRef | None = None
    """The Secret with the password of the Redis."""
    username: str = ""
    """The user name; "": the default user."""
    database: Annotated[int, Within(ge=0, le=1023)] = 0
    """The number of the database."""
    timeout: Annotated[float, Within(gt=0, le=60)] = 0.1
    """The time limit of a reply in seconds. After a timeout the Redis counts as unavailable until it reconnects."""
    on_failure: Literal["Local", "Allow", "Deny"] = "Local"
    """The behaviour while the Redis is unavailable. Local: this machine gets its fair share of the rest. Deny: 503."""


@dataclass(frozen=True, slots=True)
class QoSControllerConfig(FilterConfig):
    """A set of limits: an exchange passes if all limits permit it, and otherwise counts in none."""

    requests_per_second: _Short = None
    """A token bucket of this many requests."""
    requests_per_minute: _Short = None
    """A token bucket of this many requests."""
    requests_per_hour: _Short = None
    """A token bucket of this many requests."""
    requests_per_day: _Short = None
    """Requests in a calendar day in UTC."""
    requests_per_month: _Short = None
    """Requests in a calendar month in UTC."""
    tokens_per_minute: _Short = None
    """Tokens of language models, requests and responses together."""
    tokens_per_hour: _Short = None
    """As `tokensPerMinute`."""
    tokens_per_day: _Short = None
    """As `tokensPerMinute`, in a calendar day in UTC."""
    tokens_per_month: _Short = None
    """As `tokensPerMinute`, in a calendar month in UTC."""
    per: tuple[Per, ...] = ()
    """The key that requests count for; see `limits`."""
    header: FieldName | Literal[""] = ""
    """The name of the field for `per: [Header]`."""
    limits: tuple[LimitEntry, ...] = ()
    """Further limits, in their general form."""
    prices: tuple[TokenPrice, ...] = ()
    """Prices of tokens, for limits of Cost; the first match wins. A model without a price is refused."""
    output_tokens: Annotated[int, Within(ge=0)] = 1024
    """The response tokens to reserve for a request without its own limit."""
    max_output_tokens: Annotated[int, Within(ge=0)] = 32_768
    """The most tokens to reserve for one response."""
    mode: Literal["Enforce", "Report"] = "Enforce"
    """Report: requests above a limit pass, and are reported in log and metrics."""
    rate_limit_headers: Literal["Denied", "Always", "Never"] = "Denied"
    """The responses with RateLimit fields: refusals, all, or none."""
    store: StoreConfig | None = None
    """The shared store of a fleet. Default: the memory of each machine."""
    max_keys: Annotated[int, Within(ge=0, le=4_000_000)] = MAX_KEYS
    """The number of separate keys of one limit; 64 bytes of memory each. Further keys share one counter. 0: all
    limits with 0 share 262,144 keys, except limits per Header or Model.
    """
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request to a provider, if tokens, cost or models are limited; 413 beyond."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("write at least one limit: `requestsPerMinute`, or an entry of `limits`")
        if any(entry.type == "Cost" for entry in self.limits) and not self.prices:
            raise FieldFault("a limit of Cost needs `prices`", "prices")
        short = len(self.entries) - len(self.limits)
        names = [entry.name for entry in self.entries]
        for index, name in reversed(list(enumerate(names))):
            if names.count(name) > 1:
                path = ("limits", index - short, "name") if index >= short else ()
                raise FieldFault(f"two limits are called {name}: give each its own `name`", *path)

    @property
    def entries(self) -> tuple[LimitEntry, ...]:
        """Every limit in its general form, with a name; equal default names get numbers."""
        kinds: tuple[LimitType, ...] = ("Requests", "Tokens")
        made = []
        for kind in kinds:
            for unit in _UNITS:
                limit = getattr(self, f"{kind.lower()}_per_{unit.lower()}", None)
                if limit is not None:
                    made.append(LimitEntry(kind, float(limit), unit, per=self.per, header=self.header))  # type: ignore[arg-type]
        if (self.per or self.header) and not made:
            field = "per" if self.per else "header"
            raise FieldFault(f"`{field}` belongs to the short forms: write it into the entries of `limits`", field)
        seen: dict[str, int] = {}
        named = []
        for entry in (*made, *self.limits):
            label = entry.label
            if not entry.name:
                seen[label] = seen.get(label, 0) + 1
                label = label if seen[label] == 1 else f"{label}-{seen[label]}"
            named.append(replace(entry, name=label))
        return tuple(named)
