"""CheckedCredentials: which credentials were shown under the rules of a listener, and whose they were found to be.

Who has which address is no part of these rules: Pods come and go, and say nothing of a token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from math import ceil, inf
from time import monotonic, time
from typing import Any, Final, TypeVar

from egressproxy.errors import LimitExceeded, Reason
from egressproxy.gateway.identity.key_source import REFRESH_S, KeySource
from egressproxy.identity.credentials import Believed, Credential, CredentialRefused, UnknownKey
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.per_client_quota import AttemptLimiter, FairQueue, client_of

T = TypeVar("T")

#: At once; and how many different ones wait, in all and of one client.
THREADS: Final = 2
MAX_WAITING: Final = 256
MAX_OF_CLIENT: Final = 16
#: Different wrong passwords that one client may show in so many seconds.
MAX_GUESSES: Final = 30
GUESSES_S: Final = 60.0
#: Credentials of which is remembered whose they are; and wrong passwords, which cost as much as right ones.
MAX_KNOWN: Final = 4096
MAX_WRONG: Final = 8192
#: For how long a password that was right is believed without another check, and a wrong one refused, in seconds.
PASSWORD_S: Final = 300.0
WRONG_S: Final = 10.0


@dataclass(slots=True, eq=False, repr=False)
class _Job:
    """One check, and who waits for it: many connections may show the same credential at once."""

    key: bytes
    check: Callable[[], Any]
    waiters: list[asyncio.Future[Any]] = field(default_factory=list)


class Checks:
    """Checks passwords and signatures in threads, since a password takes as long as hundreds of requests. Clients take
    turns, and what waits is bounded: a flood of wrong passwords delays others by a check or two. Who guesses passwords
    has to wait. One per process; the threads begin with the first check.
    """

    __slots__ = ("_guesses", "_jobs", "_running", "_threads", "_waiting")

    def __init__(self) -> None:
        self._guesses = AttemptLimiter(MAX_GUESSES, GUESSES_S)
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0
        self._jobs: dict[bytes, _Job] = {}
        self._waiting = FairQueue[_Job](MAX_WAITING, MAX_OF_CLIENT)

    async def run(self, client: str, key: bytes, check: Callable[[], T]) -> T:
        """What `check` returns, for this client (an address, see `origin_of`). Where a check with this key waits or
        runs already, its result is awaited. Raises what it raises, and LimitExceeded (503) where too many wait.
        """
        job = self._jobs.get(key)
        if job is None:
            job = _Job(key, check)
            if not self._waiting.add(client, job):
                message = "too many credentials are being checked"
                raise LimitExceeded(Reason.OVERLOADED, message, status=503, retry_after_s=1)
            self._jobs[key] = job
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job.waiters.append(done)
        self._start()
        return await done

    def note_wrong(self, client: str) -> None:
        self._guesses.add(client, monotonic())

    def refuse_guesses(self, client: str) -> None:
        """Raises LimitExceeded (429) for a client that has shown too many of them."""
        wait_s = self._guesses.wait_s(client, monotonic())
        if wait_s:
            message = "this client has shown too many wrong passwords"
            raise LimitExceeded(Reason.CREDENTIALS_REFUSED, message, retry_after_s=ceil(wait_s))

    @property
    def is_busy(self) -> bool:
        return bool(self._jobs)

    def _start(self) -> None:
        while self._running < THREADS:
            job = self._waiting.next()
            if job is None:
                return
            if all(done.done() for done in job.waiters):  # the clients have left
                del self._jobs[job.key]
                continue
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "identity")
            self._running += 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, job.check)
            running.add_done_callback(partial(self._ended, job))

    def _ended(self, job: _Job, running: asyncio.Future[Any]) -> None:
        self._running -= 1
        del self._jobs[job.key]
        error = None if running.cancelled() else running.exception()
        for done in job.waiters:
            if done.done():
                continue
            if running.cancelled():  # the process ends
                done.cancel()
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(running.result())
        self._start()


@dataclass(slots=True, eq=False, repr=False)
class Epoch:
    """The time in which what was concluded under these `rules` holds; None once a key of its issuer was withdrawn."""

    rules: object


class Verdict:
    """Who a client is, and what that was concluded from: `raw`, in an `epoch`, until `until` (seconds since 1970). Who
    shows it in a request behind `fresh_until` has it checked again; in a tunnel `until` holds.
    """

    __slots__ = ("epoch", "fresh_until", "identity", "raw", "until")

    def __init__(
        self, epoch: Epoch, raw: bytes, identity: CallerIdentity, until: float, fresh_until: float = inf
    ) -> None:
        self.epoch = epoch
        self.raw = raw
        self.identity = identity
        self.until = until
        self.fresh_until = min(until, fresh_until)


#: Checks a credential, in a thread. Takes the time of now (seconds since 1970); raises CredentialRefused.
Verify = Callable[[Credential, float], Believed]
Found = Believed | CredentialRefused


class CheckedCredentials:
    """Those of one listener, or of several with equal rules, for which `rules` stands. `epoch` is that of all that keys
    say nothing of; each issuer whose keys are fetched has one of its own.
    """

    __slots__ = (
        "_checks", "_epochs", "_key", "_known", "_sources", "_verify", "_withdrawn", "_wrong", "epoch", "rules",
    )  # fmt: skip

    def __init__(
        self,
        checks: Checks,
        verify: Verify | None,
        sources: Mapping[str, Callable[[Callable[[], None]], KeySource]] | None = None,
    ) -> None:
        """`verify` None: none are taken. `sources`, by issuer, are made of what they call when a key holds no more."""
        self._checks = checks
        self._verify = verify
        self._sources = {issuer: make(partial(self._forget, issuer)) for issuer, make in (sources or {}).items()}
        self.rules = object()
        self.epoch = Epoch(self.rules)
        self._epochs = {issuer: Epoch(self.rules) for issuer in self._sources}
        self._withdrawn = 0  # how often keys were
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()  # by a keyed hash of what was shown
        #: Of wrong passwords what is told, what is logged, and until when. No errors: they lead to what was shown.
        self._wrong: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()

    def digest(self, raw: bytes) -> bytes:
        """A keyed hash of what is shown, by which it is known."""
        return blake2b(raw, digest_size=32, key=self._key).digest()

    def known(self, digest: bytes, now: float) -> Verdict | None:
        """Whose it was found to be, unless it has to be checked again. `now`: seconds since 1970."""
        known = self._known.get(digest)
        if known is None or known.epoch.rules is None or now >= known.fresh_until:
            return None
        self._known.move_to_end(digest)
        return known

    def wrong(self, digest: bytes, now: float) -> tuple[str, str] | None:
        """What the client is told of a password that was wrong a moment ago, and what is logged."""
        message, detail, until = self._wrong.get(digest, ("", "", 0.0))
        return (message, detail) if now < until else None

    async def check(
        self, exchange: Exchange, credential: Credential, digest: bytes, *, waits_for_keys: bool = False
    ) -> Verdict | CredentialRefused:
        """The client of a credential, or why the credential is refused. `waits_for_keys`: where keys are due to be
        fetched again, wait for them; the former ones count only if the issuer does not answer. Raises LimitExceeded:
        503, and 429 for who guesses passwords.
        """
        is_password = credential.user is not None
        if is_password:
            self._checks.refuse_guesses(client_of(exchange))
        if waits_for_keys and not is_password:
            await asyncio.gather(*(source.refreshed() for source in self._sources.values()))
        found, epochs = await self._verified(exchange, credential, digest)
        if isinstance(found, CredentialRefused):
            if is_password:
                if digest not in self._wrong:  # who shows the same again does not guess
                    self._checks.note_wrong(client_of(exchange))
                _keep(self._wrong, digest, (found.message, found.detail, time() + WRONG_S), MAX_WRONG)
            return found
        fresh_s = PASSWORD_S if is_password else REFRESH_S if found.issuer in self._sources else inf
        verdict = Verdict(epochs.get(found.issuer, self.epoch), b"", found.identity, found.until, time() + fresh_s)
        _keep(self._known, digest, verdict, MAX_KNOWN)
        return verdict

    async def _verified(
        self, exchange: Exchange, credential: Credential, digest: bytes
    ) -> tuple[Found, Mapping[str, Epoch]]:
        """Whose it is, and until when it may be believed, or why it is refused; and the epochs of that moment."""
        fetches = {}
        for issuer, source in self._sources.items():
            source.touch()
            fetches[issuer] = source.fetches
        found, epochs = await self._run(exchange, credential, digest)  # behind `touch`, which may begin other epochs
        if not isinstance(found, UnknownKey) or found.issuer not in fetches:
            return found, epochs
        if await self._sources[found.issuer].renewed(fetches[found.issuer]):
            return await self._run(exchange, credential, digest)
        return found, epochs

    async def _run(
        self, exchange: Exchange, credential: Credential, digest: bytes
    ) -> tuple[Found, Mapping[str, Epoch]]:
        """As `_verified`, by the present keys. Nobody waits for a check that began before keys were withdrawn."""
        assert self._verify is not None
        epochs, key = self._epochs.copy(), b"%b %d" % (digest, self._withdrawn)
        return await self._checks.run(
            client_of(exchange), key, partial(_outcome, self._verify, credential, time())
        ), epochs

    def _forget(self, issuer: str) -> None:
        """A key of this issuer holds no more, nor what was, or is just being, concluded from its keys."""
        self._epochs[issuer].rules = None
        self._epochs[issuer] = Epoch(self.rules)
        self._withdrawn += 1


def _outcome(verify: Verify, credential: Credential, now: float) -> Found:
    """What `verify` returns, or its error, without frames: they would lead to who waits for it, and keep each other."""
    try:
        return verify(credential, now)
    except CredentialRefused as refused:
        refused.__traceback__ = refused.__context__ = refused.__cause__ = None
        return refused


def _keep(kept: OrderedDict[bytes, T], key: bytes, value: T, most: int) -> None:
    """Keep a value, in place of the one that was used least of late where there are too many."""
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)
