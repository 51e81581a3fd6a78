"""DnsCache: DNS answers and failures by name, bounded in number and memory; and the errors for clients. Pure. Sources:
RFC 2308 (negative answers), RFC 8767 (stale answers), RFC 9520 (failures).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from egressproxy.errors import Reason, RetrySafety, UpstreamFault
from egressproxy.model.addresses import Resolved
from egressproxy.upstream.lookups import Waiter

MAX_NAMES = 10_000
MAX_CACHED_BYTES = 16 * 1024 * 1024  # of all entries, approximately

#: The memory of an entry, and of each address or name in the entry.
_ENTRY_BYTES, _ADDRESS_BYTES = 600, 100
_NOTHING = Resolved()
#: Reason -> the result in metrics, and the message for the client.
RESULTS = {
    Reason.DNS_NXDOMAIN: ("nxdomain", "does not exist"),
    Reason.DNS_NO_ADDRESS: ("no_address", "has no address"),
    Reason.DNS_SERVFAIL: ("servfail", "could not be resolved: the DNS server failed"),
    Reason.DNS_TIMEOUT: ("timeout", "could not be resolved in time"),
    Reason.DNS_ERROR: ("error", "could not be resolved"),
    Reason.DNS_NOT_AUTHENTIC: ("not_authentic", "has no answer that DNSSEC authenticates, which dns.dnssec demands"),
}


@dataclass(frozen=True, slots=True)
class NameFailure:
    """A failed lookup; `detail` is for the log."""

    reason: Reason
    detail: str = ""

    def fault(self, host: str) -> UpstreamFault:
        """The error for this name (503, 504 after a timeout), which is safe to retry; a new one each time: raised
        twice, it would collect tracebacks.
        """
        status = 504 if self.reason is Reason.DNS_TIMEOUT else 503
        message = f'the name "{host}" {RESULTS[self.reason][1]}'
        return UpstreamFault(self.reason, message, status=status, retry=RetrySafety.SAFE, detail=self.detail)


@dataclass(slots=True, eq=False)
class KnownName:
    """The entry of a name: addresses, or the failure. Times are monotonic seconds."""

    expires: float
    failure: NameFailure | None = None
    addresses: Resolved = _NOTHING
    stale_until: float = 0.0  # end of use without a newer answer (RFC 8767)
    kept_until: float = 0.0  # end of use of one family's addresses that an earlier answer had
    backoff_s: float = 0.0  # 0: no refresh has failed since expiry
    retry_at: float = 0.0
    prefetch_at: float = math.inf  # a use after this time triggers a refresh

    def settle(self, waiter: Waiter, host: str) -> None:
        """Give the waiter the addresses of this name, or the error."""
        if self.failure is None:
            waiter.set_result(self.addresses)
        else:
            waiter.set_exception(self.failure.fault(host))


class DnsCache:
    """The entries by name; the least recently refreshed is evicted first."""

    __slots__ = ("_bytes", "_entries", "get")

    def __init__(self) -> None:
        self._entries: dict[str, KnownName] = {}
        self._bytes = 0
        self.get = self._entries.get

    def put(self, host: str, entry: KnownName) -> None:
        self._forget(host)
        self._entries[host] = entry
        self._bytes += _bytes_of(host, entry)
        while len(self._entries) > MAX_NAMES or self._bytes > MAX_CACHED_BYTES:
            self._forget(next(iter(self._entries)))

    def _forget(self, host: str) -> None:
        entry = self._entries.pop(host, None)
        if entry is not None:
            self._bytes -= _bytes_of(host, entry)

    def __len__(self) -> int:
        return len(self._entries)


def _bytes_of(host: str, entry: KnownName) -> int:
    """The approximate memory of an entry, constant while it is cached."""
    through = entry.addresses.through
    parts = len(entry.addresses) + len(through)
    return _ENTRY_BYTES + len(host) + sum(map(len, through)) + _ADDRESS_BYTES * parts
