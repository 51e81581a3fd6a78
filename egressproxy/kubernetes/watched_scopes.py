"""Which scopes of a cluster are watched, by what a configuration refers to.

Of kinds that configure the gateway all objects are watched. Secrets, ConfigMaps and ClusterTrustBundles are watched by
name, and Pods by labels; Services, Namespaces, and all Pods only if the configuration refers to one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Final

from egressproxy.config.served_kinds import CONFIGURED, ServedKind
from egressproxy.kubernetes.object_store import ALL_PODS, OF_SERVICE, SLICES, Scope
from egressproxy.model.published_object import Key
from egressproxy.run_options import ClusterOptions

#: Names of Services up to which only their EndpointSlices are asked for.
FEW_SERVICES: Final = 100
#: Objects of one kind and namespace that are read by name.
MOST_NAMES: Final = 500
#: Up to how many names of one namespace, and of all namespaces, each has a watch, and so a connection of its own.
FEW_NAMES: Final = 16
FEW_NAMES_IN_ALL: Final = 128
#: Names that objects may have. Any other character means something else in a selector, and would break all of it.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.:]{0,251}[a-z0-9])?")
_SELECTOR: Final = re.compile(r"[-A-Za-z0-9_./]+=[-A-Za-z0-9_.]*(,[-A-Za-z0-9_./]+=[-A-Za-z0-9_.]*)*")
_SERVICE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_BY_NAME: Final = frozenset({("", "Secret"), ("", "ConfigMap"), ("certificates.k8s.io", "ClusterTrustBundle")})
_WHERE_WANTED: Final = frozenset({("", "Namespace"), ("", "Service"), ALL_PODS[:2]})
_NEVER: Final = frozenset({("", "ServiceAccount")})
_SERVICE: Final = next(kind for kind in CONFIGURED if kind.kind == "Service")


def watched_scopes(
    options: ClusterOptions,
    kinds: Container[tuple[str, str]],
    referenced: Collection[Key],
    policies: Iterable[ServedKind] = (),
) -> tuple[dict[Scope, Sequence[str]], list[str]]:
    """The scopes to watch, each with its names if it `is_by_name`; and a sentence for each of too many names.

    `kinds` are those of the API server (group and kind), `referenced` the objects that a configuration refers to,
    `policies` kinds of policies that are not read.
    """
    scopes: dict[Scope, Sequence[str]] = {}
    too_many: list[str] = []
    if options.publish_service:
        home, _, service = options.publish_service.partition("/")
        scopes[Scope(_SERVICE, home, service)] = ()
    for kind in policies:
        namespaces = (options.namespaces or ("",)) if kind.is_namespaced else ("",)
        scopes.update((Scope(kind, namespace), ()) for namespace in namespaces)
    for kind in CONFIGURED:
        name = (kind.group, kind.kind)
        if name not in kinds or name in _NEVER:
            continue
        keys = [key for key in referenced if key[:2] == name]
        namespaces = (options.namespaces or ("",)) if kind.is_namespaced else ("",)
        if name in _BY_NAME and not (options.secret_selector and kind.is_namespaced):
            scopes.update(_named(kind, keys, namespaces, too_many))
            continue
        labels = ""
        if name in _BY_NAME:
            labels = options.secret_selector
        elif name == SLICES:
            labels = _slices(referenced)
            if not labels:
                continue
        elif name in _WHERE_WANTED and not keys:
            continue
        elif name == ALL_PODS[:2] and ALL_PODS not in keys:
            scopes.update((scope, ()) for scope in _selected(kind, keys, namespaces))
            continue
        scopes.update((Scope(kind, namespace, labels=labels), ()) for namespace in namespaces)
    return scopes, too_many


def _named(
    kind: ServedKind, keys: Iterable[Key], namespaces: tuple[str, ...], too_many: list[str]
) -> Iterator[tuple[Scope, Sequence[str]]]:
    found: dict[str, list[str]] = {}
    for _, _, namespace, name in sorted(keys):
        is_watched = namespaces == ("",) or namespace in namespaces
        if is_watched and _NAME.fullmatch(name) and (not namespace or _NAME.fullmatch(namespace)):
            found.setdefault(namespace, []).append(name)
    few = FEW_NAMES if sum(map(len, found.values())) <= FEW_NAMES_IN_ALL else 1
    for namespace, names in found.items():
        if len(names) > MOST_NAMES:
            suffix = f" of namespace {namespace}" if namespace else ""
            too_many.append(
                f"the configuration refers to {len(names)} {kind.kind}s{suffix}: only {MOST_NAMES} are read"
            )
        kept = names[:MOST_NAMES]
        if len(kept) <= few:
            yield from ((Scope(kind, namespace, name), ()) for name in kept)
        else:
            yield Scope(kind, namespace, is_by_name=True), kept


def _selected(kind: ServedKind, keys: Iterable[Key], namespaces: tuple[str, ...]) -> Iterator[Scope]:
    """Pods by the selectors that stand for their names; of a namespace with many selectors, all Pods."""
    found: dict[str, list[str]] = {}
    for _, _, namespace, selector in sorted(keys):
        is_watched = namespaces == ("",) or namespace in namespaces
        if is_watched and _NAME.fullmatch(namespace) and _SELECTOR.fullmatch(selector):
            found.setdefault(namespace, []).append(selector)
    few = FEW_NAMES if sum(map(len, found.values())) <= FEW_NAMES_IN_ALL else 1
    for namespace, selectors in found.items():
        for labels in selectors if len(selectors) <= few else ("",):
            yield Scope(kind, namespace, labels=labels)


def _slices(referenced: Iterable[Key]) -> str:
    """The selector of the EndpointSlices of all Services that are wanted, "" for none."""
    names = sorted({key[3] for key in referenced if key[:2] == ("", "Service") and _SERVICE_NAME.fullmatch(key[3])})
    if not names:
        return ""
    return f"{OF_SERVICE} in ({','.join(names)})" if len(names) <= FEW_SERVICES else OF_SERVICE
