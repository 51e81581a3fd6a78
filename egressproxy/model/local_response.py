"""LocalResponse: a response of a filter or the gateway itself, in place of the backend's. A user's filter may pass a
list instead of a tuple, so this module is interpreted in every build.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """A response without the backend: `status` from 200 to 599, `fields` without framing (we write Content-Length),
    checked like `Fields.add` if a filter made them. `phrase` b"" means the standard phrase of the status.
    """

    status: int
    fields: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = field(default=b"", repr=False)
    phrase: bytes = b""

    def __post_init__(self) -> None:
        if type(self.fields) is not tuple:  # of a filter that nobody has checked
            object.__setattr__(self, "fields", tuple((name, value) for name, value in self.fields))
