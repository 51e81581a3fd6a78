"""Prices: what tokens of models cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from egressproxy.ai_apis.usage import TokenUsage
from egressproxy.filters.settings import FilterConfig, Within

_PRICE = Within(ge=0, allow_inf_nan=False)
_MILLION = 1_000_000


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

    def cost(self, usage: TokenUsage) -> float:
        """What this many tokens cost."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - usage.cached_tokens
        return (fresh * self.input + usage.cached_tokens * cached + usage.output_tokens * self.output) / _MILLION


def price_of(prices: Sequence[TokenPrice], model: str) -> TokenPrice | None:
    """The first entry that matches this model, None if none does."""
    for price in prices:
        for pattern in price.models:
            if fnmatchcase(model, pattern):
                return price
    return None


def dearest(prices: Sequence[TokenPrice]) -> TokenPrice:
    """At least what any of these models costs."""
    return TokenPrice(("*",), max(price.input for price in prices), max(price.output for price in prices))
