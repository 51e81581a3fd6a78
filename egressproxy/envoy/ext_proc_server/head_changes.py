"""What Envoy is told to change of a head: the difference between what it sent and what filters have made of it. Pure.

Source: Envoy API v3, service/ext_proc/v3/external_processor.proto, HeaderMutation.
"""

from __future__ import annotations

from collections.abc import Iterable

from egressproxy.envoy.ext_proc.messages import ImmediateResponse
from egressproxy.envoy.field_change import FieldAction, FieldChange
from egressproxy.errors import Reason
from egressproxy.model.fields import Fields
from egressproxy.model.local_response import LocalResponse
from egressproxy.protocols.grpc.statuses import parsed_status
from egressproxy.protocols.http2.remembered_fields import FieldList

#: Fields of the hop and of the framing: the codec takes them out of a head, and Envoy writes its own.
_OF_THE_HOP = frozenset(
    b"host connection content-length transfer-encoding proxy-connection keep-alive te upgrade expect via"
    b" http2-settings max-forwards x-forwarded-client-cert".split()
)


def changes_of(before: bytes, after: Fields) -> tuple[FieldChange, ...]:
    """The changes from `before`, a block, to `after`, removals first; names have no order (RFC 9110 section 5.3)."""
    if before == after.block:
        return ()
    old, new = _that_differ(before, after.block)
    changes = [FieldChange(name, FieldAction.REMOVE) for name in old if name not in new]
    for name, values in new.items():
        if old.get(name) != values:
            changes += _lines(name, values)
    return tuple(changes)


def dropped_fields(received: FieldList, kept: Fields) -> tuple[FieldChange, ...]:
    """Removes what the codec lets nobody pass on: claims of identity, what is for a proxy, other spellings of these."""
    if len(received) == len(kept):
        return ()
    names = {name for name, _ in received if name[:1] != b":"}
    left = names - _OF_THE_HOP - {name for name, _ in kept}
    return tuple([FieldChange(name, FieldAction.REMOVE) for name in sorted(left)])


def immediate_response(answer: LocalResponse, reason: Reason, *, is_call: bool) -> ImmediateResponse:
    """The response that Envoy is to make. `is_call`: to a client of gRPC, of whose trailers Envoy makes its own."""
    fields = Fields.of(answer.fields)
    status = parsed_status(fields.block) if is_call else -1
    body = answer.body
    if status >= 0:
        body = fields.get(b"grpc-message") or b""
        fields.remove(b"grpc-status")
        fields.remove(b"grpc-message")
    details = reason.value if reason is not Reason.OK else "filter_answered"
    headers = immediate_headers(fields)
    return ImmediateResponse(answer.status, headers, body, status if status >= 0 else None, f"egressproxy_{details}")


def immediate_headers(fields: Iterable[tuple[bytes, bytes]]) -> tuple[FieldChange, ...]:
    """The fields of a response that Envoy is to make: each replaces what Envoy would write by itself."""
    return tuple([change for name, values in _by_name(fields).items() for change in _lines(name, values)])


def _that_differ(before: bytes, after: bytes) -> tuple[dict[bytes, list[bytes]], dict[bytes, list[bytes]]]:
    """The values of both blocks by their names, at least of those names whose lines differ.

    What filters change stands together most often: the lines that both have at their beginning and at their end are
    only looked at where they have one of the names in between.
    """
    old, new = before.split(b"\r\n"), after.split(b"\r\n")
    first = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        first += 1
    last, most = 0, min(len(old), len(new)) - first
    while last < most and old[-1 - last] == new[-1 - last]:
        last += 1
    gone, come = old[first : len(old) - last], new[first : len(new) - last]
    same = b"\r\n".join([b"", *old[:first], *old[len(old) - last :]]).lower()
    for line in (*gone, *come):
        if b"\r\n" + line.partition(b":")[0].lower() + b":" in same:
            return _by_name(Fields(before)), _by_name(Fields(after))
    return _by_name(Fields(b"\r\n".join([b"", *gone]))), _by_name(Fields(b"\r\n".join([b"", *come])))


def _by_name(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        found.setdefault(name.lower(), []).append(value)
    return found


def _lines(name: bytes, values: list[bytes]) -> list[FieldChange]:
    first, *rest = values
    return [
        FieldChange(name, FieldAction.SET, first),
        *[FieldChange(name, FieldAction.APPEND, value) for value in rest],
    ]
