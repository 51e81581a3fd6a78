from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egressproxy.envoy.ext_proc_server.head_changes import changes_of, dropped_fields, immediate_headers
from egressproxy.envoy.field_change import FieldAction, FieldChange, apply
from egressproxy.model.fields import Fields

names = st.sampled_from([b"a", b"b", b"set-cookie", b"x-long-name"])
lines = st.lists(st.tuples(names, st.sampled_from([b"1", b"2", b"three four"])), max_size=8)


def by_name(fields: Fields) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return found


@given(lines, lines)
def test_the_changes_make_of_one_head_the_other(before: list[tuple[bytes, bytes]], after: list[tuple[bytes, bytes]]):
    head, wanted = Fields.of(before), Fields.of(after)
    apply(changes_of(head.block, wanted), head)
    assert by_name(head) == by_name(wanted)


@given(lines)
def test_what_stays_is_not_said(same: list[tuple[bytes, bytes]]):
    assert changes_of(Fields.of(same).block, Fields.of(same)) == ()
    assert changes_of(Fields.of(same).block, Fields.of(sorted(same, key=lambda line: line[0]))) == ()


def test_what_is_removed_comes_first():
    assert changes_of(b"\r\nA: 1\r\nB: 2", Fields.of([(b"C", b"3"), (b"b", b"2")])) == (
        FieldChange(b"a", FieldAction.REMOVE),
        FieldChange(b"c", FieldAction.SET, b"3"),
    )


def test_what_the_codec_drops_is_removed_but_for_what_is_of_the_hop():
    received = [
        (b":path", b"/"), (b"via", b"1.1 x"), (b"te", b"trailers"), (b"content-length", b"1"), (b"accept", b"*/*"),
        (b"x-gateway-user", b"root"), (b"x_forwarded_for", b"1"),
    ]  # fmt: skip
    assert dropped_fields(received, Fields.of([(b"Accept", b"*/*")])) == (
        FieldChange(b"x-gateway-user", FieldAction.REMOVE),
        FieldChange(b"x_forwarded_for", FieldAction.REMOVE),
    )


def test_a_response_of_our_own_replaces_what_envoy_would_write():
    assert immediate_headers([(b"Content-Type", b"text/css"), (b"Set-Cookie", b"a"), (b"set-cookie", b"b")]) == (
        FieldChange(b"content-type", FieldAction.SET, b"text/css"),
        FieldChange(b"set-cookie", FieldAction.SET, b"a"),
        FieldChange(b"set-cookie", FieldAction.APPEND, b"b"),
    )
