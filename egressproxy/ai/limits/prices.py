"""Prices of tokens: which one a model has, and what an exchange costs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from egressproxy.ai.apis.usage import TokenUsage
from egressproxy.filters.limits.qos_config import TokenPrice

_MILLION: Final = 1_000_000


def cost_of(usage: TokenUsage, price: TokenPrice) -> float:
    """The cost of this many tokens, in the currency of the price."""
    cached = price.input if price.cached_input is None else price.cached_input
    fresh = usage.input_tokens - usage.cached_tokens
    return (fresh * price.input + usage.cached_tokens * cached + usage.output_tokens * price.output) / _MILLION


def price_of(prices: Sequence[TokenPrice], model: str) -> TokenPrice | None:
    """The first entry that matches this model, or None."""
    for price in prices:
        for pattern in price.models:
            if fnmatchcase(model, pattern):
                return price
    return None


def dearest(prices: Sequence[TokenPrice]) -> TokenPrice:
    """A price at least as high as each of these."""
    return TokenPrice(("*",), max(price.input for price in prices), max(price.output for price in prices))
