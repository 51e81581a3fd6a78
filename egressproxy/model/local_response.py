"""LocalResponse: what a filter or the gateway itself answers in place of the backend. A filter's own code makes it, and
may give what is no tuple: so it is interpreted in every build.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LocalResponse:
    """What is answered instead of the backend: `status` from 200 to 599, `fields` without framing (we write
    Content-Length), a filter's checked as `Fields.add` checks them. `phrase` b"" is the usual one of this status.
    """

    status: int
    fields: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = field(default=b"", repr=False)
    phrase: bytes = b""

    def __post_init__(self) -> None:
        if type(self.fields) is not tuple:  # of a filter that nobody has checked
            object.__setattr__(self, "fields", tuple((name, value) for name, value in self.fields))
