"""TenantSessions: the TLS sessions of one connector where no connection serves two tenants: a session is no more
another tenant's than the connection that it came from, by which a server may know who it has to do with.
"""

from __future__ import annotations

from typing import Final

from egressproxy.net.tls_resumption import TlsResumption

#: Of all tenants and targets of a connector, some kilobytes each: beyond them what was used the longest ago is
#: forgotten, and costs a whole handshake.
MAX_SESSIONS: Final = 4096


class TenantSessions:
    """By target and tenant."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[tuple[object, str], TlsResumption] = {}

    def of(self, target: object, tenant: str) -> TlsResumption:
        """Those of this tenant with this target (its key)."""
        key = target, tenant
        found = self._of.pop(key, None) or TlsResumption()
        self._of[key] = found
        if len(self._of) > MAX_SESSIONS:
            del self._of[next(iter(self._of))]
        return found
