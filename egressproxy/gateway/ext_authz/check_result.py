"""CheckResult: what an authorization server has said of a request, and what that does to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from egressproxy.filters.header_policy import is_protected
from egressproxy.model.exchange import LocalResponse
from egressproxy.model.fields import Fields, every_spelling

__all__ = ["CheckResult", "FieldAction", "FieldChange", "apply", "denial", "is_for_clients", "is_ours"]


class FieldAction(Enum):
    """What is done to a field of this name; a client's own lines are told by every spelling."""

    REMOVE = "remove"
    SET = "set"
    APPEND = "append"
    ADD_IF_ABSENT = "add if absent"
    SET_IF_PRESENT = "set if present"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """`name` in lower case."""

    name: bytes
    change: FieldAction
    value: bytes = b""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`answer` is a denial, as the client gets it; else the request goes on, changed by `request`, and what the client
    is answered then by `response`.
    """

    answer: LocalResponse | None = None
    request: tuple[FieldChange, ...] = ()
    response: tuple[FieldChange, ...] = ()


def is_ours(name: bytes) -> bool:
    """Whether the gateway itself writes this field, and nobody else may: framing, routing, this hop."""
    return is_protected(name.decode("latin-1"))


def is_for_clients(name: bytes) -> bool:
    """Whether a server may say this field to clients: with X-Egress-…, in either spelling, we do ourselves."""
    return not (is_ours(name) or name.lower().replace(b"_", b"-").startswith(b"x-egress-"))


def apply(changes: Iterable[FieldChange], fields: Fields) -> None:
    """Change a head, in the given order. Raises ValueError for what no field can carry."""
    for change in changes:
        name = change.name
        kind = change.change
        if kind is FieldAction.ADD_IF_ABSENT and name in fields:
            continue
        spellings = every_spelling((name.decode("latin-1"),))
        if kind is FieldAction.SET_IF_PRESENT and spellings.search(fields.block) is None:
            continue
        if kind is not FieldAction.APPEND:  # an absent field may be there in another spelling, which some origins read
            fields.cut(spellings)
        if kind is not FieldAction.REMOVE:
            fields.add(name, change.value)


def denial(status: int, fields: Iterable[tuple[bytes, bytes]], body: bytes, phrase: bytes = b"") -> CheckResult:
    """A refusal in the server's own words. Raises ValueError for a status or a field that no answer can have.

    A 407 would make clients send us the credentials that they have for a proxy.
    """
    if not 200 <= status <= 599 or status == 407:
        raise ValueError(f"status {status}")
    kept = tuple((name, value) for name, value in fields if is_for_clients(name) and name.lower() != b"date")
    return CheckResult(LocalResponse(status, tuple(Fields.of(kept)), b"" if status in (204, 304) else body, phrase))
