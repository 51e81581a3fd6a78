"""The bytes are compared with a reader and writer of the wire format that shares nothing with the code under test;
with Envoy's published messages they are compared in tests/clients.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egressproxy.envoy.ext_proc.messages import (
    BodySendMode,
    HeaderSendMode,
    ImmediateResponse,
    MessagePart,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    StreamedBody,
)
from egressproxy.envoy.ext_proc.wire import read_request, read_response, request_bytes, response_bytes
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.envoy.protobuf import WireError
from tests.support.protobuf_wire import field, fields, number

HEADERS = (MessagePart.REQUEST_HEADERS, MessagePart.RESPONSE_HEADERS)
BODIES = (MessagePart.REQUEST_BODY, MessagePart.RESPONSE_BODY)
TRAILERS = (MessagePart.REQUEST_TRAILERS, MessagePart.RESPONSE_TRAILERS)

names = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=8).map(str.encode)
values = st.binary(min_size=1, max_size=12)
lines = st.lists(st.tuples(names, values), max_size=4).map(tuple)
json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
structs = st.dictionaries(st.text(max_size=4), json, max_size=3)
named = st.dictionaries(st.text(max_size=6), structs, max_size=2)
flags = st.booleans()
protocols = st.none() | st.builds(
    ProtocolConfiguration, st.sampled_from(BodySendMode), st.sampled_from(BodySendMode), flags
)
more = {"attributes": named, "metadata": named, "observability_mode": flags, "protocol": protocols}
requests = (
    st.builds(ProcessingRequest, st.sampled_from(HEADERS), lines, end_of_stream=flags, **more)
    | st.builds(ProcessingRequest, st.sampled_from(BODIES), body=st.binary(max_size=30), end_of_stream=flags, **more)
    | st.builds(ProcessingRequest, st.sampled_from(TRAILERS), lines, **more)
)
removals = st.lists(st.builds(FieldChange, names, st.just(FieldAction.REMOVE)), max_size=2)
settings = st.lists(
    st.builds(FieldChange, names, st.sampled_from([each for each in FieldAction if each is not FieldAction.REMOVE]),
              st.binary(max_size=8)), max_size=3,
)  # fmt: skip
mutations = st.tuples(removals, settings).map(lambda both: (*both[0], *both[1]))
modes = st.builds(
    ProcessingMode, *[st.sampled_from(HeaderSendMode)] * 2, *[st.sampled_from(BodySendMode)] * 2,
    *[st.sampled_from(HeaderSendMode)] * 2,
)  # fmt: skip
said = {"dynamic_metadata": structs, "mode_override": st.none() | modes}
bodies = st.none() | st.binary(max_size=20)
pieces = st.builds(StreamedBody, st.binary(max_size=9), flags)
immediate = st.builds(
    ImmediateResponse, st.integers(200, 599), mutations, st.binary(max_size=20), st.none() | st.integers(0, 16),
    st.text(max_size=9),
)  # fmt: skip
responses = (
    st.builds(
        ProcessingResponse, st.sampled_from(HEADERS + BODIES), flags, mutations, bodies, clear_route_cache=flags, **said
    )
    | st.builds(ProcessingResponse, st.sampled_from(BODIES), streamed=pieces)
    | st.builds(ProcessingResponse, st.sampled_from(TRAILERS), headers=mutations)
    | st.builds(ProcessingResponse, immediate=immediate)
    | st.builds(ProcessingResponse, override_message_timeout_s=st.integers(0, 9000).map(lambda ms: ms / 8))
)


def tree(data: bytes, *path: int) -> list[Any]:
    """The values under these tags."""
    found = [value for tag, value in fields(data) if tag == path[0]]
    return found if len(path) == 1 else [deeper for value in found for deeper in tree(value, *path[1:])]  # type: ignore[arg-type]


@given(requests)
def test_a_request_is_read_as_it_was_written(request):
    assert read_request(request_bytes(request)) == request


@given(responses)
def test_a_response_is_read_as_it_was_written(response):
    assert read_response(response_bytes(response)) == response


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    for read in (read_request, read_response):
        with contextlib.suppress(WireError):
            read(data)


def test_what_the_processor_is_sent_stands_in_its_fields():
    asked = request_bytes(
        ProcessingRequest(
            MessagePart.REQUEST_HEADERS,
            ((b":path", b"/a"), (b"x-\xe9", b"\xff")),
            end_of_stream=True,
            attributes={"envoy.filters.http.ext_proc": {"request.path": "/a"}},
            metadata={"ns": {"n": 1.0}},
            observability_mode=True,
            protocol=ProtocolConfiguration(BodySendMode.STREAMED, BodySendMode.BUFFERED, True),
        )
    )
    assert [dict(fields(line)) for line in tree(asked, 2, 1, 1)] == [
        {1: b":path", 3: b"/a"}, {1: b"x-?", 3: b"\xff"},
    ]  # fmt: skip
    assert tree(asked, 2, 3) == [1]
    assert tree(asked, 9, 1) == [b"envoy.filters.http.ext_proc"]
    assert (tree(asked, 9, 2, 1, 1), tree(asked, 9, 2, 1, 2, 3)) == ([b"request.path"], [b"/a"])
    assert (tree(asked, 8, 1, 1), tree(asked, 10)) == ([b"ns"], [1])
    assert (tree(asked, 11, 1), tree(asked, 11, 2), tree(asked, 11, 3)) == ([1], [2], [1])
    body = request_bytes(ProcessingRequest(MessagePart.RESPONSE_BODY, body=b"abc", end_of_stream=True))
    assert (tree(body, 5, 1), tree(body, 5, 2)) == ([b"abc"], [1])
    trailers = request_bytes(ProcessingRequest(MessagePart.RESPONSE_TRAILERS, ((b"t", b"1"),)))
    assert dict(fields(tree(trailers, 7, 1, 1)[0])) == {1: b"t", 3: b"1"}


def option(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """A HeaderMutation.set_headers."""
    return field(1, field(1, field(1, name) + field(2, value)) + more)


def headers_response(mutation: bytes, common: bytes = b"") -> bytes:
    return field(1, field(1, common + field(2, mutation)))


@pytest.mark.parametrize(("more", "action"), [
    (b"", FieldAction.SET),
    (field(2, number(1, 1)), FieldAction.APPEND),
    (field(2, b""), FieldAction.SET),
    (number(3, 1), FieldAction.ADD_IF_ABSENT),
    (number(3, 2), FieldAction.SET),
    (number(3, 3), FieldAction.SET_IF_PRESENT),
])  # fmt: skip
def test_each_way_to_set_a_header(more, action):
    answer = read_response(headers_response(field(2, b"Gone") + option(b"X-A", b"1", more)))
    assert answer.headers == (FieldChange(b"gone", FieldAction.REMOVE), FieldChange(b"x-a", action, b"1"))


@pytest.mark.parametrize(("data", "said"), [
    (headers_response(option(b"a", b"1", number(3, 4))), "append_action 4"),
    (headers_response(option(b"a", b"1", field(2, b"") + number(3, 1))), "an append and an append_action"),
    (headers_response(field(1, field(1, field(1, b"a") + field(2, b"1") + field(3, b"2")))), "value and a raw_value"),
    (headers_response(b"", number(1, 2)), "status 2"),
    (field(1, b"") + field(2, b""), "two parts"),
    (field(1, b"") + field(7, b""), "of two kinds"),
    (field(3, field(1, field(3, field(1, b"x") + number(2, 1)))), "in two ways"),
    (field(9, number(3, 9)), "mode 9"),
])  # fmt: skip
def test_an_answer_that_the_protocol_does_not_have_is_refused(data, said):
    with pytest.raises(WireError, match=said):
        read_response(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(field(1, field(1, field(2, field(1, b"") * 1001))), id="set"),
        pytest.param(field(1, field(1, field(2, field(2, b"a") * 1001))), id="removed"),
        pytest.param(field(5, field(1, field(1, b"") * 1001)), id="of trailers"),
        pytest.param(field(7, field(2, field(1, b"") * 1001)), id="of an immediate response"),
    ],
)
def test_more_lines_than_any_head_has_are_not_read_one_by_one(data):
    with pytest.raises(WireError, match="1000 lines"):
        read_response(data)


def test_metadata_has_a_bound():
    def metadata(values: int) -> bytes:
        return field(8, field(1, field(1, b"ns") + field(2, field(6, field(1, b"") * values))))

    assert read_response(metadata(30_000)).dynamic_metadata == {"ns": [None] * 30_000}
    with pytest.raises(WireError, match="65536 bytes"):
        read_response(metadata(33_000))


def test_a_body_is_cleared_only_where_the_flag_says_so():
    def body(mutation: bytes) -> bytes | None:
        return read_response(field(3, field(1, field(3, mutation)))).body

    assert body(number(2, 1)) == b""
    assert body(field(1, b"")) == b""
    assert body(b"\x10\x00") is None  # clear_body: false


def test_a_message_of_no_part_is_no_request():
    with pytest.raises(WireError, match="no part"):
        read_request(number(10, 1))
