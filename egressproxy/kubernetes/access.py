"""The RBAC rights of a gateway in a cluster: verbs, resources, namespaces and reasons.

This is the only list. `egressproxy rbac` prints the roles, and `missing_right` names the rule to add.
Source: Kubernetes, "Using RBAC Authorization" (resourceNames, and what they mean for list and watch).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final

from egressproxy.config.compile.interface import BUILTIN_CLASS, CATALOG
from egressproxy.config.served_kinds import CONFIGURED, ServedKind, lease_names
from egressproxy.kubernetes.object_store import ALL_PODS
from egressproxy.model.published_object import Key

#: An API server allows `list` and `watch` of one name, too, where `resourceNames` has it (fieldSelector metadata.name).
READ: Final = ("get", "list", "watch")
#: The namespace of Events about cluster-scoped objects.
DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a Role or ClusterRole. `names` empty: all objects. `why` is for the reader of the role."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str = ""
    names: tuple[str, ...] = ()

    def to_manifest(self) -> dict[str, list[str]]:
        """The rule as a Role has it."""
        names = {"resourceNames": list(self.names)} if self.names else {}
        return {"apiGroups": [self.group], "resources": list(self.resources), **names, "verbs": list(self.verbs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The options of a gateway that decide about RBAC.

    `namespaces` lists --watch-namespace, empty for all namespaces. `referenced` are the objects that its configuration
    looked up (`ResourceSet.wanted`), None without a configuration. `has_selector`: --secret-selector is given.
    `classes` are the names of the GatewayClasses, `published` namespace and name of --publish-service.
    """

    namespaces: tuple[str, ...] = ()
    referenced: Set[Key] | None = None
    has_selector: bool = False
    classes: tuple[str, ...] = (BUILTIN_CLASS,)
    published: tuple[str, str] | None = None


class _When(Enum):
    """The scope of a row: every configuration, or referenced objects."""

    ALWAYS = auto()
    #: In the watched namespaces, and for Events about cluster-scoped objects.
    OF_OBJECTS = auto()
    BY_NAME = auto()
    #: All objects of the kind, if the configuration looks one up.
    IF_WANTED = auto()
    NEVER = auto()
    #: By name, in the namespaces of Leases: that of installations for all namespaces, and the watched ones.
    OF_LEASES = auto()
    CATALOGUE = auto()


@dataclass(frozen=True, slots=True)
class _Row:
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    when: _When = _When.ALWAYS
    is_namespaced: bool = True

    def rule(self, *names: str) -> Rule:
        return Rule(self.group, (self.resource,), self.verbs, self.why, tuple(sorted(set(names))))


_CONFIGURATION: Final = "The configuration."
_STATUS: Final = "Status: what became of each object."
#: Kinds that are no configuration -> purpose and scope.
_READ_FOR: Final[Mapping[str, tuple[str, _When]]] = {
    "Namespace": ("Labels of namespaces, by which Gateways admit routes.", _When.IF_WANTED),
    "Service": ("Services that routes and Backends name.", _When.IF_WANTED),
    "EndpointSlice": ("Addresses of Services.", _When.IF_WANTED),
    "Secret": ("Secrets that the configuration refers to.", _When.BY_NAME),
    "ConfigMap": ("ConfigMaps that the configuration refers to.", _When.BY_NAME),
    "ClusterTrustBundle": ("ClusterTrustBundles that the configuration refers to.", _When.BY_NAME),
    "Pod": ("Pods: whose a source address is, and the endpoints of XBackends.", _When.IF_WANTED),
    "ServiceAccount": ("", _When.NEVER),  # Pods name their service accounts
}
#: Read resource -> the resource in lookups, if different.
_WANTED_AS: Final = {"endpointslices": "services"}
_KINDS: Final = {kind.plural: kind for kind in CONFIGURED if kind.kind in _READ_FOR}
#: Kinds without a status of ours.
_WITHOUT_STATUS: Final = frozenset({"ReferenceGrant", *_READ_FOR})


def _read(kind: ServedKind) -> _Row:
    why, when = _READ_FOR.get(kind.kind, (_CONFIGURATION, _When.ALWAYS))
    return _Row(kind.group, kind.plural, READ, why, when, kind.is_namespaced)


def _status(kind: ServedKind) -> _Row:
    return _Row(kind.group, f"{kind.plural}/status", ("patch",), _STATUS, is_namespaced=kind.is_namespaced)


#: `list` finds the Leases of other installations.
_OF_LEASE: Final = ("get", "list", "create", "update", "patch")
_TABLE: Final = (
    *map(_read, CONFIGURED),
    *(_status(kind) for kind in CONFIGURED if kind.kind not in _WITHOUT_STATUS),
    _Row("events.k8s.io", "events", ("create", "patch"), "Events about these objects.", _When.OF_OBJECTS),
    _Row("coordination.k8s.io", "leases", _OF_LEASE, "Which gateway writes status.", _When.OF_LEASES),
    # This and a Lease by server-side apply, whose `create` says a name: that of a POST says none, and could not be
    # limited to one.
    _Row("", "configmaps", ("get", "create", "patch"), "The catalogue of filter types.", _When.CATALOGUE),
)  # fmt: skip


def needed(needs: Needs) -> dict[str, tuple[Rule, ...]]:
    """The rules by namespace, "" for cluster-wide ones. The gateway uses no other rights."""
    found: dict[str, list[Rule]] = defaultdict(list)
    everywhere = needs.namespaces or ("",)
    for row in _TABLE:
        match row.when:
            case _When.OF_LEASES:
                found[""] += [row.rule(name) for each in needs.classes for name in lease_names(each)]
            case _When.CATALOGUE:
                found[CATALOG[0]].append(row.rule(CATALOG[1]))
            case _When.BY_NAME:
                for namespace, rule in _by_name(row, needs, everywhere):
                    found[namespace].append(rule)
            case _When.NEVER:
                continue
            case _When.IF_WANTED if not _is_wanted(row, needs):
                continue
            case _ if not row.is_namespaced:
                found[""].append(row.rule())
            case _:
                more = (DEFAULT_NAMESPACE,) if row.when is _When.OF_OBJECTS and needs.namespaces else ()
                for namespace in dict.fromkeys((*_namespaces(row, needs, everywhere), *more)):
                    found[namespace].append(row.rule())
    if needs.published is not None:
        namespace, name = needs.published
        if not any("services" in rule.resources for rule in (*found[""], *found[namespace])):
            service = permitting("list", "", "services", name)
            found[namespace].append(replace(service, why="The Service whose addresses Gateways show."))
    return {namespace: tuple(_merged(found[namespace])) for namespace in sorted(found) if found[namespace]}


def _is_wanted(row: _Row, needs: Needs) -> bool:
    kind = _KINDS[_WANTED_AS.get(row.resource, row.resource)]
    return needs.referenced is None or any(key[:2] == (kind.group, kind.kind) for key in needs.referenced)


def _namespaces(row: _Row, needs: Needs, everywhere: tuple[str, ...]) -> Iterable[str]:
    """The namespaces of a rule: of Pods that are wanted by their labels, only those of the selectors."""
    keys = {key for key in needs.referenced or () if key[:2] == ALL_PODS[:2]}
    if row.resource != "pods" or not keys or ALL_PODS in keys:
        return everywhere
    return sorted(namespace for _, _, namespace, _ in keys if {"", namespace} & set(everywhere))


def _by_name(row: _Row, needs: Needs, everywhere: tuple[str, ...]) -> Iterable[tuple[str, Rule]]:
    if not row.is_namespaced and needs.referenced is None:
        yield "", row.rule()
        return
    kind = _KINDS[row.resource]
    if row.is_namespaced and needs.has_selector:
        why = f"{kind.kind}s with the label: RBAC knows no labels."
        yield from ((namespace, replace(row.rule(), why=why)) for namespace in everywhere)
        return
    names: dict[str, list[str]] = defaultdict(list)
    for group, name_of_kind, namespace, name in needs.referenced or ():
        is_watched = not row.is_namespaced or {"", namespace} & set(everywhere)
        if (group, name_of_kind) == (kind.group, kind.kind) and is_watched:
            names[namespace].append(name)
    for namespace, found in names.items():
        yield namespace, row.rule(*found)


def _merged(rules: Iterable[Rule]) -> Iterable[Rule]:
    """Rules that differ in their resources alone as one."""
    together: dict[tuple[object, ...], list[str]] = {}
    for rule in rules:
        resources = together.setdefault((rule.group, rule.verbs, rule.why, rule.names), [])
        resources += (each for each in rule.resources if each not in resources)
    for (group, verbs, why, names), resources in together.items():
        yield Rule(group, tuple(resources), verbs, why, names)  # type: ignore[arg-type]


def permitting(verb: str, group: str, resource: str, name: str = "") -> Rule:
    """The rule of `needed` that permits this; reading is one right. `name`: of a single object."""
    rows = [row for row in _TABLE if (row.group, row.resource) == (group, resource) and verb in row.verbs]
    if not rows:
        return Rule(group, (resource,), (verb,), names=(name,) if name else ())
    row = next((each for each in rows if each.when is _When.CATALOGUE and name == CATALOG[1]), rows[0])
    return row.rule(*((name,) if name else ()))


def missing_right(verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> str:
    """The sentence about a right that the gateway lacks, with the rule to add.

    As in `cannot list secrets in namespace a: add to a Role of namespace a …: {...}`.
    """
    rule = json.dumps(permitting(verb, group, resource, name).to_manifest())
    plural, slash, part = resource.partition("/")
    what = f"{plural}.{group}{slash}{part}" if group else resource
    scope = f" in namespace {namespace}" if namespace else ""
    role = f"a Role of namespace {namespace}" if namespace else "the ClusterRole"
    return (
        f"cannot {verb} {what}{f' {name}' if name else ''}{scope}: add to {role} of the gateway's service account"
        f" (`egressproxy rbac` prints all of it): {rule}"
    )


def roles(needs: Needs, name: str, account: tuple[str, str]) -> list[tuple[dict[str, Any], tuple[Rule, ...]]]:
    """The roles called `name`, bound to this service account (namespace and name), each with its rules; a binding has
    none. Roles of one namespace come after those of the whole cluster.
    """
    made: list[tuple[dict[str, Any], tuple[Rule, ...]]] = []
    for namespace, rules in needed(needs).items():
        prefix = "" if namespace else "Cluster"
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": f"{prefix}Role"}
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        made.append(({**head, "metadata": metadata}, rules))
        binding = {
            **head,
            "kind": f"{prefix}RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": f"{prefix}Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}],
        }
        made.append((binding, ()))
    return made
