"""LeafCaches: those of one snapshot, by CA. That of a CA which the next one has, too, is kept, and so is the minter."""

from __future__ import annotations

from egressproxy.gateway.leaf_certificates.leaf_cache import LeafCache, LeafKey
from egressproxy.gateway.leaf_certificates.minter import Minter
from egressproxy.telemetry.interceptions import Interceptions


class LeafCaches:
    """`known` are those in service."""

    __slots__ = ("_known", "_made", "_minter")

    def __init__(self, known: LeafCaches | None = None) -> None:
        self._known = known._made if known is not None else {}
        self._made: dict[LeafKey, LeafCache] = {}
        self._minter: Minter = known._minter if known is not None else Minter()

    def of(self, key: LeafKey, counted: Interceptions) -> LeafCache:
        """The one for this CA."""
        found = self._made.get(key) or self._known.get(key) or LeafCache(key, counted, self._minter)
        self._made[key] = found
        return found

    def forget_known(self) -> None:
        """Those in service before are no longer looked for."""
        self._known = {}
