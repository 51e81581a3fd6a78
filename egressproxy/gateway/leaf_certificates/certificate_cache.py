"""CertificateCache: the certificates that clients are shown in intercepted tunnels, one for each name, minted at its
first use.

The certificate of a name is valid for a day, kept, and replaced some hours before it ends. Its TLS context, which takes
as long to make as a certificate and twenty times its memory, is kept for names that are in use. A snapshot has the
`CertificateCaches` of its CAs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from time import time
from typing import Final, NamedTuple, Protocol

from egressproxy.errors import Denied, GatewayFault, Reason
from egressproxy.gateway.leaf_certificates.certificate_signer import CannotSign, CertificateSigner, SigningProcess
from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.certificate import Leaf
from egressproxy.model.secret import SecretBytes
from egressproxy.net.tls_contexts.contexts import leaf_context
from egressproxy.telemetry.counters import Interceptions

#: What tells CAs apart: chain, key, and the policy that is named where something is wrong with them.
LeafKey = tuple[str, SecretBytes, str]

#: Names whose leaves are kept, by all CAs together: 2 MB. The one that was not asked for the longest goes first.
MAX_LEAVES: Final = 1024
#: Of these the names whose contexts are kept: 2.5 MB.
MAX_CONTEXTS: Final = 128
#: Of each CA, however many there are.
MIN_KEPT: Final = 2
#: OpenSSL keeps a session (1 KB) of each client of TLS 1.2 that uses no tickets, 20,480 for each context, and Python's
#: ssl cannot tell it not to. A context with more than this is replaced: 16 MB for all of them.
MAX_SESSIONS: Final = 128
#: What is minted at one time, for all clients together; who comes later is told to come again.
MAX_MINTING: Final = 1024
#: Of these for names that one client has asked for first.
MAX_MINTING_OF_CLIENT: Final = 32
#: A leaf that ends sooner is replaced: a client that has connected with it goes on as long as its connection.
RENEWED_S: Final = 6 * 3600.0


class _Kept(NamedTuple):
    """A leaf, and when it is renewed, in seconds since the epoch."""

    leaf: Leaf
    renewed_at: float


class InterceptedConnection(Protocol):
    """A connection with a client that was shown a leaf."""

    def abort(self) -> None:
        """Close at once."""


class CaLineage:
    """A CA of some clients, over its rotations: its intercepted connections, and whether it is withdrawn."""

    __slots__ = ("connections", "is_withdrawn")

    def __init__(self) -> None:
        self.connections: set[InterceptedConnection] = set()
        self.is_withdrawn = False


class CertificateCache:
    """The leaves of one CA. It lives as long as that CA is in the configuration. `secret` is the CA of some clients
    (namespace/name), "" one for all.
    """

    __slots__ = (
        "_certificates",
        "_chain_pem",
        "_clock",
        "_contexts",
        "_counted",
        "_key_pem",
        "_of_client",
        "_signer",
        "_waiting",
        "lineage",
        "max_contexts",
        "max_leaves",
        "policy",
        "secret",
    )  # fmt: skip

    def __init__(
        self,
        key: LeafKey,
        counted: Interceptions,
        signer: CertificateSigner,
        clock: Callable[[], float] = time,
        secret: str = "",
    ) -> None:
        """`clock`: seconds since the epoch."""
        self.secret = secret
        self.max_leaves, self.max_contexts = MAX_LEAVES, MAX_CONTEXTS
        self.lineage = CaLineage() if secret else _ALL
        self._chain_pem, self._key_pem, self.policy = key
        self._counted = counted
        self._signer = signer
        self._clock = clock
        self._certificates: dict[str, _Kept] = {}  # oldest use first
        self._contexts: dict[str, ssl.SSLContext] = {}  # of some of them; oldest use first
        self._of_client: Counter[str] = Counter()
        self._waiting: dict[str, list[asyncio.Future[ssl.SSLContext]]] = {}

    def for_client(self, _identity: CallerIdentity) -> CertificateCache:
        """As of ClientCas: the same for all clients."""
        return self

    def withdraw(self) -> None:
        """Nobody is shown its leaves any more, and connections of clients that were are closed."""
        lineage = self.lineage
        lineage.is_withdrawn = True
        self._certificates.clear()
        self._contexts.clear()
        while lineage.connections:
            lineage.connections.pop().abort()

    def follow(self, successor: CertificateCache) -> None:
        """It is rotated: its connections go on, until the successor is withdrawn."""
        successor.lineage = self.lineage

    def check_in_force(self) -> None:
        """Raises Denied where the CA was withdrawn. Ask behind whatever may last."""
        if self.lineage.is_withdrawn:
            raise no_ca(self.policy, "the CA of this client was withdrawn")

    def add_connection(self, connection: InterceptedConnection) -> None:
        """A client was shown a leaf."""
        if self.secret:
            self.lineage.connections.add(connection)

    def remove_connection(self, connection: InterceptedConnection) -> None:
        self.lineage.connections.discard(connection)

    def known(self, host: str) -> ssl.SSLContext | None:
        """The context for this name (lower case), if there is one whose leaf still lives for a while."""
        context = self._contexts.pop(host, None)
        if context is None or self._leaf(host) is None or context.session_stats()["number"] > MAX_SESSIONS:
            return None
        self._contexts[host] = context
        return context

    def _leaf(self, host: str) -> _Kept | None:
        kept = self._certificates.pop(host, None)
        if kept is None or kept.renewed_at <= self._clock():
            return None
        self._certificates[host] = kept
        return kept

    async def context(self, host: str, client: str = "") -> ssl.SSLContext:
        """As `known`, made where there is none. `client`: its address. Raises as `begin`."""
        return self.known(host) or await self.begin(host, client)

    def begin(self, host: str, client: str) -> asyncio.Future[ssl.SSLContext]:
        """Have the context made. All who wait for one name wait for one leaf. Raises GatewayFault: 503 where too much
        is being minted; the future does: 500 where the CA cannot sign (it has expired).
        """
        future: asyncio.Future[ssl.SSLContext] = asyncio.get_running_loop().create_future()
        future.add_done_callback(seen)
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(future)
            return future
        if len(self._waiting) >= MAX_MINTING or self._of_client[client] >= MAX_MINTING_OF_CLIENT:
            raise GatewayFault(Reason.OVERLOADED, "too many certificates are being minted", status=503, retry_after_s=1)
        self._waiting[host] = [future]
        kept = self._leaf(host)
        made = asyncio.wrap_future(self._signer.do(lambda process: self._make(process, host, kept)))
        self._of_client[client] += 1
        made.add_done_callback(lambda done: self._settle(host, client, done, is_new=kept is None))
        return future

    def _make(self, process: SigningProcess, host: str, kept: _Kept | None) -> tuple[_Kept, ssl.SSLContext]:
        """In the thread."""
        if kept is None:
            now = self._clock()
            leaf = process.mint(self._chain_pem, self._key_pem, host, now)
            kept = _Kept(leaf, max(leaf.expires_at - RENEWED_S, now + (leaf.expires_at - now) / 2))
            self._counted.minted += 1
        certificate = CertificateIR(host, kept.leaf.chain_pem, kept.leaf.key_pem, (host,))
        return kept, leaf_context(certificate, host)

    def _settle(
        self, host: str, client: str, made: asyncio.Future[tuple[_Kept, ssl.SSLContext]], *, is_new: bool
    ) -> None:
        """Back on the loop. `is_new`: its leaf was minted, too."""
        waiting = self._waiting.pop(host)
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]
        error = made.exception()
        if error is None and not self.lineage.is_withdrawn:
            kept, context = made.result()
            if self.secret and is_new:
                self._counted.of_ca[self.secret] += 1
            self._certificates.pop(host, None)
            self._certificates[host] = kept
            self._contexts[host] = context
            while len(self._certificates) > self.max_leaves:
                del self._certificates[next(iter(self._certificates))]
            while len(self._contexts) > self.max_contexts:
                del self._contexts[next(iter(self._contexts))]
        for future in waiting:
            if future.done():  # whoever has waited has left
                continue
            if error is not None:
                future.set_exception(unusable(self.policy, error))
            elif self.lineage.is_withdrawn:
                future.set_exception(no_ca(self.policy, "the CA of this client was withdrawn"))
            else:
                future.set_result(context)


#: Of CAs for all clients, which are not withdrawn.
_ALL: Final = CaLineage()


def seen(made: asyncio.Future[ssl.SSLContext]) -> None:
    """The caller may have left: an error without a waiter is dropped."""
    if not made.cancelled():
        made.exception()


def unusable(policy: str, error: BaseException) -> GatewayFault:
    """What a client is told where its name has no leaf."""
    message = f"the CA of intercept in policy {policy} cannot sign a certificate"
    remedy = "renew the Secret in intercept.caCertificateRef"
    detail = str(error) if isinstance(error, CannotSign) else f"{type(error).__name__}: {error}"
    rule = f"EgressPolicy {policy}"
    return GatewayFault(Reason.INTERCEPTION_FAILED, message, rule=rule, remedy=remedy, detail=detail)


def no_ca(policy: str, why: str) -> Denied:
    """Why the tunnel of a client is refused that has no CA."""
    message = f"TLS to this host is to be opened (intercept of policy {policy}), and {why}"
    remedy = "give the client a CA: intercept.bySubject, or `egressproxy ca new`; or have intercept.caCertificateRef"
    return Denied(Reason.DESTINATION_DENIED, message, rule=f"EgressPolicy {policy}", remedy=remedy)


class CertificateCaches:
    """Those of one snapshot, by CA, and for CAs of some clients by Secret. The next one keeps those of its CAs, and the
    minter. `known`: in service.
    """

    __slots__ = ("_known", "_made", "_signer")

    def __init__(self, known: CertificateCaches | None = None) -> None:
        self._known = known._made if known is not None else {}
        self._made: dict[tuple[LeafKey, str], CertificateCache] = {}
        self._signer: CertificateSigner = known._signer if known is not None else CertificateSigner()

    def of(self, key: LeafKey, counted: Interceptions, secret: str = "") -> CertificateCache:
        """The one for this CA."""
        at = key, secret
        found = self._made.get(at) or self._known.get(at) or CertificateCache(key, counted, self._signer, secret=secret)
        self._made[at] = found
        return found

    def forget_known(self) -> None:
        """All are made, and share the room."""
        self._known = {}
        for each in self._made.values():
            each.max_leaves = max(MIN_KEPT, MAX_LEAVES // len(self._made))
            each.max_contexts = max(MIN_KEPT, MAX_CONTEXTS // len(self._made))

    def replaced_by(self, fresh: CertificateCaches, counted: Interceptions) -> None:
        """Withdraw the CAs of some clients that `fresh`, which is in service now, has no more under their name."""
        theirs = {(key[2], secret): cache for (key, secret), cache in fresh._made.items() if secret}
        for (key, secret), cache in self._made.items():
            successor = theirs.get((key[2], secret))
            if successor is None and secret:
                cache.withdraw()
            elif successor is not None and successor is not cache:
                cache.follow(successor)
        for gone in counted.of_ca.keys() - {secret for _, secret in theirs}:
            del counted.of_ca[gone]
