from __future__ import annotations

import pytest

from egressproxy.gateway.ext_authz.check_result import FieldAction, FieldChange, apply, denial, is_ours
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


def test_the_fields_of_this_hop_and_of_the_framing_are_ours():
    for name in (b"Host", b"content-length", b"Transfer-Encoding", b"connection", b"proxy-authorization", b"Via"):
        assert is_ours(name)
    assert not is_ours(b"authorization")


def test_a_denial_has_no_framing_but_ours():
    forged = [(b"X-Egress-Request-Id", b"1"), (b"x_egress_new", b"1")]
    said = [(b"Content-Length", b"9"), (b"Date", b"now"), (b"www-authenticate", b"Basic"), *forged]
    made = denial(401, said, b"no").answer
    assert made is not None
    assert (made.status, made.fields, made.body) == (401, ((b"www-authenticate", b"Basic"),), b"no")
    without = denial(304, [], b"no").answer
    assert without is not None
    assert without.body == b""


@pytest.mark.parametrize("status", [0, 101, 199, 407, 600])
def test_a_status_that_no_client_could_be_told_is_refused(status: int):
    with pytest.raises(ValueError):
        denial(status, [], b"")
