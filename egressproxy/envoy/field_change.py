"""FieldChange: a change that an authorization server makes to the fields of a head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from egressproxy.model.fields import Fields, every_spelling


class FieldAction(Enum):
    """The action on a field; the client's lines are matched in every spelling of the name."""

    REMOVE = "remove"
    SET = "set"
    APPEND = "append"
    ADD_IF_ABSENT = "add if absent"
    SET_IF_PRESENT = "set if present"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """An action on the field `name` (lower case), with its value."""

    name: bytes
    action: FieldAction
    value: bytes = b""


def apply(changes: Iterable[FieldChange], fields: Fields) -> None:
    """Apply the changes to a head, in order. Raises ValueError for a name or value that a field cannot have."""
    for change in changes:
        name, action = change.name, change.action
        if action is FieldAction.ADD_IF_ABSENT and name in fields:
            continue
        spellings = every_spelling((name.decode("latin-1"),))
        if action is FieldAction.SET_IF_PRESENT and spellings.search(fields.block) is None:
            continue
        if action is not FieldAction.APPEND:  # an absent field may be there in a spelling that some origins read
            fields.cut(spellings)
        if action is not FieldAction.REMOVE:
            fields.add(name, change.value)
