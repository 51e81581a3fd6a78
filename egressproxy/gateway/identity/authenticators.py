"""Authenticators: those of one snapshot. One whose rules are equal in the next is kept; what is known of credentials is
kept also where addresses alone are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from egressproxy.filters.calls import FilterCall
from egressproxy.gateway.identity.authenticator import Authenticator
from egressproxy.gateway.identity.checked_credentials import CheckedCredentials, Checks, Epoch
from egressproxy.gateway.identity.key_source import KeySource
from egressproxy.identity.credentials import Believed, Credential
from egressproxy.ir.gateway import KeyUrlIR
from egressproxy.ir.identity import IdentityIR
from egressproxy.ir.policy import Callee
from egressproxy.model.work import BlockingWork

if TYPE_CHECKING:  # for annotations: what verifies is imported where it is needed
    from egressproxy.identity.key_sets import KeySet
    from egressproxy.identity.passwords import PasswordVerifier
    from egressproxy.identity.tokens import TokenVerifier


class Authenticators:
    """By their rules. `known` are those in service."""

    __slots__ = ("_checked", "_epochs", "_known", "_known_checked", "_known_epochs", "_made", "checks")

    def __init__(self, known: Authenticators | None = None) -> None:
        self.checks: Checks = known.checks if known is not None else Checks()
        self._known = known._made if known is not None else {}
        self._known_checked = known._checked if known is not None else {}
        self._known_epochs = known._epochs if known is not None else {}
        self._made: dict[_Key, Authenticator] = {}
        self._checked: dict[_Key, CheckedCredentials] = {}  # by rules without addresses and API keys
        self._epochs: dict[_Key, Epoch] = {}  # by rules without API keys

    def of(
        self,
        spec: IdentityIR | None,
        urls: tuple[KeyUrlIR, ...],
        call: Callable[[str, Callee], FilterCall],
        *,
        is_forward: bool,
    ) -> BlockingWork[Authenticator | None]:
        """That of a listener with these rules. `urls`: of issuers. `call` makes a call of a backend, by a name. Raises
        UnusableKeySet.
        """
        if spec is None:
            return None
        calls = [call("identity", url.callee) for url in urls]  # what is not asked for is retired
        key = replace(spec, addresses=(), api_keys=None), urls, is_forward
        checked = self._checked.get(key) or self._known_checked.get(key)
        if checked is None:
            verifier = _Verifier(spec)
            if spec.takes_credentials:
                yield verifier.prepare  # keys are read, and what reads them is imported
            sources = {url.issuer: partial(verifier.source, url, each) for url, each in zip(urls, calls, strict=True)}
            checked = CheckedCredentials(self.checks, verifier.verify if spec.takes_credentials else None, sources)
        self._checked[key] = checked
        key = spec, urls, is_forward
        rest = replace(spec, api_keys=None), urls, is_forward
        found = self._made.get(key) or self._known.get(key)
        if found is None:
            keys = None
            if spec.api_keys is not None:
                from egressproxy.identity.api_keys import ApiKeys  # here: few listeners take API keys

                keys = ApiKeys(spec.api_keys)
            epoch = self._epochs.get(rest) or self._known_epochs.get(rest)
            found = Authenticator(spec, checked, is_forward=is_forward, keys=keys, epoch=epoch)
        self._made[key] = found
        self._epochs[rest] = found.epoch
        return found

    def forget_known(self) -> None:
        """Those in service before are no longer looked for."""
        self._known, self._known_checked, self._known_epochs = {}, {}, {}


_Key = tuple[IdentityIR, tuple[KeyUrlIR, ...], bool]


class _Verifier:
    """Checks tokens and passwords under these rules, in a thread."""

    def __init__(self, spec: IdentityIR) -> None:
        self._spec = spec
        self._keys: dict[str, KeySet] = {}
        self._of_token: TokenVerifier | None = None
        self._of_password: PasswordVerifier | None = None

    def prepare(self) -> None:
        """Read keys and hashes. Raises UnusableKeySet."""
        spec = self._spec
        if spec.issuers:
            from egressproxy.identity.key_sets import read_key_set  # here: few listeners take tokens
            from egressproxy.identity.tokens import TokenVerifier

            self._of_token = TokenVerifier(spec.issuers, spec.claims, spec.trust_domain, exchanged_at=spec.exchanged_at)
            self._keys |= {each.issuer: read_key_set(each.key_set) for each in spec.issuers if each.key_set}
        if spec.users:
            from egressproxy.identity.passwords import PasswordVerifier

            self._of_password = PasswordVerifier(dict(spec.users), spec.users_of)

    def source(self, url: KeyUrlIR, call: FilterCall, withdraw: Callable[[], None]) -> KeySource:
        """What fetches the keys of an issuer. `withdraw`: see KeySource."""
        from egressproxy.identity.key_sets import read_key_set

        read = partial(read_key_set, may_be_empty=True)  # an issuer that lists none has withdrawn them
        return KeySource(url.issuer, call, url.path, self._keys, read, withdraw)

    def verify(self, credential: Credential, now: float) -> Believed:
        """The client of a credential, and the end of its validity. Raises CredentialRefused."""
        if credential.user is None:
            assert self._of_token is not None
            return self._of_token.verify(credential.secret, self._keys, now)
        assert self._of_password is not None
        return Believed(self._of_password.verify(credential.user, credential.secret), inf)
