"""What products may add to the data plane: the types that the core calls, and the products implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from egressproxy.errors import GatewayError
from egressproxy.filters.base import Filter
from egressproxy.gateway.answers import Answer, BegunAnswer
from egressproxy.gateway.backends.buffered_body import BodyClient
from egressproxy.gateway.backends.failover import FailoverState
from egressproxy.gateway.backends.replayable_body import ReplayableBody
from egressproxy.gateway.backends.route_backend import RouteBackend
from egressproxy.gateway.backends.session_persistence import PersistentSessions, Sessions
from egressproxy.ir.policy import ExtensionIR
from egressproxy.ir.route import ExternalAuthIR, HttpRuleIR
from egressproxy.model.exchange import Exchange, StateSlot
from egressproxy.model.local_response import LocalResponse
from egressproxy.model.secret import SecretBytes
from egressproxy.protocols.upstream import Upstream
from egressproxy.telemetry.metrics import Metrics


# --- exchanges -------------------------------------------------------------------------------------------------------
class ErrorForm(ABC):
    """The form in which the client of one exchange reads errors, such as that of a provider's SDK."""

    __slots__ = ()

    @abstractmethod
    def error(self, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes | None:
        """The body of a response, with what our errors tell (`about`); None: our own form."""

    def error_fields(self, error: GatewayError) -> tuple[tuple[bytes, bytes], ...]:
        """The fields of a response, beside ours."""
        return ()

    @abstractmethod
    def error_in_stream(self, kind: bytes, error: GatewayError, about: dict[str, object], *, denied: bool) -> bytes:
        """The event that ends a stream of this media type; b"" where there is none."""


class RequestAdapter(ABC):
    """Makes what each attempt sends of the client's own request, and the client's answer of the backend's."""

    __slots__ = ()

    own_answer: LocalResponse | None  # what the client gets, and the backend is not asked

    @property
    @abstractmethod
    def body(self) -> bytes | None:
        """What the attempt under way sends; None for the client's own body."""

    @abstractmethod
    async def prepare(
        self,
        exchange: Exchange,
        client: BodyClient,
        backend: RouteBackend,
        body: ReplayableBody | None,
        failover_state: FailoverState | None,
    ) -> RouteBackend:
        """Make the client's own request what `backend`, or the next of a Failover that can serve it, gets of it.
        Returns that one. Raises BadRequest (400) where none can; LimitExceeded (413) for a long body.
        """

    @abstractmethod
    async def narrow(
        self, exchange: Exchange, client: BodyClient, body: ReplayableBody | None, failover_state: FailoverState
    ) -> None:
        """After a failure: take backends out that cannot serve this request."""

    @abstractmethod
    async def answer(self, exchange: Exchange, client: BodyClient, upstream: Upstream | BegunAnswer) -> Answer:
        """What the client gets of the answer in `exchange.response`. Raises UpstreamFault (502) for one that cannot be
        read.
        """


#: Where a product keeps the adapter of an exchange, before its attempts begin.
ADAPTER: Final[StateSlot[RequestAdapter]] = StateSlot("request adapter")


# --- rules -----------------------------------------------------------------------------------------------------------
class ExternalAuthorization(Filter, ABC):
    """A filter that asks a server of the operator's about each request of one rule."""

    spec: ExternalAuthIR
    server: str  # the name of the server's backend

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """Whether there is a server to ask."""

    @property
    def is_asked_about_all(self) -> bool:
        """Whether the server is asked about each request, and not only about some."""
        return self.spec.condition is None

    @abstractmethod
    def unusable(self) -> GatewayError:
        """The error of every request if no server can be asked."""


@dataclass(frozen=True, slots=True)
class OwnFilter:
    """A filter of the gateway's own, in the chain of one rule or backend. `mark`: as of ConfiguredFilter."""

    spec: ExtensionIR
    filter: Filter
    mark: StateSlot[bool] | None = None


@dataclass(frozen=True, slots=True)
class BuiltRule:
    """A rule whose backends are built. `sessions`: the session persistence that the rule asks for."""

    name: str
    spec: HttpRuleIR
    backends: Sequence[RouteBackend]
    session_key: SecretBytes
    metrics: Metrics
    sessions: PersistentSessions | None


class RuleProduct(ABC):
    """What a product adds to the rules of HTTPRoutes whose backends are of its kind."""

    looks_at_bodies: ClassVar[bool] = False  # its filter may ask for the beginning of a request's body

    @abstractmethod
    def serves(self, rule: HttpRuleIR, backends: Sequence[RouteBackend]) -> bool:
        """Whether backends of this rule are of its kind."""

    def blocking_import(self) -> Callable[[], None] | None:
        """What has to be imported, in a thread, before a rule is in service; None: it is imported."""
        return None

    @abstractmethod
    def attach(self, rule: BuiltRule) -> tuple[OwnFilter, Sessions | None]:
        """The filter of this rule's requests, and its sessions; None: those that the rule asks for."""
