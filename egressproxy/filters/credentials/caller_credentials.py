"""CallerCredentials: the credential of a CredentialInjector, by who the caller is.

Each entry of `callers` is an injector of its own, so that nothing of one caller's credential is known where another's
is sent. The identity is that of the exchange, which retries, hedges, mirrors and messages of a WebSocket share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from egressproxy.errors import Denied, Reason
from egressproxy.filters.base import BodyMode, Filter, FilterContext, OfMessages, Phase
from egressproxy.filters.credentials.backend_credential import BackendCredential
from egressproxy.filters.credentials.config import SOURCES, CredentialInjectorConfig
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import CALLERS_OWN, Exchange
from egressproxy.model.local_response import LocalResponse

#: The most callers of whom is remembered which entry matches, and the longest key of one.
MAX_KNOWN: Final = 4096
MAX_CHARACTERS: Final = 1024


class CallerCredentials(Filter):
    """Has the injector of the first matching entry do everything; that of all other callers is the last one."""

    of_messages = OfMessages.READS
    sends_credential = True

    def __init__(self, context: FilterContext, build: Callable[[FilterContext], BackendCredential]) -> None:
        """`build` makes the injector of a config without `callers`. Raises UnusableReference."""
        config: CredentialInjectorConfig = context.config
        self._name, self._source = context.name, context.source
        self._subjects = [each.subjects for each in config.callers]
        nothing: dict[str, Any] = dict.fromkeys(SOURCES) | {"env": "", "file": ""}
        configs = [
            replace(config, callers=(), **(nothing | {"secret_ref": each.secret_ref})) for each in config.callers
        ]
        self._is_closed = not any(getattr(config, source) for source in SOURCES)
        if not self._is_closed:
            configs.append(replace(config, callers=()))
        self._injectors = [build(replace(context, config=each)) for each in configs]
        first = self._injectors[0]
        self.runs_in = frozenset().union(*(each.runs_in or () for each in self._injectors))
        self.keeps_length = all(each.keeps_length for each in self._injectors)  # type: ignore[misc]  # of this instance
        self.decodes, self.asks_for_plain = first.decodes, first.asks_for_plain
        #: By the key of the caller: the position of its entry.
        self._known: dict[str, int] = {}

    def backend_request(self, exchange: Exchange) -> Awaitable[LocalResponse | None] | None:
        """As the injector of the caller. Raises Denied(CREDENTIAL_NOT_FOR_CALLER, 403) without one."""
        injector = self._of(exchange)
        exchange.keep(CALLERS_OWN, True)
        return injector.backend_request(exchange)  # type: ignore[return-value]

    def backend_response(self, exchange: Exchange) -> None:
        self._of(exchange).backend_response(exchange)

    def response_body(self, exchange: Exchange, data: bytes, last: bool) -> object:  # type: ignore[override]
        return self._of(exchange).response_body(exchange, data, last)

    def body_mode_for(self, exchange: Exchange, phase: Phase) -> BodyMode | None:
        return self._of(exchange).body_mode_for(exchange, phase)

    def forecast(self, exchange: Exchange) -> None:
        self._of(exchange).forecast(exchange)

    def decision(self, exchange: Exchange) -> str:
        at = self._position(exchange.identity)
        return f"callers[{at}]" if at < len(self._subjects) else ""

    def close(self) -> None:
        for each in self._injectors:
            each.close()

    def _of(self, exchange: Exchange) -> BackendCredential:
        at = self._position(exchange.identity)
        if at == len(self._subjects) and self._is_closed:
            raise Denied(
                Reason.CREDENTIAL_NOT_FOR_CALLER,
                f"filter {self._name} has no credential of {exchange.backend} for this client",
                rule=self._source,
                remedy="add the client to `callers` of the filter, or have it show who it is (docs/identity.md)",
            )
        return self._injectors[at]

    def _position(self, identity: CallerIdentity) -> int:
        """That of the first entry for this caller; the number of entries for one of whom none speaks."""
        at = self._known.get(identity.key)
        if at is None:
            at = len(self._subjects)
            if identity.name != "-" or identity.namespace != "-":
                for position, subjects in enumerate(self._subjects):
                    if any(subject.matches(identity) for subject in subjects):
                        at = position
                        break
            if len(identity.key) <= MAX_CHARACTERS:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[identity.key] = at
        return at
