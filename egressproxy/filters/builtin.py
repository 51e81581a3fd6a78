"""The built-in filter types: their names and modules. One is imported when a configuration names its type."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from egressproxy.filters.base import FilterType

_OURS: Final = "egressproxy.io/"
_GATEWAY_API: Final = "gateway.networking.k8s.io/"

#: Full name -> module and constant, below `egressproxy.filters`; or the module's whole name, where a type speaks a
#: protocol, which filters do not know of.
BUILTIN: Final[Mapping[str, str]] = MappingProxyType({
    f"{_OURS}{kind}:v1": place
    for kind, place in {
        "ApprovalHold": "egressproxy.operators.approval.approval_hold:APPROVAL_HOLD",
        "Audit": "egressproxy.operators.audit.audit:AUDIT",
        "BodyLimit": "limits.filter_types:BODY_LIMIT",
        "Cache": "egressproxy.ai.cache.cache:CACHE",
        "CanaryKeys": "canary_keys:CANARY_KEYS",
        "ConcurrencyLimit": "limits.filter_types:CONCURRENCY_LIMIT",
        "Cors": "cors:CORS",
        "CredentialInjector": "credentials.filter_type:CREDENTIAL_INJECTOR",
        "ExternalProcessor": "egressproxy.envoy.processors.external_processor:EXTERNAL_PROCESSOR",
        "HeaderPolicy": "header_policy:HEADER_POLICY",
        "ModelPolicy": "egressproxy.ai.filters.model_policy:MODEL_POLICY",
        "PIIDetector": "egressproxy.ai.content.pii_detector:PII_DETECTOR",
        "PromptGuard": "egressproxy.ai.content.prompt_guard:PROMPT_GUARD",
        "Python": "python_filter:PYTHON",
        "QoSController": "egressproxy.ai.limits.qos_controller:QOS_CONTROLLER",
        "RegionLock": "egressproxy.ai.filters.region_lock:REGION_LOCK",
        "RequestRateLimit": "limits.filter_types:REQUEST_RATE_LIMIT",
        "RequestRedirect": "request_redirect:REQUEST_REDIRECT",
        "ResponsePolicy": "egressproxy.ai.content.response_policy:RESPONSE_POLICY",
        "TokenMeter": "egressproxy.ai.filters.token_meter:TOKEN_METER",
        "ToolPolicy": "egressproxy.ai.filters.tool_policy:TOOL_POLICY",
        "UrlRewrite": "url_rewrite:URL_REWRITE",
        "Webhook": "egressproxy.envoy.processors.webhook:WEBHOOK",
    }.items()
})  # fmt: skip

#: Source: the egress proposal of Kubernetes' AI Gateway working group names these two for its catalogue.
_CORE: Final = frozenset({f"{_OURS}CredentialInjector:v1", f"{_OURS}QoSController:v1"})
#: What a proposal or a filter of Gateway API's HTTPRoute describes, and not every gateway has.
_EXTENDED: Final = frozenset({
    f"{_OURS}{kind}:v1"
    for kind in (
        "Cors", "ExternalProcessor", "HeaderPolicy", "ModelPolicy", "PIIDetector", "PromptGuard",
        "RequestRedirect", "UrlRewrite",
    )
})  # fmt: skip

#: Types that run the operator's code. Nobody asks for that by a name of Gateway API.
_OWN_NAME_ONLY: Final = frozenset({f"{_OURS}Python:v1"})


def _published(name: str) -> tuple[str, ...]:
    kind = name.removeprefix(_OURS)
    return () if name in _OWN_NAME_ONLY else (kind.partition(":")[0], f"{_GATEWAY_API}{kind}")


#: Every name of a built-in type -> its full name. The others are `Kind` and `gateway.networking.k8s.io/Kind:version`,
#: as the egress proposals of Kubernetes' AI Gateway working group write them.
FULL_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {other: name for name in BUILTIN for other in (name, *_published(name))}
)


def builtin_type(name: str) -> FilterType | None:
    """The built-in type of this name or published name, imported at its first use; None for any other name."""
    full_name = FULL_NAMES.get(name)
    if full_name is None:
        return None
    module, _, constant = BUILTIN[full_name].partition(":")
    whole = module if module.startswith("egressproxy.") else f"egressproxy.filters.{module}"
    found: FilterType = getattr(import_module(whole), constant)
    return found


def support_level(name: str) -> str:
    """`core`, `extended` or `implementation-specific`, in Gateway API's sense, for the full name of a type."""
    return "core" if name in _CORE else "extended" if name in _EXTENDED else "implementation-specific"
