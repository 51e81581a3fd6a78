"""BoundCredential: what filters share that send a credential to the backend which it is bound to, and to no other."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.filters.base import Filter, FilterContext
from egressproxy.filters.credentials.binding import BackendBinding
from egressproxy.filters.credentials.config import CredentialInjectorConfig
from egressproxy.filters.credentials.refresher import Fetched, Refresher
from egressproxy.model.exchange import BackendOrigin, Exchange
from egressproxy.model.local_response import LocalResponse

#: No backend has been approved yet.
_NOBODY: Final = BackendOrigin("", 0, is_secure=False)


class BoundCredential(Filter, ABC):
    """`backend_request` of a subclass sends the credential, if `x.backend_origin` is `_approved`; else it does what
    `_unready` says. `_keep` takes a value, or None. `remedy` says what to do where there is none.
    """

    sends_credential = True

    def __init__(self, context: FilterContext, remedy: str) -> None:
        config: CredentialInjectorConfig = context.config
        self._name = context.name
        self._source = context.source
        self._context = context
        self._binding = BackendBinding(config, context.name, context.source)
        #: The backend that was last found to be what the credential is bound to, while there is a value.
        self._approved = _NOBODY
        self._is_ready = False
        self._refresher: Refresher | None = None
        self._remedy = remedy

    @abstractmethod
    def _take(self, value: object) -> None:
        """Have this value from now on. Raises ValueError for one that cannot be sent."""

    @abstractmethod
    def _forget(self) -> None:
        """Have no value."""

    def _fetch_by(self, fetch: Callable[[], Awaitable[Fetched]]) -> None:
        """Fetch values from now on, beginning with the first request."""
        self._refresher = Refresher(fetch, self._keep, FetchReport(self._context).tell)

    def _keep(self, value: object | None) -> None:
        """Take a new value, or None: there is none any more. Raises ValueError for one that cannot be sent."""
        if value is None:
            self._is_ready, self._approved = False, _NOBODY
            self._forget()
        else:
            self._take(value)
            self._is_ready = True

    def _unready(self, x: Exchange) -> Awaitable[LocalResponse | None] | None:
        """Approve the backend, if it is what the credential is bound to and there is a value; None then.

        Else returns what waits for the first value. Raises GatewayFault(CREDENTIAL_MISSING, 503), and Denied (403) as
        `BackendBinding`.
        """
        if not self._is_ready:
            if self._refresher is not None:
                return self._wait(x, self._refresher)
            raise self._missing(x)
        self._binding.check(x)
        if x.backend_origin is not None and not self._binding.looks_at_heads:
            self._approved = x.backend_origin
        return None

    async def _wait(self, x: Exchange, refresher: Refresher) -> LocalResponse | None:
        """Send the first value when it is there: what the backend is has been checked before."""
        self._binding.check(x)
        await refresher.ready()
        if not self._is_ready:
            raise self._missing(x, refresher)
        self.backend_request(x)
        return None

    def forecast(self, x: Exchange) -> None:
        """Raises as `backend_request`, but for a value that has to be fetched first."""
        if not self._is_ready and self._refresher is None:
            raise self._missing(x)
        self._binding.check(x)

    def close(self) -> None:
        if self._refresher is not None:
            self._refresher.close()

    def _missing(self, x: Exchange, refresher: Refresher | None = None) -> GatewayFault:
        return GatewayFault(
            Reason.CREDENTIAL_MISSING,
            f"the credential of {x.backend} is not available",
            status=503,
            rule=self._source,
            remedy=self._remedy,
            detail=f"filter {self._name}: {refresher.error}" if refresher is not None else "",
            retry_after_s=refresher.retry_s if refresher is not None else 0,
        )


class FetchReport:
    """Tells of fetches: metrics, and an Event when they begin to fail and when they succeed again."""

    __slots__ = ("_expiry", "_fetches", "_has_failed", "_name", "_notices", "_ready", "_source")

    def __init__(self, context: FilterContext) -> None:
        meter, labels = context.meter, ("source",)
        self._source = context.source
        self._name = context.name
        self._notices = context.notices
        self._has_failed = False
        self._fetches = meter.counter("egress_credential_fetches", "Fetches of credentials.", (*labels, "result"))
        self._ready = meter.gauge(
            "egress_credential_ready", "Whether there is a credential to send.", labels, combined="min"
        )
        self._expiry = meter.gauge(
            "egress_credential_expiry_timestamp_seconds", "When the credential expires.", labels, combined="min"
        )

    def tell(self, error: str, left_s: float) -> None:
        """A fetch has ended; `error` is "" for success. `left_s`: for how many seconds there is a value; 0: none."""
        self._fetches.add(1, self._source, "error" if error else "ok")
        self._ready.set(1 if left_s else 0, self._source)
        if left_s < 1e9:
            self._expiry.set(time.time() + left_s if left_s else 0, self._source)
        if error:
            goes_on = "the last one serves until it expires" if left_s else "requests are refused (503)"
            self._notices.warning(
                "CredentialFetchFailed", f"filter {self._name} cannot fetch its credential: {error}; {goes_on}"
            )
        elif self._has_failed:
            self._notices.normal("CredentialFetched", f"filter {self._name} has a fresh credential again")
        self._has_failed = bool(error)
