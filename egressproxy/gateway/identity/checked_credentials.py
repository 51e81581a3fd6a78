"""CheckedCredentials: which credentials were shown under the rules of a listener, and whose they were found to be.

Who has which address is no part of these rules: Pods come and go, and say nothing of a token.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from math import inf
from time import time
from typing import Final, TypeVar

from egressproxy.gateway.identity.checks import Checks
from egressproxy.gateway.identity.key_source import REFRESH_S, KeySource
from egressproxy.identity.credentials import Credential, CredentialRefused, UnknownKey
from egressproxy.model.exchange import CallerIdentity, Exchange
from egressproxy.model.shares import client_of

__all__ = ["PASSWORD_S", "WRONG_S", "CheckedCredentials", "Verdict", "Verify"]

T = TypeVar("T")

#: Credentials of which is remembered whose they are; and wrong passwords, which cost as much as right ones.
MAX_KNOWN: Final = 4096
MAX_WRONG: Final = 8192
#: For how long a password that was right is believed without another check, and a wrong one refused, in seconds.
PASSWORD_S: Final = 300.0
WRONG_S: Final = 10.0


class Verdict:
    """Who a client is, and what that was concluded from: `raw`, under the rules and keys of an `epoch`, until
    `until` (seconds since 1970). Who shows it in a request behind `fresh_until` has it checked again; in a tunnel
    `until` holds.
    """

    __slots__ = ("epoch", "fresh_until", "identity", "raw", "until")

    def __init__(
        self, epoch: object, raw: bytes, identity: CallerIdentity, until: float, fresh_until: float = inf
    ) -> None:
        self.epoch = epoch
        self.raw = raw
        self.identity = identity
        self.until = until
        self.fresh_until = min(until, fresh_until)

    def __repr__(self) -> str:
        return f"Verdict({self.identity.name})"


#: Checks a credential, in a thread: whose it is, and until when it holds (seconds since 1970). Takes the time
#: of now; raises CredentialRefused.
Verify = Callable[[Credential, float], tuple[CallerIdentity, float]]
Found = tuple[CallerIdentity, float] | CredentialRefused


class CheckedCredentials:
    """Those of one listener, or of several with equal rules. `epoch` is another object as soon as a key holds no more:
    what was concluded before does not hold, either.
    """

    __slots__ = ("_checks", "_key", "_known", "_sources", "_verify", "_wrong", "epoch")

    def __init__(
        self,
        checks: Checks,
        verify: Verify | None,
        sources: Mapping[str, Callable[[Callable[[], None]], KeySource]] | None = None,
    ) -> None:
        """`verify` None: none are taken. `sources` makes those of keys that are fetched, by issuer, of what is to be
        called when a key holds no more.
        """
        self._checks = checks
        self._verify = verify
        self._sources = {issuer: make(self._forget_verdicts) for issuer, make in (sources or {}).items()}
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()  # by a keyed hash of what was shown
        #: Of wrong passwords what is told, what is logged, and until when. No errors: they lead to what was shown.
        self._wrong: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()
        self.epoch = object()

    def digest(self, raw: bytes) -> bytes:
        """A keyed hash of what is shown, by which it is known."""
        return blake2b(raw, digest_size=32, key=self._key).digest()

    def known(self, digest: bytes, now: float) -> Verdict | None:
        """Whose it was found to be, unless it has to be checked again. `now`: seconds since 1970."""
        known = self._known.get(digest)
        if known is None or known.epoch is not self.epoch or now >= known.fresh_until:
            return None
        self._known.move_to_end(digest)
        return known

    def wrong(self, digest: bytes, now: float) -> tuple[str, str] | None:
        """What the client is told of a password that was wrong a moment ago, and what is logged."""
        message, detail, until = self._wrong.get(digest, ("", "", 0.0))
        return (message, detail) if now < until else None

    async def check(self, x: Exchange, credential: Credential, digest: bytes) -> Verdict | CredentialRefused:
        """Whose it is, or why it is refused. Raises LimitExceeded: 503, and 429 for who guesses passwords."""
        is_password = credential.user is not None
        if is_password:
            self._checks.refuse_guesses(client_of(x))
        found, epoch = await self._verified(x, credential, digest)
        if isinstance(found, CredentialRefused):
            if is_password:
                if digest not in self._wrong:  # who shows the same again does not guess
                    self._checks.note_wrong(client_of(x))
                _keep(self._wrong, digest, (found.message, found.detail, time() + WRONG_S), MAX_WRONG)
            return found
        identity, until = found
        fresh_s = PASSWORD_S if is_password else REFRESH_S if self._sources else inf
        verdict = Verdict(epoch, b"", identity, until, time() + fresh_s)
        _keep(self._known, digest, verdict, MAX_KNOWN)
        return verdict

    async def _verified(self, x: Exchange, credential: Credential, digest: bytes) -> tuple[Found, object]:
        """Whose it is, and until when it may be believed, or why it is refused; and under which rules and keys."""
        assert self._verify is not None
        fetches = {}
        for issuer, source in self._sources.items():
            source.touch()
            fetches[issuer] = source.fetches
        epoch = self.epoch  # behind `touch`, which may begin another
        found = await self._checks.run(client_of(x), digest, partial(_outcome, self._verify, credential, time()))
        if not isinstance(found, UnknownKey) or found.issuer not in fetches:
            return found, epoch
        if await self._sources[found.issuer].renewed(fetches[found.issuer]):
            epoch = self.epoch
            check = partial(_outcome, self._verify, credential, time())
            found = await self._checks.run(client_of(x), digest, check)
        return found, epoch

    def _forget_verdicts(self) -> None:
        """A key holds no more: whatever was concluded from it does not, either, nor what is being concluded: the same
        credential has another hash from now on, so that nobody waits for a check that has begun.
        """
        self.epoch = object()
        self._key = secrets.token_bytes(32)
        self._known.clear()
        self._wrong.clear()

    def __repr__(self) -> str:
        return f"CheckedCredentials({len(self._known)} known)"


def _outcome(verify: Verify, credential: Credential, now: float) -> Found:
    """What `verify` returns, or the error that it raises, without the frames that lead to it: they would lead to who
    waits for it, and keep each other.
    """
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
