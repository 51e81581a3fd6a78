"""Fields that OpenAI's two APIs have in common."""

from __future__ import annotations

from typing import Final

from egressproxy.translation.conversation import Effort
from egressproxy.translation.json_object import JsonObject

EFFORTS: Final = tuple(effort.value for effort in Effort)


def leave_out_cache_options(body: JsonObject) -> None:
    """Takes `prompt_cache_options`: what is cached, and how long, changes the price and not the answer."""
    if (options := body.object("prompt_cache_options")) is not None:
        options.without_meaning("mode", "ttl")
        options.end()


def metadata_of(body: JsonObject) -> dict[str, str] | None:
    """The client's own notes for what OpenAI stores; None if there are none. Raises Untranslatable."""
    value = body.plain_object("metadata")
    for name, one in (value or {}).items():
        if type(one) is not str:
            body.refuse(f"metadata.{name[:80]}", "must be a string")
    return value or None


def service_tier_of(body: JsonObject) -> str | None:
    """The tier, unless it is left to the provider. Raises Untranslatable."""
    tier = body.word("service_tier", ("auto", "default", "flex", "scale", "priority", "fast"))
    return None if tier == "auto" else tier
