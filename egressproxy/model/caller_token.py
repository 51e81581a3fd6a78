"""CallerToken: the verified token of a client, where policy allows that it is exchanged for another one."""

from __future__ import annotations

from hashlib import sha256

from egressproxy.model.secret import SecretBytes


class CallerToken:
    """`value` is the token. `digest` (SHA-256) stands for it as a key. `exchanged_at` are the only backends that may be
    sent the token, as "namespace/name".
    """

    __slots__ = ("digest", "exchanged_at", "value")

    def __init__(self, value: bytes, exchanged_at: frozenset[str]) -> None:
        self.value = SecretBytes(value)
        self.digest = sha256(value).digest()
        self.exchanged_at = exchanged_at

    def __repr__(self) -> str:
        return "CallerToken(…)"
