"""LeafCache: what clients are shown in tunnels that are opened: a TLS context for each name, minted at its first use.

A context takes a millisecond and 20 KB, so it is made in a thread, and kept. The certificate of a name is valid for a
day, and replaced some hours before it ends.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import time
from typing import TYPE_CHECKING, Final

from egressproxy.errors import GatewayFault, Reason
from egressproxy.ir.gateway import CertificateIR
from egressproxy.model.secret import SecretBytes
from egressproxy.net.tls_contexts import leaf_context
from egressproxy.telemetry.interceptions import Interceptions

if TYPE_CHECKING:
    from egressproxy.protocols.tls.minting import SigningCa

__all__ = ["LeafCache", "LeafKey"]

#: What tells CAs apart: chain, key, and the policy that is named where something is wrong with them.
LeafKey = tuple[str, SecretBytes, str]

#: Names whose contexts are kept: 20 MB. The one that was not asked for the longest goes first.
MAX_LEAVES: Final = 1024
#: What is minted at one time, for all clients together; who comes later is told to come again.
MAX_MINTING: Final = 1024
#: Of these for names that one client has asked for first.
MAX_MINTING_OF_CLIENT: Final = 32
#: A leaf that ends sooner is replaced: a client that has connected with it goes on as long as its connection.
RENEWED_S: Final = 6 * 3600.0


class _Minting:
    """The thread in which leaves are minted, one for all CAs of the process; it starts with the first one."""

    thread: ThreadPoolExecutor | None = None

    @classmethod
    def executor(cls) -> ThreadPoolExecutor:
        if cls.thread is None:
            cls.thread = ThreadPoolExecutor(1, "minting")
        return cls.thread


class LeafCache:
    """The contexts of one CA. It lives as long as that CA is in the configuration."""

    __slots__ = ("_ca", "_chain_pem", "_clock", "_counted", "_key_pem", "_leaves", "_of_client", "_waiting", "policy")

    def __init__(self, key: LeafKey, counted: Interceptions, clock: Callable[[], float] = time) -> None:
        """`clock`: seconds since the epoch."""
        self._chain_pem, self._key_pem, self.policy = key
        self._counted = counted
        self._clock = clock
        self._ca: SigningCa | None = None
        self._leaves: dict[str, tuple[ssl.SSLContext, float]] = {}  # with when it is renewed; oldest use first
        self._of_client: Counter[str] = Counter()
        self._waiting: dict[str, list[asyncio.Future[ssl.SSLContext]]] = {}

    def prepare(self) -> None:
        """Read the CA and make the key of its leaves; blocks for some milliseconds. Raises ValueError."""
        if self._ca is None:
            # Here, since it costs a worker 10 MB, and few intercept.
            from egressproxy.protocols.tls.minting import SigningCa

            self._ca = SigningCa(self._chain_pem, self._key_pem)

    def known(self, host: str) -> ssl.SSLContext | None:
        """The context for this name (lower case), if there is one that still lives for a while."""
        found = self._leaves.pop(host, None)
        if found is None or found[1] <= self._clock():
            return None
        self._leaves[host] = found
        return found[0]

    async def context(self, host: str, client: str = "") -> ssl.SSLContext:
        """As `known`, minted where there is none. All who wait for one name wait for one leaf. `client`: its address.

        Raises GatewayFault: 503 where too much is being minted, 500 where the CA cannot sign (it has expired).
        """
        found = self.known(host)
        if found is not None:
            return found
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ssl.SSLContext] = loop.create_future()
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(future)
            return await future
        if len(self._waiting) >= MAX_MINTING or self._of_client[client] >= MAX_MINTING_OF_CLIENT:
            raise GatewayFault(Reason.OVERLOADED, "too many certificates are being minted", status=503, retry_after_s=1)
        self._waiting[host] = [future]
        minted = loop.run_in_executor(_Minting.executor(), self._mint, host)
        self._of_client[client] += 1
        minted.add_done_callback(lambda done: self._settle(host, client, done))
        return await future

    def _mint(self, host: str) -> tuple[ssl.SSLContext, float]:
        """In the thread."""
        self.prepare()
        assert self._ca is not None
        now = self._clock()
        leaf = self._ca.mint(host, now)
        certificate = CertificateIR(host, leaf.chain_pem, leaf.key_pem, (host,))
        renewed_at = max(leaf.expires_at - RENEWED_S, now + (leaf.expires_at - now) / 2)
        return leaf_context(certificate, host), renewed_at

    def _settle(self, host: str, client: str, minted: asyncio.Future[tuple[ssl.SSLContext, float]]) -> None:
        """Back on the loop."""
        waiting = self._waiting.pop(host)
        self._of_client[client] -= 1
        if not self._of_client[client]:
            del self._of_client[client]
        error = minted.exception()
        if error is None:
            self._counted.minted += 1
            if len(self._leaves) >= MAX_LEAVES:
                del self._leaves[next(iter(self._leaves))]
            self._leaves[host] = minted.result()
        for future in waiting:
            if future.done():  # whoever has waited has left
                continue
            if error is None:
                future.set_result(minted.result()[0])
            else:
                future.set_exception(unusable(self.policy, error))

    def __repr__(self) -> str:
        return f"LeafCache({self.policy}, {len(self._leaves)} leaves)"


def unusable(policy: str, error: BaseException) -> GatewayFault:
    """What a client is told where its name has no leaf."""
    message = f"the CA of intercept in policy {policy} cannot sign a certificate"
    remedy = "renew the Secret in intercept.caCertificateRef"
    detail = f"{type(error).__name__}: {error}"
    return GatewayFault(
        Reason.INTERCEPTION_FAILED, message, rule=f"EgressPolicy {policy}", remedy=remedy, detail=detail
    )
