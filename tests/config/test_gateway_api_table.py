"""docs/gateway-api.md names every field that is read of Gateway API's kinds, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

from egressproxy.config.resources import gateway, meta, route_filters, routes
from egressproxy.config.resources.backend import BackendTlsPolicy, XBackend
from egressproxy.config.resources.meta import Model, Resource

PAGE = Path(__file__).parents[2] / "docs" / "gateway-api.md"
KINDS: tuple[type[Resource], ...] = (
    gateway.GatewayClass,
    gateway.Gateway,
    gateway.ListenerSet,
    routes.HttpRoute,
    routes.GrpcRoute,
    routes.TlsRoute,
    routes.TcpRoute,
    BackendTlsPolicy,
    gateway.ReferenceGrant,
    XBackend,
)
#: Shapes that several kinds share: each has a section of its own.
SHARED: dict[type[Model], str] = {
    gateway.Listener: "Listeners",
    meta.ParentReference: "parentRefs",
    routes.BackendRef: "backendRefs",
    routes.HttpBackendRef: "backendRefs",
    routes.GrpcBackendRef: "backendRefs",
    route_filters.HttpFilter: "Filters",
    route_filters.GrpcFilter: "Filters",
    routes.SessionPersistence: "sessionPersistence",
}
#: References and selectors: one line each, whatever fields they have.
WHOLE: tuple[type[Model], ...] = (
    gateway.ParametersReference,
    meta.BackendObjectReference,
    meta.LabelSelector,
    meta.LocalObjectReference,
    meta.ObjectReference,
    meta.SecretObjectReference,
)
SUPPORT = {"yes", "partly", "no"}


def models_in(annotation: Any) -> tuple[list[type[Model]], bool]:
    """The models that a field may hold, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation], False
    origin = get_origin(annotation)
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in (Union, UnionType, tuple):
        found = [models_in(each) for each in get_args(annotation)]
        return [model for models, _ in found for model in models], origin is tuple or any(many for _, many in found)
    return [], False


def fields(model: type[Model], prefix: str) -> Iterator[str]:
    """The paths of all fields below, as in `spec.rules[].name`; those of a shared shape end with it."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        models, is_list = models_in(info.annotation)
        if not models:
            yield path
            continue
        if is_list:
            path += "[]"
        if any(each in SHARED or each in WHOLE for each in models):
            yield path
            continue
        for each in models:
            yield from fields(each, f"{path}.")


def expected() -> dict[str, set[str]]:
    """Section -> paths."""
    found = {kind.KIND: {path for path in fields(kind, "") if path.startswith("spec.")} for kind in KINDS}
    for model, section in SHARED.items():
        found.setdefault(section, set()).update(fields(model, ""))
    return found


def written() -> dict[str, dict[str, str]]:
    """Section -> path -> support, as the page has it."""
    sections: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            rows = sections.setdefault(line.removeprefix("## "), {})
        elif found := re.match(r"\| `([^`]+)` \| (\w+) \|", line):
            assert found[1] not in rows, f"{found[1]} stands twice"
            rows[found[1]] = found[2]
    return sections


@pytest.mark.parametrize("section", sorted(expected()))
def test_every_field_stands_in_the_table(section: str):
    assert set(written().get(section, {})) == expected()[section]


def test_each_field_is_supported_partly_supported_or_not():
    assert {word for rows in written().values() for word in rows.values()} <= SUPPORT
