"""AI providers by the names of their hosts: the API that their SDKs speak, and their name in OpenTelemetry.

For a host that is not listed, the path of a request decides. Source of the names: `gen_ai.provider.name` of
OpenTelemetry's semantic conventions, for those that have one there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from egressproxy.ai.apis.apis import Api

#: By host. A name that begins with a dot or a hyphen is what the host ends with.
_HOSTS: Final[Mapping[str, tuple[Api, str]]] = {
    "api.openai.com": (Api.OPENAI_CHAT, "openai"),
    ".openai.azure.com": (Api.OPENAI_CHAT, "azure.ai.openai"),
    "api.deepseek.com": (Api.OPENAI_CHAT, "deepseek"),
    "api.fireworks.ai": (Api.OPENAI_CHAT, "fireworks_ai"),
    "api.groq.com": (Api.OPENAI_CHAT, "groq"),
    "api.mistral.ai": (Api.OPENAI_CHAT, "mistral_ai"),
    "api.together.xyz": (Api.OPENAI_CHAT, "together_ai"),
    "api.x.ai": (Api.OPENAI_CHAT, "x_ai"),
    "openrouter.ai": (Api.OPENAI_CHAT, "openrouter"),
    "api.anthropic.com": (Api.ANTHROPIC, "anthropic"),
    "generativelanguage.googleapis.com": (Api.GEMINI, "gcp.gemini"),
    "aiplatform.googleapis.com": (Api.GEMINI, "gcp.vertex_ai"),
    "-aiplatform.googleapis.com": (Api.GEMINI, "gcp.vertex_ai"),
}
_ENDS: Final = tuple(name for name in _HOSTS if name[0] in ".-")
_BEDROCK: Final = (Api.BEDROCK_CONVERSE, "aws.bedrock")


def api_of_host(host: str) -> Api | None:
    """The API that a provider with this host serves; None for a host that is not known."""
    found = _found(host)
    return found[0] if found is not None else None


def provider_of_host(host: str) -> str | None:
    """The name of the provider with this host, as metrics have it; None for a host that is not known."""
    found = _found(host)
    return found[1] if found is not None else None


def _found(host: str) -> tuple[Api, str] | None:
    found = _HOSTS.get(host)
    if found is not None:
        return found
    for end in _ENDS:
        if host.endswith(end):
            return _HOSTS[end]
    if host.startswith("bedrock-runtime") and host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
        return _BEDROCK
    return None
