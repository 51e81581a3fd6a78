from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.envoy.ext_authz.messages import CheckAnswer, HttpAttributes, check_answer, check_request
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.envoy.protobuf import WireError
from tests.support.protobuf_wire import field, fields, number, text


def header(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """A HeaderValueOption."""
    return field(1, text(1, name) + text(2, value)) + more


def status(code: int) -> bytes:
    return field(1, number(1, code))


def tree(data: bytes, *path: int) -> list[Any]:
    """The values under these tags."""
    found = [value for tag, value in fields(data) if tag == path[0]]
    return found if len(path) == 1 else [deeper for value in found for deeper in tree(value, *path[1:])]  # type: ignore[arg-type]


HTTP = HttpAttributes(
    "id-1", b"POST", {b":path": b"/a?b", b"x": b"1"}, b"/a?b", b"h.example", b"https", b"HTTP/1.1", 12.5, b"hi"
)


def test_every_attribute_stands_in_its_field():
    asked = check_request(HTTP, ("10.0.0.9", 5000), ("::1", 8080))
    assert tree(asked, 1, 1, 1, 1, 2) == [b"10.0.0.9"]
    assert tree(asked, 1, 1, 1, 1, 3) == [5000]
    assert tree(asked, 1, 2, 1, 1, 2) == [b"::1"]
    assert (tree(asked, 1, 4, 1, 1), tree(asked, 1, 4, 1, 2)) == ([12], [500_000_000])
    http = tree(asked, 1, 4, 2)[0]
    assert {tag: value for tag, value in fields(http) if tag != 3} == {
        1: b"id-1", 2: b"POST", 4: b"/a?b", 5: b"h.example", 6: b"https", 9: 2, 10: b"HTTP/1.1", 11: b"hi",
    }  # fmt: skip
    assert [dict(fields(entry)) for entry in tree(http, 3)] == [{1: b":path", 2: b"/a?b"}, {1: b"x", 2: b"1"}]


def test_a_body_that_is_no_text_goes_raw_and_an_address_that_is_none_goes_not():
    raw = HttpAttributes("", b"POST", {}, b"/", b"h", b"http", b"HTTP/1.1", 0.0, b"\xff\x00")
    asked = check_request(raw, ("", 0), ("", 0))
    assert (tree(asked, 1, 1), tree(asked, 1, 2)) == ([], [])
    assert (tree(asked, 1, 4, 2, 11), tree(asked, 1, 4, 2, 12)) == ([], [b"\xff\x00"])


@pytest.mark.parametrize("data", [status(0), b"\x0a\x00", field(3, b""), status(0) + field(3, b"")])
def test_a_status_of_ok_allows(data: bytes):
    assert check_answer(data) == CheckAnswer(True)


def test_what_an_ok_response_wants_is_read():
    ok = (
        field(2, header(b"X-User", b"42"))
        + field(2, header(b"x-a", b"1", field(2, number(1, 1))))
        + field(2, header(b"x-b", b"1", field(2, b"")))
        + field(2, header(b"x-c", b"1", number(3, 3)))
        + field(2, field(1, text(1, b"x-d") + field(3, b"raw")))
        + field(5, b"X-Gone")
        + field(6, header(b"x-r", b"r"))
        + field(3, b"metadata")
    )
    answer = check_answer(status(0) + field(3, ok) + field(4, b"a struct"))
    assert answer.headers == (
        FieldChange(b"x-gone", FieldAction.REMOVE),
        FieldChange(b"x-user", FieldAction.SET, b"42"),
        FieldChange(b"x-a", FieldAction.APPEND, b"1"),
        FieldChange(b"x-b", FieldAction.SET, b"1"),
        FieldChange(b"x-c", FieldAction.SET_IF_PRESENT, b"1"),
        FieldChange(b"x-d", FieldAction.SET, b"raw"),
    )
    assert answer.response_headers == (FieldChange(b"x-r", FieldAction.SET, b"r"),)


def test_a_denial_has_a_status_headers_and_a_body():
    denied = field(1, number(1, 401)) + field(2, header(b"X-Why", b"no")) + field(3, b"go away")
    answer = check_answer(status(7) + field(2, denied))
    assert answer == CheckAnswer(False, 401, (FieldChange(b"x-why", FieldAction.SET, b"no"),), body=b"go away")


@pytest.mark.parametrize("data", [status(7), status(16) + field(3, b""), field(2, b""), status(0) + field(2, b"")])
def test_what_is_not_clearly_a_yes_is_a_403(data: bytes):
    assert check_answer(data) == CheckAnswer(False, 403)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        field(4, b""),  # metadata alone
        number(1, 1),  # a status that is a number
        field(1, field(1, b"0")),  # a code that is text
        status(0) + field(5, b""),  # an error of the service
        status(0) + field(3, field(7, b"")),  # query parameters
        status(0) + field(3, field(2, header(b"a", b"b", number(3, 9)))),
        status(0) + b"\x1a\x05",
        status(0) + field(2, b"") + field(3, b""),  # yes and no
        status(0) + number(3, 1),  # a response that is a number
        status(0) + field(3, field(2, number(1, 1))),  # a header that is one
        field(1, b"\x0d\0\0\0\0"),  # a code of four octets
    ],
)
def test_what_cannot_be_understood_is_refused(data: bytes):
    with pytest.raises(WireError):
        check_answer(data)


@given(st.binary(max_size=60))
def test_anything_is_read_or_refused(data: bytes):
    with contextlib.suppress(WireError):
        check_answer(data)
