"""The built-in filter types: their names and modules. One is imported when a configuration names its type.

A product registers its types (`egressproxy.doors`) before the first configuration is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Final

from egressproxy.filters.base import FilterType

_OURS: Final = "egressproxy.io/"
_GATEWAY_API: Final = "gateway.networking.k8s.io/"

#: Full name -> module and constant.
BUILTIN: Final[dict[str, str]] = {}
#: Every name of a built-in type -> its full name. The others are `Kind` and `gateway.networking.k8s.io/Kind:version`,
#: as the egress proposals of Kubernetes' AI Gateway working group write them.
FULL_NAMES: Final[dict[str, str]] = {}
_SUPPORT: Final[dict[str, str]] = {}


def register(
    package: str,
    places: Mapping[str, str],
    *,
    core: Collection[str] = (),
    extended: Collection[str] = (),
    own_name_only: Collection[str] = (),
) -> None:
    """Add the types of a package, by kind: the module and constant below the package.

    `core` and `extended` are kinds of that support level, in Gateway API's sense. `own_name_only`: kinds without a
    published name.
    """
    for kind, place in places.items():
        name = f"{_OURS}{kind}:v1"
        BUILTIN[name] = f"{package}.{place}"
        published = () if kind in own_name_only else (kind, f"{_GATEWAY_API}{kind}:v1")
        FULL_NAMES.update((other, name) for other in (name, *published))
        _SUPPORT[name] = "core" if kind in core else "extended" if kind in extended else "implementation-specific"


def builtin_type(name: str) -> FilterType | None:
    """The built-in type of this name or published name, imported at its first use; None for any other name."""
    full_name = FULL_NAMES.get(name)
    if full_name is None:
        return None
    module, _, constant = BUILTIN[full_name].partition(":")
    found: FilterType = getattr(import_module(module), constant)
    return found


def support_level(name: str) -> str:
    """`core`, `extended` or `implementation-specific`, in Gateway API's sense, for the full name of a type."""
    return _SUPPORT.get(name, "implementation-specific")


register(
    "egressproxy.filters",
    {
        "BodyLimit": "limits.filter_types:BODY_LIMIT",
        "CanaryKeys": "canary_keys:CANARY_KEYS",
        "ConcurrencyLimit": "limits.filter_types:CONCURRENCY_LIMIT",
        "Cors": "cors:CORS",
        "CredentialInjector": "credentials.filter_type:CREDENTIAL_INJECTOR",
        "DirectResponse": "direct_response:DIRECT_RESPONSE",
        "HeaderPolicy": "header_policy:HEADER_POLICY",
        "Python": "python_filter:PYTHON",
        "RequestRateLimit": "limits.filter_types:REQUEST_RATE_LIMIT",
        "RequestRedirect": "request_redirect:REQUEST_REDIRECT",
        "UrlRewrite": "url_rewrite:URL_REWRITE",
    },
    # Source: the egress proposal of Kubernetes' AI Gateway working group names it for its catalogue.
    core=("CredentialInjector",),
    # A proposal or a filter of Gateway API's HTTPRoute describes them, and not every gateway has them.
    extended=("Cors", "DirectResponse", "HeaderPolicy", "RequestRedirect", "UrlRewrite"),
    # It runs the operator's code. Nobody asks for that by a name of Gateway API.
    own_name_only=("Python",),
)
