"""Secret: bytes that never show themselves.

`repr`, `str`, formatting and pickling give no hint of the value; equality is by content, so that values that hold a
secret can be compared when a configuration is reloaded.
"""

from __future__ import annotations

import hmac
from typing import NoReturn


class SecretBytes:
    """Wraps secret bytes. `reveal()` is the only way to the value; call it where the bytes go on the wire."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The value."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretBytes) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return "SecretBytes(…)"

    def __format__(self, spec: str) -> str:
        return "SecretBytes(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not serialised")
