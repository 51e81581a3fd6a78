from __future__ import annotations

from egressproxy.config.compile.status.conditions import MAX_MESSAGE, Conditions, ReferenceConditions, keep_times
from egressproxy.config.resources.object_references import ParentReference

KEY = ("g", "K", "ns", "name")


def test_a_condition_has_the_form_of_kubernetes():
    conditions = Conditions(3)
    conditions.set("Accepted", True, "Accepted", "fine")
    assert conditions.to_list() == [
        {"type": "Accepted", "status": "True", "observedGeneration": 3, "reason": "Accepted", "message": "fine"}
    ]


def test_stating_a_condition_anew_keeps_its_place():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted")
    conditions.set("Programmed", True, "Programmed")
    conditions.set("Accepted", False, "Invalid")
    assert [c["type"] for c in conditions.to_list()] == ["Accepted", "Programmed"]
    assert not conditions.holds("Accepted")
    assert conditions.holds("Programmed")


def test_a_message_is_cut_to_what_kubernetes_takes():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted", "x" * (2 * MAX_MESSAGE))
    conditions.add_note("Accepted", "more")
    assert len(conditions.to_list()[0]["message"]) == MAX_MESSAGE


def test_routes_and_policies_carry_the_name_of_the_controller():
    parents, ancestors = ReferenceConditions("parents", 1), ReferenceConditions("ancestors", 1)
    parents.add(ParentReference(name="gw"))
    ancestors.add(ParentReference(name="gw"), namespace="ns")
    assert parents.to_status()["parents"][0]["controllerName"] == "egressproxy.io/gateway-controller"
    assert ancestors.to_status()["ancestors"][0]["controllerName"] == "egressproxy.io/gateway-controller"


def parents_of(*states: tuple[str, bool]) -> dict:
    parents = ReferenceConditions("parents", 1)
    for name, holds in states:
        parents.add(ParentReference(name=name)).set("Accepted", holds, "Reason")
    return {KEY: parents.to_status()}


def times(statuses: dict) -> list[str]:
    return [parent["conditions"][0]["lastTransitionTime"] for parent in statuses[KEY]["parents"]]


def test_times_are_kept_per_parent_whatever_their_order():
    old = parents_of(("a", True), ("b", True))
    keep_times(old, {}, "then")
    new = parents_of(("b", True), ("a", False), ("c", True))
    keep_times(new, old, "now")
    assert times(new) == ["then", "now", "now"]


def test_a_note_is_a_sentence_of_its_own():
    conditions = Conditions(1)
    conditions.set("Accepted", True, "Accepted", "the listener is valid")
    conditions.add_note("Accepted", "It serves nothing.")
    conditions.add_note("Accepted", "Nor does that.")
    (condition,) = conditions.to_list()
    assert condition["message"] == "the listener is valid. It serves nothing. Nor does that."
