"""KeyGrant: what an API key of a client may be used for, beside what policies say of the client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """`entry` names the key's record ("NAMESPACE/SECRET#ENTRY"), and `digest` is the SHA-256 of the key. `routes` are
    the only routes ("namespace/name"), and `models` patterns of the only models, that it may be used for; None: all.
    """

    entry: str
    digest: bytes
    routes: frozenset[str] | None = None
    models: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"KeyGrant({self.entry})"
