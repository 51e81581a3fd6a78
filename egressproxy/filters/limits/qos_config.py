"""QoSControllerConfig: what is written of limits, as an extension, and what `limits` of an EgressPolicy becomes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from egressproxy.filters.limits.rules import Per
from egressproxy.filters.limits.windows import CALENDAR, SECONDS
from egressproxy.filters.settings import CalledBackendRef, FieldName, FilterConfig, SecretRef, Within
from egressproxy.ir.policy import MAX_BUFFERED_BYTES, FieldFault

_PRICE = Within(ge=0, allow_inf_nan=False)

LimitType = Literal["Requests", "Bytes", "Tokens", "Cost", "Concurrency"]
#: How many keys one limit has by default.
MAX_KEYS: Final = 16_384
_UNITS: Final = (*SECONDS, *CALENDAR)
_NUMBER: Final = Within(gt=0, allow_inf_nan=False)
_Short = Annotated[int, Within(ge=1)] | None


@dataclass(frozen=True, slots=True)
class TokenPrice(FilterConfig):
    """What tokens of these models cost, for each million of them, in the currency of the limits."""

    models: Annotated[tuple[str, ...], Within(min_length=1)]
    """Names of models, with `*` for any characters."""
    input: Annotated[float, _PRICE]
    """Of the request."""
    output: Annotated[float, _PRICE]
    """Of the answer."""
    cached_input: Annotated[float, _PRICE] | None = None
    """Of what the provider had in its cache. Default: as `input`."""


@dataclass(frozen=True, slots=True)
class LimitEntry(FilterConfig):
    """One limit: at most `limit` of `type` in each `unit` (or `window`), for each key that `per` names."""

    type: LimitType
    """What is counted. Cost: money, by `prices`. Concurrency: exchanges at the same time."""
    limit: Annotated[float, _NUMBER]
    """How many; for Cost in the currency of the prices."""
    unit: Literal["", "Second", "Minute", "Hour", "Day", "Month"] = ""
    """Second, Minute and Hour are token buckets; Day and Month those of the calendar in UTC."""
    window: Annotated[float, Within(ge=0, allow_inf_nan=False)] = 0.0
    """Instead of `unit`: seconds, as a token bucket."""
    burst: Annotated[float, Within(ge=0, allow_inf_nan=False)] = 0.0
    """How many at once, of a token bucket; 0: as many as the limit."""
    per: tuple[Per, ...] = ()
    """Whose count a request adds to; several: each combination. Empty: one count for everybody."""
    header: FieldName | Literal[""] = ""
    """The name of the field for Header."""
    count: Literal["Total", "Input", "Output"] = "Total"
    """Of Tokens and Bytes: those of the request (Input), of the answer (Output), or both."""
    name: Annotated[str, Within(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$|^$")] = ""
    """In metrics, messages and RateLimit fields. Default: made of the others."""

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
        """`name`, or one that says type, window and whose it is: requests-minute-identity."""
        if self.name:
            return self.name
        counted = self.type if self.count == "Total" else f"{self.count}-{self.type}"
        span = self.unit or (f"{self.window:g}s" if self.window else "")
        return "-".join(part for part in (counted, span, *self.per) if part).lower()


@dataclass(frozen=True, slots=True)
class StoreConfig(FilterConfig):
    """Where limits are counted. Concurrency is counted on each machine."""

    backend_ref: CalledBackendRef
    """The backend of a Redis that the fleet shares; one server, no cluster."""
    type: Literal["Redis"] = "Redis"
    """Redis."""
    secret_ref: SecretRef | None = None
    """The Secret with its password."""
    username: str = ""
    """Its user; "": the default one."""
    database: Annotated[int, Within(ge=0, le=1023)] = 0
    """The number of its database."""
    timeout: Annotated[float, Within(gt=0, le=60)] = 0.1
    """Seconds until a reply has to be there. Then it is away until it can be reached again."""
    on_failure: Literal["Local", "Allow", "Deny"] = "Local"
    """While it is away. Local: this machine counts by itself, its fair share of what is left. Deny: 503."""


@dataclass(frozen=True, slots=True)
class QoSControllerConfig(FilterConfig):
    """Limits that hold together: an exchange passes if all of them let it, and counts in none if one does not."""

    requests_per_second: _Short = None
    """A token bucket of this many requests."""
    requests_per_minute: _Short = None
    """A token bucket of this many requests."""
    requests_per_hour: _Short = None
    """A token bucket of this many requests."""
    requests_per_day: _Short = None
    """Requests of a day of the calendar in UTC."""
    requests_per_month: _Short = None
    """Requests of a month of the calendar in UTC."""
    tokens_per_minute: _Short = None
    """Tokens of language models, of requests and answers together."""
    tokens_per_hour: _Short = None
    """As `tokensPerMinute`."""
    tokens_per_day: _Short = None
    """As `tokensPerMinute`, of a day of the calendar in UTC."""
    tokens_per_month: _Short = None
    """As `tokensPerMinute`, of a month of the calendar in UTC."""
    per: tuple[Per, ...] = ()
    """Whose counts these add to; see `limits`."""
    header: FieldName | Literal[""] = ""
    """The name of the field for `per: [Header]`."""
    limits: tuple[LimitEntry, ...] = ()
    """Further limits, in their general form."""
    prices: tuple[TokenPrice, ...] = ()
    """What tokens cost, for limits of Cost; the first entry that matches counts. A model without a price is refused."""
    output_tokens: Annotated[int, Within(ge=0)] = 1024
    """Tokens of the answer that are reserved where a request does not say how many it allows."""
    max_output_tokens: Annotated[int, Within(ge=0)] = 32_768
    """The most that are reserved for one answer, whatever the request allows."""
    mode: Literal["Enforce", "Report"] = "Enforce"
    """Report: what would be refused passes, and the log and metrics tell of it."""
    rate_limit_headers: Literal["Denied", "Always", "Never"] = "Denied"
    """On which responses RateLimit fields say what is left: on those that are refused, on all, or on none."""
    store: StoreConfig | None = None
    """Where the limits of a fleet are counted together. Default: in the memory of each machine."""
    max_keys: Annotated[int, Within(ge=0, le=4_000_000)] = MAX_KEYS
    """How many keys of one limit have numbers of their own; 64 bytes of memory each. What is beyond shares one.
    0: all limits with 0 have room for 262,144 together, but for those per Header or Model.
    """
    max_body_bytes: Annotated[int, Within(ge=1024, le=64 * 1024 * 1024)] = MAX_BUFFERED_BYTES
    """The longest request to a provider that is read, where tokens, cost or models are limited; 413 beyond."""

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
        """Every limit in its general form, with a name; of those without one that are alike, the later have numbers."""
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
