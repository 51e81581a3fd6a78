"""Server-side apply and who owns what."""

from __future__ import annotations

from typing import Any

import pytest

from egressproxy.kubeapi.write.managed_fields import apply, updated
from egressproxy.kubeapi.write.patches import shape_of
from egressproxy.kubeapi.write.write import WriteRefused

SHAPE = shape_of("gateway.networking.k8s.io", "Gateway")
NOW = "2026-07-01T00:00:00Z"
LATER = "2026-07-02T00:00:00Z"


def gateway(labels: dict[str, str] | None = None, **ports: int) -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "g", **({"labels": labels} if labels is not None else {})},
        "spec": {"listeners": [{"name": name, "port": port} for name, port in ports.items()]},
    }


def applied(
    current: Any, wanted: Any, manager: str = "me", *, is_forced: bool = False, now: str = NOW
) -> dict[str, Any]:
    return apply(current, wanted, manager, is_forced, SHAPE, now)


def ports(made: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["port"] for each in made.get("spec", {}).get("listeners", ())}


def managers(made: dict[str, Any]) -> set[tuple[str, str]]:
    return {(entry["manager"], entry["operation"]) for entry in made["metadata"].get("managedFields", ())}


def test_what_is_applied_to_nothing_belongs_to_who_applies_it():
    made = applied(None, gateway(a=1))
    (entry,) = made["metadata"]["managedFields"]
    assert entry == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "gateway.networking.k8s.io/v1",
        "time": NOW,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:listeners": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:port": {}}}}},
    }


def test_managers_own_their_items_of_a_list():
    made = applied(applied(None, gateway(a=1)), gateway(b=2), "other")
    assert ports(made) == {"a": 1, "b": 2}
    made = applied(made, gateway(b=3), "other")
    assert ports(made) == {"a": 1, "b": 3}


def test_a_list_with_an_item_that_has_no_key_is_one_field():
    shape = shape_of("gateway.networking.k8s.io", "Backend")

    def backend(*extensions: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"name": "b"}, "spec": {"extensions": list(extensions)}}

    pool, breaker, named = {"type": "v/pool"}, {"type": "v/breaker"}, {"name": "n", "type": "v/pool"}
    made = apply(None, backend(pool, named), "me", False, shape, NOW)
    for wanted in ([breaker], [breaker, named], [named]):
        made = apply(made, backend(*wanted), "me", False, shape, NOW)
        assert made["spec"]["extensions"] == wanted


def test_a_field_of_another_manager_is_a_conflict_that_names_both():
    made = applied(None, gateway(a=1))
    with pytest.raises(WriteRefused) as caught:
        applied(made, gateway(a=2), "other")
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
    assert caught.value.causes == (
        ("FieldManagerConflict", 'conflict with "me"', '.spec.listeners[name="a"].port'),
    )  # fmt: skip


def test_the_same_value_is_owned_by_both():
    made = applied(applied(None, gateway(a=1)), gateway(a=1), "other")
    made = applied(made, gateway(), "me")
    assert ports(made) == {"a": 1}
    assert ports(applied(made, gateway(), "other")) == {}


def test_force_takes_the_field_over():
    made = applied(applied(None, gateway(a=1)), gateway(a=2), "other", is_forced=True)
    assert ports(made) == {"a": 2}
    with pytest.raises(WriteRefused):
        applied(made, gateway(a=1), "me")


def test_what_is_not_applied_any_more_goes_with_its_item():
    made = applied(None, gateway({"x": "1", "y": "2"}, a=1, b=2))
    made = applied(made, gateway({"y": "2"}, b=2))
    assert ports(made) == {"b": 2}
    assert made["metadata"]["labels"] == {"y": "2"}
    made = applied(made, gateway(b=2))
    assert "labels" not in made["metadata"]


def test_an_item_in_which_another_owns_a_field_stays_with_its_key():
    made = applied(None, gateway(a=1))
    extra = gateway()
    extra["spec"]["listeners"] = [{"name": "a", "hostname": "h"}]
    made = applied(made, extra, "other")
    made = applied(made, gateway())
    assert made["spec"]["listeners"] == [{"name": "a", "hostname": "h"}]


def test_an_update_takes_what_it_changes_from_the_others():
    made = applied(None, gateway(a=1, b=2))
    changed = {**made, "spec": gateway(a=5, b=2)["spec"]}
    made = updated(made, changed, "editor", SHAPE, LATER)
    assert managers(made) == {("me", "Apply"), ("editor", "Update")}
    with pytest.raises(WriteRefused, match='conflict with "editor"'):
        applied(made, gateway(a=1, b=2))
    assert ports(applied(made, gateway(a=5, b=2))) == {"a": 5, "b": 2}


def test_the_time_of_an_entry_moves_only_with_its_fields():
    made = applied(None, gateway(a=1))
    again = applied(made, gateway(a=1), now=LATER)
    assert again["metadata"]["managedFields"][0]["time"] == NOW
    assert applied(made, gateway(a=1, b=1), now=LATER)["metadata"]["managedFields"][0]["time"] == LATER


def test_who_owns_nothing_any_more_is_not_listed():
    made = updated(None, gateway(a=1), "first", SHAPE, NOW)
    made = updated(made, {**made, "spec": gateway(b=2)["spec"]}, "second", SHAPE, NOW)
    assert managers(made) == {("second", "Update")}


def test_a_client_may_rewrite_the_list_itself():
    made = updated(None, gateway(a=1), "first", SHAPE, NOW)
    given = {**made, "metadata": {"name": "g", "managedFields": []}}
    assert managers(updated(made, given, "second", SHAPE, NOW)) == set()


def test_who_an_object_is_belongs_to_nobody():
    made = applied(None, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "y"}})
    assert "managedFields" not in made["metadata"]


def test_a_list_whose_items_have_no_key_is_applied_as_one_value():
    """A published form of a Backend calls the number of a port `port`, and gives extensions no name."""
    key = ("gateway.networking.k8s.io", "Backend")
    wanted = {
        "apiVersion": "gateway.networking.k8s.io/v1alpha1",
        "kind": "Backend",
        "metadata": {"name": "b"},
        "spec": {
            "destination": {"type": "FQDN", "ports": [{"name": "https", "port": 443, "protocol": "HTTPS"}]},
            "extensions": [{"type": "vendor.example/pool"}],
        },
    }
    made = apply(None, wanted, "me", False, shape_of(*key), NOW)
    again = apply(made, wanted, "me", False, shape_of(*key), NOW)
    assert again["spec"] == wanted["spec"]
