"""The filters of an HTTPRoute, as ExtensionIR. Source: Gateway API v1 HTTPRouteFilter, and the types of its fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egressproxy.config.compile.extensions.extension_compiler import ExtensionCompiler, FilterNotSupported
from egressproxy.config.compile.extensions.pipelines import Pipelines
from egressproxy.config.compile.extensions.ranked_extension import ROUTE_LEVEL, AttachmentPoint, RankedExtension
from egressproxy.config.resources.meta import Resource
from egressproxy.config.resources.route_filters import DirectResponse, HttpFilter, RequestRedirect, UrlRewrite
from egressproxy.ir.gateway import ListenerProtocol
from egressproxy.ir.policy import BACKEND_LEVEL, ExtensionIR

#: Priority of HTTPRoute filters: before extensions (100), after limits (0).
ROUTE_FILTER_PRIORITY = 50
#: CORS before the others: a preflight request carries no credential, and must not be redirected.
CORS_PRIORITY = 40
#: ExternalAuth checks the client's original request, before other filters change it.
EXTERNAL_AUTH_PRIORITY = 45

HEADER_POLICY = "egressproxy.io/HeaderPolicy:v1"
URL_REWRITE = "egressproxy.io/UrlRewrite:v1"
CORS = "egressproxy.io/Cors:v1"
REQUEST_REDIRECT = "egressproxy.io/RequestRedirect:v1"
DIRECT_RESPONSE = "egressproxy.io/DirectResponse:v1"


def route_filters(
    compiler: ExtensionCompiler,
    pipelines: Pipelines,
    route: Resource,
    filters: Sequence[HttpFilter],
    *,
    on_backend: bool,
    port: int,
    protocol: ListenerProtocol,
) -> tuple[RankedExtension, ...]:
    """The filters of an HTTPRoute rule or backendRef, except mirrors. Raises FilterNotSupported."""
    attachment = AttachmentPoint(BACKEND_LEVEL if on_backend else ROUTE_LEVEL, str(route))
    request, response = (
        ("backend-request", "backend-response") if on_backend else ("request-headers", "response-headers")
    )
    made: list[RankedExtension] = []
    index = 0
    try:
        for index, entry in enumerate(filters):
            phase, priority = request, ROUTE_FILTER_PRIORITY
            config: dict[str, Any]
            if entry.external_auth is not None:
                if on_backend:
                    raise FilterNotSupported("filter ExternalAuth on a backendRef is not supported: put it on the rule")
                continue  # see `external_auth_place`
            if entry.request_header_modifier is not None:
                type_name, config = HEADER_POLICY, {"request": entry.request_header_modifier.model_dump(by_alias=True)}
            elif entry.response_header_modifier is not None:
                config = {"response": entry.response_header_modifier.model_dump(by_alias=True)}
                type_name, phase = HEADER_POLICY, response
            elif entry.url_rewrite is not None:
                type_name, config = URL_REWRITE, _given(entry.url_rewrite)
            elif entry.request_redirect is not None:
                type_name, config = REQUEST_REDIRECT, _redirect(entry.request_redirect, port, protocol)
            elif entry.direct_response is not None:
                if on_backend:
                    raise FilterNotSupported("filter DirectResponse on a backendRef is not supported: put it on a rule")
                type_name, config = DIRECT_RESPONSE, _direct(entry.direct_response, filters)
            elif entry.cors is not None:
                type_name, config, priority = CORS, entry.cors.model_dump(by_alias=True), CORS_PRIORITY
            elif entry.request_mirror is not None:
                continue  # a mirror, which `mirrors` reads
            elif entry.payload_processing is not None:
                made += pipelines.inline(route, entry.payload_processing, attachment, priority, index)
                continue
            elif entry.payload_processing_ref is not None:
                made += pipelines.published(route, entry.payload_processing_ref.name, attachment, priority, index)
                continue
            elif entry.extension_ref is not None:
                made += pipelines.extensions(route, entry.extension_ref, attachment, priority, index)
                continue
            else:
                raise FilterNotSupported(f"filter {entry.type} is not supported yet")
            made.append(compiler.builtin(type_name, entry.type, phase, config, route, attachment, priority, index))
    except FilterNotSupported as error:
        error.index = index
        raise
    return tuple(made)


def external_auth_place(source: Resource, priority: int = EXTERNAL_AUTH_PRIORITY, scope: str = "-") -> ExtensionIR:
    """The position of an ExternalAuth filter; its server is beside the extensions of the place."""
    return ExtensionIR(
        name="ExternalAuth",
        type="egressproxy.io/ExternalAuth",
        phase="request-headers",
        priority=priority,
        level=ROUTE_LEVEL,
        timeout_s=0.0,  # ExternalAuth has its own time limit
        scope=scope,
        source=str(source),
    )


def _given(written: UrlRewrite | RequestRedirect) -> dict[str, Any]:
    """The set fields; of the path, its type and matching value."""
    config = written.model_dump(by_alias=True, exclude_none=True)
    path = written.path
    if path is not None:
        value = path.replace_full_path if path.type == "ReplaceFullPath" else path.replace_prefix_match
        config["path"] = {"type": path.type, "value": value or ""}
    return config


def _direct(written: DirectResponse, filters: Sequence[HttpFilter]) -> dict[str, Any]:
    """With the rule's ResponseHeaderModifier: the response phase is that of backends (GEP-2826)."""
    edits = [entry.response_header_modifier for entry in filters if entry.response_header_modifier is not None]
    return {
        "statusCode": written.status_code,
        "body": written.body.string if written.body is not None else "",
        "response": edits[0].model_dump(by_alias=True) if edits else {},
    }


def _redirect(written: RequestRedirect, port: int, protocol: ListenerProtocol) -> dict[str, Any]:
    """The listener's port and scheme decide the Location's port (HTTPRequestRedirectFilter)."""
    config = _given(written)
    if not protocol.is_forward:  # there the request itself names scheme and port
        config["listenerPort"] = port
        config["listenerScheme"] = "https" if protocol is ListenerProtocol.HTTPS else "http"
    return config
