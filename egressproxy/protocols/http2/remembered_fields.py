"""Lists of fields. They stay interpreted: a compiled class cannot be a list."""

from __future__ import annotations

FieldList = list[tuple[bytes, bytes]]


class RememberedFields(FieldList):
    """Fields that a decoder remembers. `meaning`: what was read from them, for whoever reads them again."""

    __slots__ = ("meaning",)

    def __init__(self, fields: FieldList) -> None:
        super().__init__(fields)
        self.meaning: object = None
