"""Lists of fields. They stay interpreted: a compiled class cannot be a list."""

from __future__ import annotations

FieldList = list[tuple[bytes, bytes]]


class RememberedFields(FieldList):
    """Fields that a decoder remembers. `meaning`: the head that was read from the fields, for the next request with the
    same.
    """

    __slots__ = ("meaning",)

    def __init__(self, fields: FieldList) -> None:
        super().__init__(fields)
        self.meaning: object = None
