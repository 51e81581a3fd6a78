"""Secret: bytes of which `repr`, `str`, formatting and pickling give no hint; equality is by content, for reloads.
SecretSource names secrets outside of manifests. Only an operator can name them, at the start of the process; manifests
and the API cannot.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn


class SecretBytes:
    """Wraps secret bytes. `reveal()` is the only way to the value; call it where the bytes go on the wire."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
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


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The data of the Secret `namespace/name`: the contents of `path`, or the `value` of the variable `variable`.

    Each file of a folder is an entry; a single file is the entry `key`, by default its own name. Without `name` the
    path is a folder of Secrets, as `NAME/KEY` or `NAMESPACE/NAME/KEY`.

    With `is_trust_bundle` it is no Secret but the ClusterTrustBundle `name`: the certificates of a PEM file, or of the
    files in a folder.
    """

    namespace: str = "default"
    name: str = ""
    key: str = ""
    path: Path | None = None
    variable: str = ""
    value: SecretBytes | None = field(default=None, repr=False)
    is_trust_bundle: bool = False

    def __str__(self) -> str:
        return f"environment variable {self.variable}" if self.path is None else str(self.path)


#: A source of configuration: manifests (a file or folder), or Secrets.
ConfigSource = Path | SecretSource
