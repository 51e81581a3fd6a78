"""Authenticator: who the client of an exchange is, on one listener. Asked when the listener is known, before any route
is looked up.

What the request itself shows (a token, a password, the signature of another gateway) goes before what its connection
shows (a certificate, an address). A credential that is shown and wrong is refused, whatever else is known; so are two
at once. The credential is taken out of the request: nothing behind this place sees it.

An API key stands where a token does, or in the fields of providers: there on listeners other than forward proxies, and
inside of tunnels. What else these fields have is the provider's.

Sources: RFC 9110 sections 11.6.2 and 11.7.2 (whose credential is in which field), RFC 6750 section 2.
"""

from __future__ import annotations

from collections.abc import Coroutine
from time import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from egressproxy.errors import Denied, Reason
from egressproxy.gateway.identity.challenges import Challenges
from egressproxy.gateway.identity.checked_credentials import CheckedCredentials, Epoch, Verdict
from egressproxy.identity.credentials import Credential, CredentialRefused, read_credentials, token_credential
from egressproxy.identity.peers import AddressTable
from egressproxy.ir.identity import IdentityIR
from egressproxy.model.caller_identity import ANONYMOUS, CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import every_spelling, finder
from egressproxy.model.message import NOTHING_SAID, RequestHead

if TYPE_CHECKING:  # for annotations: few listeners take API keys
    from egressproxy.identity.api_keys import ApiKeys

#: In front of what the field of tokens shows, so that it counts as another credential than the same bytes in
#: Authorization. No value of a field has this byte.
_OF_FIELD: Final = b"\0"
#: In front of an API key that a field of providers has shown.
_OF_PROVIDER: Final = b"\1"
_BEARER: Final = b"bearer "


class Identified(Protocol):
    """A connection, or a stream of one, and who its client is."""

    identity: CallerIdentity  # by its certificate, or in a tunnel by what has opened it
    identity_until: float
    verdict: Verdict | None  # the latest of its connection


def copy_identity(made: Identified, known: Identified) -> None:
    """Of what is `made` the client is that of what is `known`."""
    made.identity = known.identity
    made.identity_until = known.identity_until
    made.verdict = known.verdict


class _Tunnel(Protocol):
    """`has_client`: who its client is was said when it was opened."""

    @property
    def has_client(self) -> bool: ...


class AuthenticatedClient(Identified, Protocol):
    """What an Authenticator needs of a client (`gateway/exchange/client`)."""

    @property
    def tunnel(self) -> _Tunnel | None:
        """The tunnel that carries the client's requests; None without one."""

    def remember(self, verdict: Verdict) -> None:
        """Keep it for the next request."""


class Authenticator:
    """One for each listener, or several of equal rules."""

    __slots__ = (
        "_addresses", "_authorization", "_challenges", "_challenges_inside", "_credentials", "_keys",
        "_reads_proxy_authorization", "_token_field", "epoch", "spec",
    )  # fmt: skip

    def __init__(
        self,
        spec: IdentityIR,
        credentials: CheckedCredentials,
        *,
        is_forward: bool,
        keys: ApiKeys | None = None,
        epoch: Epoch | None = None,
    ) -> None:
        """`epoch`: of what an Authenticator of the same addresses has concluded from them. `keys`: of `spec`."""
        self.spec = spec
        self._credentials = credentials
        self._keys = keys
        self._addresses = AddressTable(spec.addresses) if spec.addresses else None
        self.epoch = epoch or Epoch(object())  # of what is concluded from addresses
        takes_tokens, takes_passwords = bool(spec.issuers), bool(spec.users)
        self._challenges = Challenges(
            is_forward=is_forward,
            takes_tokens=takes_tokens,
            takes_passwords=takes_passwords,
            token_field=spec.token_field,
            takes_keys=keys is not None,
            knows_addresses=bool(spec.addresses),
        )
        self._challenges_inside = self._challenges
        if keys is not None and is_forward:
            self._challenges_inside = Challenges(is_forward=False, takes_keys=True)
        usual = takes_passwords or (takes_tokens and not spec.token_field)
        self._reads_proxy_authorization = is_forward and (usual or keys is not None)
        self._authorization = _Field("authorization") if usual and not is_forward else None
        self._token_field = _Field(spec.token_field) if takes_tokens and spec.token_field else None

    def admit(
        self, exchange: Exchange, client: AuthenticatedClient, head: RequestHead
    ) -> Coroutine[Any, Any, None] | None:
        """Write into `exchange` who its client is. Await what is returned, if anything: then a credential is being
        checked.

        Raises Unauthenticated (407 or 401), Denied (403) for a certificate that has expired since it was shown,
        LimitExceeded (503, and 429 for who guesses passwords).
        """
        raw = key = b""
        if self._keys is not None:
            key = self._taken_key(exchange, client, head)
        if self._reads_proxy_authorization:
            raw = head.hop.proxy_authorization
            head.hop = NOTHING_SAID
        elif self._authorization is not None:
            raw = self._taken(self._authorization, head)
        if self._token_field is not None and (client.tunnel is None or self._token_field.name != "authorization"):
            token = self._taken(self._token_field, head)
            if token and raw:
                raise self._challenges.refused("two credentials at once: show one", "", is_token=False)
            raw = _OF_FIELD + token if token else raw
        verdict = client.verdict
        if client.tunnel is not None and client.tunnel.has_client:
            self._check_inside(verdict)
            if key:
                self._admit_inside(exchange, verdict, key)
            return None
        if key:
            raw = self._with_key(client, raw, key)
        if verdict is not None and self._holds(verdict) and verdict.raw == raw and time() < verdict.fresh_until:
            self._tell(exchange, verdict.identity)
            if not raw:
                self._demand(exchange)
        elif raw:
            return self._admit_credential(exchange, client, raw)
        else:
            self._admit_connection(exchange, client)
        return None

    def admit_stream(self, exchange: Exchange, identity: CallerIdentity, until: float) -> None:
        """As `admit`, of no HTTP: by its certificate (until when), or its address. Raises Unauthenticated, Denied."""
        exchange.identity = self._of_connection(exchange.client, identity, until)
        self._demand(exchange)

    def admit_again(self, exchange: Exchange, client: AuthenticatedClient) -> Coroutine[Any, Any, None] | None:
        """Of an exchange that was admitted and has waited for a person since: whether its client is still who it was,
        by the rules and keys of now. Returns and raises as `admit`, and Denied where it would be somebody else.
        """
        verdict, grant = client.verdict, exchange.identity.grant
        if client.tunnel is not None and client.tunnel.has_client:
            self._check_inside(verdict)
            if grant is not None and (self._keys is None or not self._keys.grants(grant, time())):
                raise _somebody_else()
        elif verdict is None:  # nothing was asked of clients when it came
            self._demand(exchange)
        elif self._holds(verdict) and time() < verdict.fresh_until:
            pass
        elif verdict.raw:
            return self._check_again(exchange, client, verdict)
        else:
            identity = self._of_connection(exchange.client, client.identity, client.identity_until)
            self._demand_same(verdict, identity)
            self._demand(exchange)
        return None

    def _check_inside(self, verdict: Verdict | None) -> None:
        """A request in a tunnel has the client of the CONNECT, under the rules of that moment. Raises Denied."""
        if verdict is None or not self._holds(verdict):
            message = "who may ask here has changed since the tunnel was opened: open another"
        elif time() >= verdict.until:
            message = "what was shown for this tunnel has expired: open another"
        else:
            return
        raise Denied(Reason.CREDENTIALS_REFUSED, message, close=True)

    def _holds(self, verdict: Verdict) -> bool:
        """Whether the rules are those of the verdict; of credentials also the keys."""
        rules = verdict.epoch.rules
        if rules is self._credentials.rules or rules is self.epoch.rules:
            return True
        return self._keys is not None and self._keys.has(rules)

    def _admit_connection(self, exchange: Exchange, client: AuthenticatedClient) -> None:
        identity = self._of_connection(exchange.client, client.identity, client.identity_until)
        self._tell(exchange, identity)
        self._demand(exchange)
        epoch = self.epoch if client.identity.source == "-" else self._credentials.epoch
        client.remember(Verdict(epoch, b"", identity, client.identity_until))

    def _of_connection(self, peer: str, identity: CallerIdentity, until: float) -> CallerIdentity:
        """Who the certificate says that the client is, else its address. Raises Denied."""
        if identity.source == "-":
            return (self._addresses.find(peer) if self._addresses is not None else None) or ANONYMOUS
        if time() >= until:
            raise _expired()
        return identity

    def _admit_credential(
        self, exchange: Exchange, client: AuthenticatedClient, raw: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """A credential is shown that this connection has not shown just now."""
        if self._keys is not None and (verdict := self._of_key(raw)) is not None:
            self._accept(exchange, client, raw, verdict)
            return None
        credentials, now = self._credentials, time()
        digest = credentials.digest(raw)
        known = credentials.known(digest, now)
        if known is not None:
            self._accept(exchange, client, raw, known)
            return None
        wrong = credentials.wrong(digest, now)
        if wrong is not None:
            raise self._challenges.refused(*wrong, is_token=False)  # wrong passwords alone are remembered
        return self._check(exchange, client, raw, self._read(raw), digest)

    # --- API keys ---------------------------------------------------------------------------------------------------
    def _taken_key(self, exchange: Exchange, client: AuthenticatedClient, head: RequestHead) -> bytes:
        """Take the API key out of the fields of providers, and of the query; b"" without one. Raises Unauthenticated
        for several, and for one in another place, which would go to the server.
        """
        assert self._keys is not None
        shown = self._keys.take(head)
        is_hidden = self._keys.drop_hidden(head)
        if is_hidden:
            exchange.path, exchange.trace = head.path.partition(b"?")[0], None  # for the log, and spans
            exchange.authority = exchange.authority if head.host else None
        if is_hidden or len(shown) > 1:
            challenges = self._challenges if client.tunnel is None else self._challenges_inside
            message = (
                "an API key stands where the gateway reads none" if is_hidden else "two API keys at once: show one"
            )
            raise challenges.refused(message, "", is_token=True)
        return shown.pop() if shown else b""

    def _with_key(self, client: AuthenticatedClient, raw: bytes, key: bytes) -> bytes:
        """What a request shows, with a key in a field of providers. Raises Unauthenticated where it shows another
        credential, too. On a forward proxy these fields are the server's, so that there the key only leaves them.
        """
        assert self._keys is not None
        if raw:
            if self._keys.shown(raw) != key:
                raise self._challenges.refused("two credentials at once: show one", "", is_token=True)
            return raw
        if self._reads_proxy_authorization and client.tunnel is None:
            message = "the API key is for the gateway, and stands in a field of the server"
            raise self._challenges.refused(message, "", is_token=True)
        return _OF_PROVIDER + key

    def _admit_inside(self, exchange: Exchange, verdict: Verdict | None, key: bytes) -> None:
        """A request in a tunnel shows a key. It names the client of the request, if no other credential has opened the
        tunnel. Raises Unauthenticated.
        """
        assert verdict is not None  # _check_inside has looked
        found = self._key_verdict(key, self._challenges_inside)
        if verdict.raw and verdict.identity.grant != found.identity.grant:
            message = "the API key is not the credential that has opened the tunnel: show one"
            raise self._challenges_inside.refused(message, "", is_token=True)
        self._tell(exchange, found.identity)

    def _of_key(self, raw: bytes) -> Verdict | None:
        """The verdict on what is shown, if that is an API key. Raises Unauthenticated."""
        assert self._keys is not None
        if raw.startswith(_OF_FIELD):
            return None
        key = raw[len(_OF_PROVIDER) :] if raw.startswith(_OF_PROVIDER) else self._keys.shown(raw)
        if key:
            return self._key_verdict(key, self._challenges)
        if self.spec.users or (self.spec.issuers and self._token_field is None):
            return None
        raise self._challenges.refused("the credential is no API key of this gateway", "", is_token=True)

    def _key_verdict(self, key: bytes, challenges: Challenges) -> Verdict:
        """Raises Unauthenticated."""
        assert self._keys is not None
        try:
            record, identity = self._keys.find(key, time())
        except CredentialRefused as refused:
            raise challenges.refused(refused.message, refused.detail, is_token=True) from None
        return Verdict(Epoch(record), b"", identity, record.not_after)

    # --- tokens and passwords ---------------------------------------------------------------------------------------
    def _read(self, raw: bytes) -> Credential:
        """Raises Unauthenticated."""
        try:
            if raw.startswith(_OF_FIELD):
                return token_credential(raw[len(_OF_FIELD) :])
            takes_tokens = bool(self.spec.issuers) and self._token_field is None
            return read_credentials(raw, takes_tokens=takes_tokens, takes_passwords=bool(self.spec.users))
        except CredentialRefused as refused:
            is_token = raw[: len(_BEARER)].lower() == _BEARER or raw.startswith(_OF_FIELD)
            raise self._challenges.refused(refused.message, refused.detail, is_token=is_token) from None

    async def _check(
        self, exchange: Exchange, client: AuthenticatedClient, raw: bytes, credential: Credential, digest: bytes
    ) -> None:
        self._accept(exchange, client, raw, await self._checked(exchange, credential, digest))

    async def _checked(
        self, exchange: Exchange, credential: Credential, digest: bytes, *, waits_for_keys: bool = False
    ) -> Verdict:
        """Raises Unauthenticated, LimitExceeded."""
        found = await self._credentials.check(exchange, credential, digest, waits_for_keys=waits_for_keys)
        if isinstance(found, CredentialRefused):
            raise self._challenges.refused(found.message, found.detail, is_token=credential.user is None)
        return found

    async def _check_again(self, exchange: Exchange, client: AuthenticatedClient, verdict: Verdict) -> None:
        raw = verdict.raw
        if not self._reads(raw):
            raise _somebody_else()
        found = self._of_key(raw) if self._keys is not None else None
        if found is None:
            digest = self._credentials.digest(raw)
            found = self._credentials.known(digest, time())
            if found is None:
                found = await self._checked(exchange, self._read(raw), digest, waits_for_keys=True)
        self._demand_same(verdict, found.identity)
        self._accept(exchange, client, raw, found)

    def _reads(self, raw: bytes) -> bool:
        """Whether a credential counts in the field that it was shown in."""
        if raw.startswith(_OF_FIELD):
            return self._token_field is not None
        if raw.startswith(_OF_PROVIDER):
            return self._keys is not None
        return self._reads_proxy_authorization or self._authorization is not None

    @staticmethod
    def _demand_same(verdict: Verdict, identity: CallerIdentity) -> None:
        known = verdict.identity  # what has let its request in was said of that one, and filters have compared models
        if identity != known or identity.grant != known.grant:
            raise _somebody_else()

    def _accept(self, exchange: Exchange, client: AuthenticatedClient, raw: bytes, verdict: Verdict) -> None:
        if client.identity.source != "-" and time() >= client.identity_until:
            raise _expired()
        self._tell(exchange, verdict.identity)
        until = min(verdict.until, client.identity_until)
        client.remember(Verdict(verdict.epoch, raw, verdict.identity, until, verdict.fresh_until))

    def _taken(self, field: _Field, head: RequestHead) -> bytes:
        """Take this field out of the request, in every spelling. Raises Unauthenticated where it stands there twice."""
        values = field.finder.findall(head.fields.block)
        head.fields.cut(field.every_spelling)
        if not values:
            return b""
        if len(values) > 1:
            raise self._challenges.refused(f"the field {field.name} stands more than once", "", is_token=False)
        return bytes(values[0])

    def _tell(self, exchange: Exchange, identity: CallerIdentity) -> None:
        """The client of another gateway is who that has signed; one that it does not know is known as that gateway.
        Restrictions of the gateway's own API key hold for all its clients.
        """
        signed = exchange.identity
        if signed.source != "gateway":
            exchange.identity = identity
        elif _is_known(signed) and identity.grant is not None:
            exchange.identity = signed.replace(grant=identity.grant)  # the key is for its routes, whoever asks
        elif not _is_known(signed) and _is_known(identity):
            # The token is that of the other gateway, and the request that of one of its clients.
            exchange.identity = identity.replace(
                origin_client=signed.origin_client, origin_gateway=signed.origin_gateway, token=None
            )

    def _demand(self, exchange: Exchange) -> None:
        """Raises Unauthenticated for a client that is not known, where it has to be."""
        if self.spec.is_required and not _is_known(exchange.identity):
            raise self._challenges.missing()


class _Field:
    """A field that carries a credential."""

    __slots__ = ("every_spelling", "finder", "name")

    def __init__(self, name: str) -> None:
        self.name = name.lower()
        self.finder = finder(self.name.encode())
        self.every_spelling = every_spelling((name,))


def _is_known(identity: CallerIdentity) -> bool:
    return identity.name != "-" or identity.namespace != "-"


def _somebody_else() -> Denied:
    message = "who may ask here has changed while the request waited: send it again"
    return Denied(Reason.CREDENTIALS_REFUSED, message)


def _expired() -> Denied:
    message = "the client certificate of this connection has expired"
    return Denied(Reason.CLIENT_CERTIFICATE, message, close=True)
