from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from egressproxy.processes.loader.published import PublishedConfiguration, digest
from egressproxy.processes.loader.result import pack_shown

PACKED = pack_shown([
    (("g", "Gateway", "ns", "a"), {"spec": 1}, 2, {"conditions": [{"type": "Accepted"}]}, ""),
    (("g", "HTTPRoute", "ns", "b"), {"spec": 2}, 1, {}, ""),
])  # fmt: skip


def test_the_version_moves_when_something_else_is_shown():
    source = PublishedConfiguration()
    assert list(source.objects()) == []
    before = source.version
    source.publish(PACKED, "")
    assert source.version != before
    before = source.version
    source.publish(PACKED, "")
    assert source.version == before
    source.publish(PACKED, "bad")
    assert source.version != before


def test_objects_stay_as_they_were_when_asked_for():
    source = PublishedConfiguration()
    source.publish(PACKED, "")
    objects = source.objects()
    source.publish(b"", "")
    assert [each.name for each in objects] == [each.name for each in objects] == ["a", "b"]


def test_after_a_rejection_the_gateways_say_so_and_nothing_else_does():
    source = PublishedConfiguration()
    source.publish(PACKED, "line 3 is wrong")
    gateway, route = source.objects()
    assert gateway.status is not None
    condition = json.loads(gateway.status)["conditions"][-1]
    assert (condition["type"], condition["message"]) == ("egressproxy.io/ReloadRejected", "line 3 is wrong")
    assert condition["observedGeneration"] == 2
    since = condition["lastTransitionTime"]
    assert datetime.fromisoformat(since) <= datetime.now(UTC)
    source._packed = replace(source._packed, since="2026-01-01T00:00:00Z")
    source.publish(PACKED, "line 4 is wrong")
    gateway, _ = source.objects()
    assert json.loads(gateway.status or b"")["conditions"][-1]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert route.status == b"{}"


def test_the_reason_of_a_rejection_is_the_one_that_is_given():
    source = PublishedConfiguration()
    source.publish(PACKED, "it would allow", "Guarded")
    gateway, _ = source.objects()
    assert gateway.status is not None
    assert json.loads(gateway.status)["conditions"][-1]["reason"] == "Guarded"


def test_the_catalogue_stays_where_another_configuration_is_published():
    source = PublishedConfiguration()
    before = source.version
    source.show_catalogue(pack_shown([(("", "ConfigMap", "ns", "catalogue"), {}, 1, None, "")]))
    assert source.version != before
    source.publish(PACKED, "")
    assert [each.name for each in source.objects()] == ["a", "b", "catalogue"]


def test_the_mark_of_a_configuration_is_that_of_its_manifests_in_any_order():
    first, second = (("g", "K", "n", "a"), {"spec": 1}, 1, None, ""), (("g", "K", "n", "b"), {"spec": 2}, 1, None, "")
    changed = (("g", "K", "n", "b"), {"spec": 3}, 1, None, "")
    later = (("g", "K", "n", "b"), {"spec": 2}, 7, {"conditions": []}, "2024-01-01T00:00:00Z")
    mark = digest(pack_shown([first, second]))
    assert mark == digest(pack_shown([second, first])) == digest(pack_shown([first, later]))
    assert mark != digest(pack_shown([first, changed]))
    assert len(mark) == 12
