"""A request to the API: resource, options, form of the answer. Source: Kubernetes API concepts, metav1.ListOptions."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from egressproxy.admin.status import ApiError, bad_request
from egressproxy.kubeapi.kinds import served
from egressproxy.kubeapi.read.selectors import Predicate, field_selector, label_selector
from egressproxy.model.kinds import ServedKind
from egressproxy.model.published_object import PublishedObject

#: Between a request's parameters and what changes nothing in an answer of ours.
_HARMLESS: Final = frozenset({"timeout", "pretty", "fieldValidation", "fieldManager"})
_KNOWN: Final = frozenset({
    "limit", "continue", "watch", "labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch",
    "allowWatchBookmarks", "sendInitialEvents", "timeoutSeconds", "includeObject",
})  # fmt: skip
_ALWAYS: Final = ("metadata.name", "metadata.namespace")
MAX_TIMEOUT_S: Final = 3600
#: Group, version, namespace, plural, name and subresource. A namespace is an object, too, which has a status.
_PATH: Final = re.compile(
    r"/(?:api|apis/([^/]+))/([^/]+)(?:/namespaces/([^/]+)(?!/status$))?/([^/]+)(?:/([^/]+)(?:/(status))?)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ApiResource:
    """An object, or with `name` "" a collection. `namespace` None: all namespaces, or a cluster-scoped kind."""

    kind: ServedKind
    version: str
    namespace: str | None
    name: str
    subresource: str = ""

    @property
    def api_version(self) -> str:
        return self.kind.api_version(self.version)

    def has(self, entry: PublishedObject) -> bool:
        """Whether this is the object, or it belongs to the collection."""
        kind = self.kind
        return (
            entry.kind == kind.kind
            and entry.group == kind.group
            and self.namespace in (None, entry.namespace)
            and self.name in ("", entry.name)
        )


def resource(path: str) -> ApiResource | None:
    """The resource at a path below /api/ or /apis/, decoded and without trailing slash; None where there is none."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    group, version, namespace, plural, name, subresource = match.groups(default="")
    kind = served(group, version, plural)
    if kind is None or (not kind.is_namespaced if namespace else kind.is_namespaced and name):
        return None
    return ApiResource(kind, version, namespace or None, name, subresource)


class Form(Enum):
    """How an object or a list is represented in an answer."""

    PLAIN = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


def form(accept: str) -> Form:
    """The first form of an Accept field that is served. Raises ApiError(406) where there is none."""
    for entry in accept.split(",") if accept.strip() else ["*/*"]:
        media, *rest = (part.strip() for part in entry.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        name = parameters.get("as", "")
        if media not in ("application/json", "application/*", "*/*"):
            continue
        if not name:
            return Form.PLAIN
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1":
            found = next((each for each in Form if each.value and each.value == name.removesuffix("List")), None)
            if found is not None:
                return found
    raise ApiError(406, "NotAcceptable", "only application/json is served, plain or as a v1 Table of meta.k8s.io")


def truth(query: Mapping[str, str], name: str) -> bool:
    """Whether a parameter is there and true, as Go's strconv.ParseBool reads it. Raises ApiError(400) for others."""
    value = query.get(name, "").lower()
    if value not in ("", "0", "1", "f", "t", "false", "true"):
        raise bad_request(f"{name}={value} is no truth value; write true or false")
    return value in ("1", "t", "true")


class Position(NamedTuple):
    """Where a list in pieces continues: behind this object, in the list of that version."""

    version: int
    namespace: str
    name: str

    def to_token(self) -> str:
        """metav1.ListMeta.continue."""
        return base64.urlsafe_b64encode(json.dumps(self).encode()).decode()

    @classmethod
    def from_token(cls, token: str) -> Position:
        """The position that `to_token` wrote. Raises ApiError(400) where it has not."""
        try:
            version, namespace, name = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
            if isinstance(version, int) and isinstance(namespace, str) and isinstance(name, str):
                return cls(version, namespace, name)
        except (ValueError, TypeError, binascii.Error, RecursionError):
            pass
        raise bad_request("continue: this is no token of ours; list from the start")


@dataclass(frozen=True, slots=True)
class Options:
    """metav1.ListOptions. `version` None: the client names none; 0: any will do."""

    select: tuple[Predicate, ...] = ()
    limit: int = 0
    after: Position | None = None
    version: int | None = None
    is_exact: bool = False
    is_watch: bool = False
    has_bookmarks: bool = False
    send_initial: bool | None = None
    timeout_s: int = 0
    include_object: str = "Metadata"

    @classmethod
    def of(cls, query: Mapping[str, str], kind: ServedKind) -> Options:
        """Those of a query. Raises ApiError(400) for a value that cannot be read, and for an unknown parameter."""
        unknown = sorted(query.keys() - _KNOWN - _HARMLESS)
        if unknown:
            raise bad_request(f"not supported: {', '.join(unknown)}")
        selectors = (
            label_selector(query.get("labelSelector", "")),
            field_selector(query.get("fieldSelector", ""), (*_ALWAYS, *kind.fields)),
        )
        match = _one_of(query, "resourceVersionMatch", ("", "Exact", "NotOlderThan"))
        options = cls(
            select=tuple(selector for selector in selectors if selector is not None),
            limit=_number(query, "limit") or 0,
            after=Position.from_token(query["continue"]) if query.get("continue") else None,
            version=_number(query, "resourceVersion"),
            is_exact=match == "Exact",
            is_watch=truth(query, "watch"),
            has_bookmarks=truth(query, "allowWatchBookmarks"),
            send_initial=truth(query, "sendInitialEvents") if query.get("sendInitialEvents") else None,
            timeout_s=min(_number(query, "timeoutSeconds") or 0, MAX_TIMEOUT_S),
            include_object=_one_of(query, "includeObject", ("", "None", "Metadata", "Object")) or "Metadata",
        )
        if options.send_initial is not None and not (options.is_watch and match == "NotOlderThan"):
            raise bad_request("sendInitialEvents needs watch=true and resourceVersionMatch=NotOlderThan")
        return options


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise bad_request(f"{name}={text} is not a number")
    return int(text)


def _one_of(query: Mapping[str, str], name: str, values: Collection[str]) -> str:
    value = query.get(name, "")
    if value not in values:
        raise bad_request(f"{name}={value} is not possible; write {' or '.join(filter(None, values))}")
    return value
