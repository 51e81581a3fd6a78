"""Which of our kinds an API server has, and in which version. Source: Kubernetes API concepts, APIGroupList and
APIResourceList.
"""

from __future__ import annotations

from typing import Any, Final

from egressproxy.kubernetes.api_client import ApiClient, ApiError, api_root
from egressproxy.model.kinds import CONFIGURED, ServedKind

#: Older versions that are read, too, beside those that files may have.
_ALSO: Final = {("discovery.k8s.io", "EndpointSlice"): ("v1beta1",)}


def versions_of(kind: ServedKind) -> tuple[str, ...]:
    """The versions in which a kind can be asked for, the best first."""
    return (*kind.versions, *_ALSO.get((kind.group, kind.kind), ()))


async def discovered(client: ApiClient) -> dict[tuple[str, str], str]:
    """The version of each kind that the server has, by group and kind. Raises ApiError, and what is in UNREACHABLE."""
    groups = await client.get("/apis")
    served = {
        (group.get("name"), version.get("version"))
        for group in _dicts(groups.get("groups"))
        for version in _dicts(group.get("versions"))
    } | {("", "v1")}
    plurals: dict[tuple[str, str], set[str]] = {}
    found: dict[tuple[str, str], str] = {}
    for kind in CONFIGURED:
        for version in versions_of(kind):
            place = (kind.group, version)
            if place not in served:
                continue
            if place not in plurals:
                plurals[place] = await _watchable(client, *place)
            if kind.plural in plurals[place]:
                found[kind.group, kind.kind] = version
                break
    return found


async def _watchable(client: ApiClient, group: str, version: str) -> set[str]:
    try:
        listed = await client.get(api_root(f"{group}/{version}" if group else version))
    except ApiError as error:
        if error.is_not_found:
            return set()
        raise
    return {
        str(each.get("name"))
        for each in _dicts(listed.get("resources"))
        if {"list", "watch"} <= _words(each.get("verbs"))
    }


def _words(value: Any) -> set[str]:
    return {each for each in value if isinstance(each, str)} if isinstance(value, list) else set()


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
