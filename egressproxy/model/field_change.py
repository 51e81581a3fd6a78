"""FieldChange: what an authorization server wants to have done to the fields of a head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from egressproxy.model.fields import Fields, every_spelling


class FieldAction(Enum):
    """What is done to a field of this name; a client's own lines are told by every spelling."""

    REMOVE = "remove"
    SET = "set"
    APPEND = "append"
    ADD_IF_ABSENT = "add if absent"
    SET_IF_PRESENT = "set if present"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """What is done to the field of this name (lower case), and with which value."""

    name: bytes
    action: FieldAction
    value: bytes = b""


def apply(changes: Iterable[FieldChange], fields: Fields) -> None:
    """Change a head, in the given order. Raises ValueError for what no field can carry."""
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
