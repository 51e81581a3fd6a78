from __future__ import annotations

import pytest

from egressproxy.envoy.field_change import FieldAction, FieldChange, apply
from egressproxy.model.fields import Fields


def changed(change: FieldAction, before: bytes = b"\r\nX-A: 1\r\nx_a: 2\r\nx-b: 3") -> bytes:
    fields = Fields(before)
    apply([FieldChange(b"x-a", change, b"new")], fields)
    return fields.block


def test_each_change_does_what_its_name_says():
    assert changed(FieldAction.REMOVE) == b"\r\nx-b: 3"
    assert changed(FieldAction.SET) == b"\r\nx-b: 3\r\nx-a: new"
    assert changed(FieldAction.APPEND) == b"\r\nX-A: 1\r\nx_a: 2\r\nx-b: 3\r\nx-a: new"
    assert changed(FieldAction.ADD_IF_ABSENT) == b"\r\nX-A: 1\r\nx_a: 2\r\nx-b: 3"
    assert changed(FieldAction.ADD_IF_ABSENT, b"\r\nx-b: 3") == b"\r\nx-b: 3\r\nx-a: new"
    assert (
        changed(FieldAction.ADD_IF_ABSENT, b"\r\nX_A: 2") == b"\r\nx-a: new"
    )  # no client adds to it by another spelling
    assert changed(FieldAction.SET_IF_PRESENT) == b"\r\nx-b: 3\r\nx-a: new"
    assert changed(FieldAction.SET_IF_PRESENT, b"\r\nx-b: 3") == b"\r\nx-b: 3"
    assert changed(FieldAction.SET_IF_PRESENT, b"\r\nX_A: 1") == b"\r\nx-a: new"


@pytest.mark.parametrize(("name", "value"), [(b"x a", b"1"), (b"x", b"1\r\nb: 2"), (b"", b"1"), (b":path", b"/")])
def test_what_no_field_can_carry_is_refused(name: bytes, value: bytes):
    with pytest.raises(ValueError):
        apply([FieldChange(name, FieldAction.APPEND, value)], Fields())
