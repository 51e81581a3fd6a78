"""A write as HTTP asks for it. Source: Kubernetes API concepts (verbs, patch types, dry run, field managers)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from egressproxy.admin.status import ApiError, bad_request
from egressproxy.config.served_kinds import CONFIGURED
from egressproxy.kubeapi.list_options import ApiResource, truth
from egressproxy.kubeapi.write import core_protobuf
from egressproxy.kubeapi.write.write import FieldValidation, Verb, Write

METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
#: As the API server of Kubernetes; a Secret or ConfigMap is below 1 MiB.
MAX_BODY: Final = 3 * 1024 * 1024
BODY_S: Final = 30.0
_BODIES: Final = ("application/json", "application/yaml")
_PATCHES: Final = {
    "application/json-patch+json": Verb.JSON_PATCH,
    "application/merge-patch+json": Verb.MERGE_PATCH,
    "application/strategic-merge-patch+json": Verb.STRATEGIC_PATCH,
    "application/apply-patch+yaml": Verb.APPLY,
}
_KNOWN: Final = frozenset({
    "dryRun", "fieldManager", "force", "fieldValidation", "pretty", "timeout",
    "propagationPolicy", "gracePeriodSeconds", "orphanDependents",
})  # fmt: skip


async def read_body(request: web.BaseRequest) -> bytes:
    """The whole body: at most MAX_BODY bytes within BODY_S seconds. Raises ApiError(400, 408, 413, 415)."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "UnsupportedMediaType", "a body with a Content-Encoding is not read; send it as it is")
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            while piece := await request.content.readany():
                pieces.append(piece)
                size += len(piece)
                if size > MAX_BODY:
                    message = f"the body is larger than {MAX_BODY} bytes"
                    raise ApiError(413, "RequestEntityTooLarge", message)
    except web.RequestPayloadError:
        raise bad_request("the body does not end as its framing says") from None
    except TimeoutError:
        raise ApiError(408, "Timeout", f"the body did not come within {BODY_S:.0f} s") from None
    return b"".join(pieces)


def asked_write(request: web.BaseRequest, asked: ApiResource, body: bytes) -> Write:
    """The write that a request with this body asks for at `asked`. Raises ApiError(400, 405, 415, 422)."""
    query = request.query
    unknown = sorted(query.keys() - _KNOWN)
    if unknown:
        raise bad_request(f"not supported: {', '.join(unknown)}")
    if query.getall("dryRun", []) not in ([], ["All"]):
        raise bad_request(f"dryRun={query['dryRun']} is not possible; write All")
    verb = _verb(request, asked)
    is_forced = truth(query, "force")
    if is_forced and verb is not Verb.APPLY:
        raise ApiError(422, "Invalid", "force is for server-side apply alone")
    if verb is Verb.APPLY and not query.get("fieldManager"):
        raise bad_request("server-side apply needs fieldManager")
    if verb is Verb.CREATE and request.content_type == core_protobuf.CONTENT_TYPE:
        body = core_protobuf.as_json(asked.kind.kind, body)
    return Write(
        verb=verb,
        group=asked.kind.group,
        version=asked.version,
        kind=asked.kind.kind,
        plural=asked.kind.plural,
        namespace=asked.namespace or "",
        name=asked.name,
        body=body,
        manager=_manager(query, request.headers.get("User-Agent", "")),
        is_forced=is_forced,
        is_dry_run="dryRun" in query,
        field_validation=_field_validation(query),
    )


def _field_validation(query: Mapping[str, str]) -> FieldValidation:
    try:
        return FieldValidation(query.get("fieldValidation") or "Warn")
    except ValueError:
        known = ", ".join(each.value for each in FieldValidation)
        raise bad_request(f"fieldValidation={query['fieldValidation']} is not possible; known are {known}") from None


def _verb(request: web.BaseRequest, asked: ApiResource) -> Verb:
    if asked.kind not in CONFIGURED:
        raise ApiError(405, "MethodNotAllowed", f"{asked.kind.resource} are made by the gateway: they are read-only")
    if asked.subresource:
        raise ApiError(405, "MethodNotAllowed", "status is the gateway's to write")
    # Without one it is JSON, as kubectl 1.20 sends it: a page that does so has an Origin.
    content_type = request.content_type if "Content-Type" in request.headers else "application/json"
    if request.method == "DELETE" and asked.name:
        return Verb.DELETE
    if request.method == "PATCH" and asked.name:
        if content_type not in _PATCHES:
            raise ApiError(415, "UnsupportedMediaType", f"{content_type} is no patch; known are {', '.join(_PATCHES)}")
        return _PATCHES[content_type]
    is_whole = asked.namespace is not None or not asked.kind.is_namespaced
    verb = {"POST": Verb.CREATE, "PUT": Verb.REPLACE}.get(request.method)
    if verb is None or bool(asked.name) is (verb is Verb.CREATE) or not is_whole:
        raise ApiError(405, "MethodNotAllowed", f"{request.method} is not possible at {request.path}")
    bodies = (*_BODIES, core_protobuf.CONTENT_TYPE) if verb is Verb.CREATE else _BODIES
    if content_type not in bodies:  # a page of another site can send some content types without being allowed to
        raise ApiError(415, "UnsupportedMediaType", f"{content_type} is not read; send application/json")
    return verb


def _manager(query: Mapping[str, str], user_agent: str) -> str:
    """metadata.managedFields[].manager: the client's name where it gives none."""
    name = query.get("fieldManager") or user_agent.partition("/")[0] or "unknown"
    if len(name) > 128 or not name.isprintable():
        raise bad_request("fieldManager has to be at most 128 printable characters")
    return name
