"""RateLimit fields: what a client is told of limits.

Sources: draft-ietf-httpapi-ratelimit-headers-09 (RateLimit-Policy, RateLimit); the fields of their own with which the
SDKs and clients of OpenAI (`x-ratelimit-limit-requests`) and Anthropic (`anthropic-ratelimit-requests-limit`) are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from time import time
from typing import Final

from egressproxy.filters.limits.rules import QuotaRule, Reservation
from egressproxy.model.encoding import rfc3339

_PROVIDER_UNITS: Final = {("Requests", "Total"): "requests", ("Tokens", "Total"): "tokens"}
_ANTHROPIC_UNITS: Final = {
    **_PROVIDER_UNITS,
    ("Tokens", "Input"): "input-tokens",
    ("Tokens", "Output"): "output-tokens",
}
#: The units of the draft's registry, where it has one.
_UNITS: Final = {"Requests": "", "Bytes": ';qu="content-bytes"', "Tokens": ';qu="tokens"', "Cost": ';qu="cost"'}

FieldLines = tuple[tuple[bytes, bytes], ...]


def rate_limit_fields(takes: Sequence[Reservation]) -> FieldLines:
    """RateLimit-Policy (quota and window of each limit) and RateLimit (what is left of it, and seconds until reset)."""
    policies = ", ".join(_policy(take.rule) for take in takes)
    states = ", ".join(f'"{take.rule.name}";r={math.floor(take.left)};t={math.ceil(take.reset_s)}' for take in takes)
    return ((b"RateLimit-Policy", policies.encode()), (b"RateLimit", states.encode()))


def provider_fields(provider: str, takes: Iterable[Reservation]) -> FieldLines:
    """The same in the form of a provider (`gen_ai.provider.name`), for each unit the limit that has least left."""
    if provider not in ("openai", "anthropic"):
        return ()
    units = _PROVIDER_UNITS if provider == "openai" else _ANTHROPIC_UNITS
    least: dict[str, Reservation] = {}
    for take in takes:
        unit = units.get((take.rule.type, take.rule.count))
        if unit is not None and (unit not in least or take.left < least[unit].left):
            least[unit] = take
    lines: list[tuple[bytes, bytes]] = []
    for unit, take in least.items():
        limit, left = f"{take.rule.window.limit:.0f}", f"{math.floor(take.left)}"
        if provider == "openai":
            values = {f"x-ratelimit-limit-{unit}": limit, f"x-ratelimit-remaining-{unit}": left,
                    f"x-ratelimit-reset-{unit}": _duration(take.reset_s)}  # fmt: skip
        else:
            values = {f"anthropic-ratelimit-{unit}-limit": limit, f"anthropic-ratelimit-{unit}-remaining": left,
                    f"anthropic-ratelimit-{unit}-reset": rfc3339(time() + take.reset_s)}  # fmt: skip
        lines += [(name.encode(), value.encode()) for name, value in values.items()]
    return tuple(lines)


def _policy(rule: QuotaRule) -> str:
    window = rule.window
    return f'"{rule.name}";q={window.limit:.0f};w={math.ceil(window.length_s)}{_UNITS[rule.type]}'


def _duration(seconds: float) -> str:
    """`6m0s`, `1s`, `12ms`: as OpenAI writes it."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60}m{whole % 60}s"
