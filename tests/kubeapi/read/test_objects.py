"""What changed, and when."""

from __future__ import annotations

import dataclasses

import pytest

from egressproxy.kubeapi.read import objects as module
from egressproxy.kubeapi.read.objects import ChangeType, Gone, Objects, View
from egressproxy.model.published_object import PublishedObject
from tests.admin.kit import Holder, entries

TEXT = """
{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: one}, data: {x: "1"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: two}}
"""
A, B = entries(TEXT)
A_CHANGED = dataclasses.replace(A, status=b"{}")


def summary(objects: Objects, since: int) -> list[tuple[int, str, str]]:
    return [(change.version, change.type.value, change.entry.name) for change in objects.since(since)]


def of_kind(view: View, kind: str) -> list[PublishedObject]:
    return [entry for entry in view.entries() if (entry.group, entry.kind) == ("", kind)]


async def test_every_object_has_the_version_at_which_it_changed_last():
    source = Holder([A, B])
    objects = Objects([source], 100)
    first = await objects.view()
    assert {entry.name: first.version_at(entry.key) for entry in of_kind(first, "ConfigMap")} == {"a": 101, "b": 102}
    source.put([A_CHANGED, B])
    second = await objects.view()
    assert {entry.name: second.version_at(entry.key) for entry in of_kind(second, "ConfigMap")} == {
        "a": second.version,
        "b": 102,
    }
    assert second.version == first.version + 1


async def test_changes_since_a_version_are_told_in_order_with_what_was_before():
    source = Holder([A])
    objects = Objects([source], 100)
    start = (await objects.view()).version
    source.put([A_CHANGED, B])
    await objects.view()
    source.put([B])
    end = (await objects.view()).version
    told = objects.since(start)
    assert [(change.type, change.entry.name) for change in told] == [
        (ChangeType.MODIFIED, "a"),
        (ChangeType.ADDED, "b"),
        (ChangeType.ADDED, "two"),  # the namespace that b implies
        (ChangeType.DELETED, "a"),
        (ChangeType.DELETED, "one"),
    ]
    assert told[0].before == A
    assert told[3].entry == A_CHANGED
    assert [change.version for change in told] == list(range(start + 1, end + 1))
    assert objects.since(end) == []
    assert objects.since(start + 3) == told[3:]


async def test_nothing_is_compared_while_no_source_has_moved():
    source = Holder([A])
    objects = Objects([source], 100)
    first = await objects.view()
    assert await objects.view() is first
    source.put([A])
    assert (await objects.view()).version == first.version


async def test_what_is_before_the_first_look_or_forgotten_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_CHANGES", 2)
    source = Holder([A])
    objects = Objects([source], 100)
    start = (await objects.view()).version
    with pytest.raises(Gone):
        objects.since(start - 1)
    for text in (b"1", b"2", b"3"):
        source.put([dataclasses.replace(A, status=text)])
        await objects.view()
    with pytest.raises(Gone):
        objects.since(start)
    assert len(objects.since(start + 1)) == 2


async def test_only_the_source_that_moved_is_read_again():
    class Fixed(Holder):
        asked = 0

        def objects(self):  # type: ignore[no-untyped-def]
            self.asked += 1
            return super().objects()

    still, moving = Fixed([A]), Holder([B])
    objects = Objects([still, moving], 100)
    await objects.view()
    moving.put([])
    view = await objects.view()
    assert still.asked == 1
    assert [entry.name for entry in of_kind(view, "ConfigMap")] == ["a"]


async def test_namespaces_that_objects_are_in_are_there():
    objects = Objects([Holder(entries(TEXT + "\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: one}}"))], 1)
    view = await objects.view()
    assert sorted(entry.name for entry in of_kind(view, "Namespace")) == ["default", "one", "two"]


async def test_a_change_wakes_who_waits():
    objects = Objects([Holder()], 1)
    signal = objects.signal
    objects.changed()
    assert signal.is_set()
    assert not objects.signal.is_set()


async def test_what_changes_take_up_counts_the_status_and_what_was_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_BYTES", 4 * len(A.manifest))
    source = Holder([A])
    objects = Objects([source], 100)
    start = (await objects.view()).version
    source.put([dataclasses.replace(A, status=b"1" * len(A.manifest))])
    await objects.view()
    assert len(objects.since(start)) == 1
    source.put([dataclasses.replace(A, status=b"2" * len(A.manifest))])
    await objects.view()
    with pytest.raises(Gone):
        objects.since(start)
