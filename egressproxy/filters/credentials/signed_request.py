"""SignedRequest: a request as it goes to a backend, for what signs it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from egressproxy.model.fields import Fields


@dataclass(slots=True, repr=False)
class SignedRequest:
    """`host` is the value of Host, `target` the path with its query. `now` is the time of the signature in seconds.

    Other fields may be added to `fields`, and are signed as those of the client.
    """

    method: bytes
    host: bytes
    target: bytes
    fields: Fields
    body: bytes = b""
    is_secure: bool = True
    now: float = field(default_factory=time.time)
    nonce: bytes = field(default_factory=lambda: secrets.token_hex(16).encode())

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    @property
    def query(self) -> bytes:
        """Without "?"; b"" also where there is none."""
        return self.target.partition(b"?")[2]

    @property
    def scheme(self) -> bytes:
        return b"https" if self.is_secure else b"http"

    def value_of(self, name: bytes) -> bytes | None:
        """The combined value of a field (RFC 9110 section 5.2), None where there is none."""
        values = self.fields.get_all(name)
        return b", ".join(values) if values else None
