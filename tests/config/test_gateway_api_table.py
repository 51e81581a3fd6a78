"""The tables of fields name every field that is read, and nothing else; the documentation repeats them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

from egressproxy.config.resources import extension, gateway, meta, object_references, routes
from egressproxy.config.resources.backend import BackendTlsPolicy
from egressproxy.config.resources.destination import CaBundleReference
from egressproxy.config.resources.meta import Model, Resource
from egressproxy.config.resources.telemetry import XTelemetryPolicy
from egressproxy.config.resources.x_backend import XBackend, XBackendValidation
from egressproxy.config.schema import SHARED as SECTIONS
from egressproxy.config.schema import gateway_api_fields, json_schema, models_by_name
from tests.config.field_tables import FIELDS_PAGE, GATEWAY_API_PAGE, OURS, fields_page, gateway_api_page

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
    XTelemetryPolicy,
    XBackend,
)
#: Shapes that several kinds share: each has a section of its own.
SHARED: dict[type[Model], str] = {
    models_by_name()[name]: section for section, names in SECTIONS.items() for name in names
}
#: References and selectors: one line each, whatever fields they have.
WHOLE: tuple[type[Model], ...] = (
    gateway.ParametersReference,
    CaBundleReference,
    object_references.BackendObjectReference,
    meta.LabelSelector,
    object_references.LocalObjectReference,
    object_references.LocalObjectReference,
    object_references.ObjectReference,
    object_references.SecretObjectReference,
    extension.ProcessorReference,
)


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


def fields(model: type[Model], prefix: str, whole: tuple[type[Model], ...] = WHOLE) -> Iterator[str]:
    """The paths of all fields below, as in `spec.rules[].name`; those of a shared shape end with it."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        models, is_list = models_in(info.annotation)
        if not models:
            yield path
            continue
        if is_list:
            path += "[]"
        if any(each in SHARED or each in whole for each in models):
            yield path
            continue
        for each in models:
            yield from fields(each, f"{path}.", whole)


def expected() -> dict[str, set[str]]:
    """Section -> paths."""
    found = {kind.KIND: {path for path in fields(kind, "") if path.startswith("spec.")} for kind in KINDS}
    for model, section in SHARED.items():
        found.setdefault(section, set()).update(fields(model, ""))
    return found


def test_every_section_is_about_a_kind_or_a_shape_that_is_read():
    assert gateway_api_fields().keys() == expected().keys()


@pytest.mark.parametrize("section", sorted(expected()))
def test_every_field_stands_in_the_table(section: str):
    assert set(gateway_api_fields()[section]) == expected()[section]


@pytest.mark.parametrize("section", sorted(expected()))
def test_each_field_has_its_level_and_says_whether_it_is_served_and_since_when(section: str):
    for path, row in gateway_api_fields()[section].items():
        assert row.level in ("core", "extended", "implementation-specific"), path
        assert (row.since == "–") == (row.served == "no"), path
        assert row.note or row.served == "yes", f"{path}: what happens instead?"


@pytest.mark.parametrize("page", [GATEWAY_API_PAGE, FIELDS_PAGE], ids=lambda page: page.name)
def test_the_pages_say_what_is_published(page: Path):
    there = page.read_text(encoding="utf-8")
    made = gateway_api_page(there) if page == GATEWAY_API_PAGE else fields_page()
    assert there == made, f"{page} is not what the models say: python -m tests.config.field_tables writes it"


def test_every_property_of_our_kinds_has_a_row_with_words():
    rows = [line for line in fields_page().splitlines() if line.startswith("| `")]
    paths = [line.split("`")[1] for line in rows]
    for kind in OURS:
        # `validation` of a Backend is the draft's, and has one line.
        made = fields(kind, "", (*WHOLE, XBackendValidation))
        assert {path.replace("[]", "") for path in made if path.startswith("spec.")} <= {
            path.replace("[]", "") for path in paths
        }
    assert not [line for line in rows if line.endswith("|  |")]


def test_what_is_served_of_a_policy_of_the_api_is_not_said_of_ours():
    """Both have targetRefs; of a BackendTLSPolicy Services alone are served."""
    parts = json_schema()["$defs"]
    theirs = parts["BackendTlsTargetReference"]["properties"]["kind"]
    ours = parts["EgressPolicyTargetReference"]["properties"]["kind"]
    assert theirs["x-egressproxy-support"]["served"] == "partly"
    assert "x-egressproxy-support" not in ours
    assert "served" not in ours["description"]
