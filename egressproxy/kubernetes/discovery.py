"""Discovery: which of our kinds an API server has, and in which version. Source: Kubernetes API concepts, APIGroupList
and APIResourceList.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from egressproxy.config.served_kinds import CONFIGURED, HARMLESS_POLICIES, ServedKind, is_experiment
from egressproxy.kubernetes.api_client import ApiClient, ApiError, api_root

#: Older versions that are read, too, beside those that files may have.
_ALSO: Final = {("discovery.k8s.io", "EndpointSlice"): ("v1beta1",)}
#: How long a kind has to be away before its objects are, in seconds.
GONE_S: Final = 600.0


class AvailableKinds:
    """The kinds of an API server, by group and kind; `versions` has the version in which each is asked for.

    A kind that was there stays for GONE_S: an API server that starts does not have its CustomResourceDefinitions yet,
    and would take every object with it. Where a definition is deleted, its objects are deleted before, one by one.
    """

    def __init__(self, resources: Collection[str]) -> None:
        """`resources` are the kinds (`ServedKind.resource`) that were there before the start."""
        self.versions: dict[tuple[str, str], str] = {}
        self._before = {(kind.group, kind.kind) for kind in CONFIGURED if kind.resource in resources}
        self._gone_since: dict[tuple[str, str], float] = {}

    def update(self, found: Mapping[tuple[str, str], str], now: float) -> bool:
        """Take over what `discovered` has found. Returns whether a kind was away for too long, and is given up."""
        was_there = self.versions.keys() | self._before
        gone = {name: self._gone_since.get(name, now) for name in was_there - found.keys()}
        self._gone_since = {name: since for name, since in gone.items() if now - since <= GONE_S}
        self._before &= found.keys() | self._gone_since.keys()
        kept = {name: version for name, version in self.versions.items() if name in self._gone_since}
        self.versions = {**kept, **found}
        return len(self._gone_since) < len(gone)

    def missing(self) -> list[str]:
        """The kinds (`ServedKind.resource`) that are not there."""
        return [kind.resource for kind in CONFIGURED if (kind.group, kind.kind) not in self.versions]

    def awaited(self) -> Collection[tuple[str, str]]:
        """The kinds that were there before the start, and are not yet."""
        return self._gone_since.keys() - self.versions.keys()


def versions_of(kind: ServedKind) -> tuple[str, ...]:
    """The versions in which a kind can be asked for, the best first."""
    return (*kind.versions, *_ALSO.get((kind.group, kind.kind), ()))


async def discovered(client: ApiClient) -> tuple[dict[tuple[str, str], str], tuple[ServedKind, ...]]:
    """The version of each kind that the server has, by group and kind; and the unread policies of Kubernetes'
    experiments (`config.reading.left_out_policies`). Raises ApiError, and what is in UNREACHABLE.
    """
    groups = await client.get("/apis")
    served = {
        (group.get("name"), version.get("version"))
        for group in _dicts(groups.get("groups"))
        for version in _dicts(group.get("versions"))
    } | {("", "v1")}
    plurals: dict[tuple[str, str], dict[str, ServedKind]] = {}
    found: dict[tuple[str, str], str] = {}
    for kind in CONFIGURED:
        for version in versions_of(kind):
            group_version = (kind.group, version)
            if group_version not in served:
                continue
            if group_version not in plurals:
                plurals[group_version] = await _watchable(client, *group_version)
            if kind.plural in plurals[group_version]:
                found[kind.group, kind.kind] = version
                break
    policies: dict[tuple[str, str], ServedKind] = {}
    read = {(kind.group, kind.kind) for kind in CONFIGURED}
    for group, version in sorted((str(group), str(version)) for group, version in served):
        if not is_experiment(group):
            continue
        if (group, version) not in plurals:
            plurals[group, version] = await _watchable(client, group, version)
        for plural, kind in plurals[group, version].items():
            is_policy = kind.kind.endswith("Policy") and kind.kind not in HARMLESS_POLICIES
            if is_policy and plural == kind.plural and (group, kind.kind) not in read:
                policies[group, kind.kind] = kind
    return found, tuple(policies.values())


async def _watchable(client: ApiClient, group: str, version: str) -> dict[str, ServedKind]:
    try:
        listed = await client.get(api_root(f"{group}/{version}" if group else version))
    except ApiError as error:
        if error.is_not_found:
            return {}
        raise
    return {
        str(each.get("name")): ServedKind(
            group, str(each.get("kind")), (version,), is_namespaced=each.get("namespaced") is not False
        )
        for each in _dicts(listed.get("resources"))
        if isinstance(verbs := each.get("verbs"), list) and "list" in verbs and "watch" in verbs
    }


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
