"""Tokens: signed JWTs (JWS, compact), verified with the keys of the issuers that are trusted.

A token is believed if a trusted issuer's keys verify its signature, `iss` names that issuer, `aud` names one of the
audiences, and `exp` is present. Sources: RFC 7519 (JWT), RFC 7515 (JWS), RFC 8725 (best practices), RFC 9068 (access
tokens), Kubernetes, Configure Service Accounts for Pods (the subject of a service account's token).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt

from egressproxy.identity.credentials import Believed, CredentialRefused, UnknownKey, how_long
from egressproxy.identity.key_sets import KeySet
from egressproxy.ir.identity import TokenIssuerIR
from egressproxy.model.caller_identity import CallerIdentity, CallerToken, namespace_in, service_account_name
from egressproxy.model.secret import SecretBytes

#: How far the clocks of issuer and gateway may be apart, in seconds.
SKEW_S: Final = 30
MAX_GROUPS: Final = 256
#: Of a subject (OpenID Connect Core section 2), a group, or the value of a claim.
MAX_NAME: Final = 512
#: "": an access token or an ID token that does not say so. Other kinds (logout, security events) are no credentials.
_TYPES: Final = frozenset(("", "jwt", "at+jwt", "application/at+jwt"))
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_ACCOUNT: Final = r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?"
_SERVICE_ACCOUNT: Final = re.compile(rf"system:serviceaccount:({_LABEL}):({_ACCOUNT})")
#: Half of a character, which JSON can write and UTF-8 cannot.
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_NAMESPACE: Final = re.compile(_LABEL)
_ACCOUNT_NAME: Final = re.compile(_ACCOUNT)


class TokenVerifier:
    """Verifies tokens of these issuers. `claims`: those that policies ask for. `trust_domain`: that of the listener.
    `exchanged_at`: the backends that may be sent tokens to exchange them, as "namespace/name".
    """

    __slots__ = ("_claims", "_exchanged_at", "_issuers", "_own", "_skew_s")

    def __init__(
        self,
        issuers: Sequence[TokenIssuerIR],
        claims: Sequence[str] = (),
        trust_domain: str = "",
        skew_s: float = SKEW_S,
        exchanged_at: Sequence[str] = (),
    ) -> None:
        self._own = trust_domain
        self._issuers = {each.issuer: each for each in issuers}
        self._claims = tuple(claims)
        self._skew_s = skew_s
        self._exchanged_at = frozenset(exchanged_at)

    def verify(self, token: bytes, keys: Mapping[str, KeySet], now: float) -> Believed:
        """Whose token it is, until when (seconds since 1970, as `now`). `keys`: by issuer. Raises CredentialRefused."""
        try:
            return self._verify(token.decode("ascii"), keys, now)
        except CredentialRefused:
            raise
        except Exception as error:  # what a hostile token brings about in a library is no error of ours
            raise CredentialRefused("the token is not valid", type(error).__name__) from None

    def _verify(self, token: str, keys: Mapping[str, KeySet], now: float) -> Believed:
        head, payload = (_json(part) for part in token.split(".")[:2])
        algorithm, kid, kind = head.get("alg"), head.get("kid"), head.get("typ", "")
        if not isinstance(algorithm, str) or not isinstance(kid, str | None) or not isinstance(kind, str):
            raise CredentialRefused("the head of the token is malformed")
        if kind.lower() not in _TYPES:
            raise CredentialRefused("this kind of token is no credential", f"typ {kind[:40]}")
        if "crit" in head or "b64" in head:
            raise CredentialRefused("the token asks for an extension that is not understood (crit)")
        issuer_name = str(payload.get("iss"))
        issuer = self._issuers.get(issuer_name)
        if issuer is None:
            raise CredentialRefused("the issuer of the token is not trusted here", f"iss {issuer_name[:200]}")
        known = keys.get(issuer.issuer)
        candidates = known.candidates(kid, algorithm) if known is not None else []
        if not candidates:
            if known is not None and known.leaves_out(kid):
                why = "the token is signed with a key that is not safe to use, or malformed"
                raise CredentialRefused(why, f"issuer {issuer.issuer}, kid {str(kid)[:80]}")
            raise UnknownKey(issuer.issuer, has_keys=bool(known))
        claims = self._claims_of(token, candidates, algorithm, issuer, now)
        ends = float(claims["exp"])
        identity = self._identity(claims, issuer)
        if self._exchanged_at:
            identity = identity.replace(token=CallerToken(SecretBytes(token.encode()), self._exchanged_at))
        return Believed(identity, ends + self._skew_s, issuer.issuer)

    def _claims_of(
        self, token: str, candidates: Sequence[Any], algorithm: str, issuer: TokenIssuerIR, now: float
    ) -> dict[str, Any]:
        """The verified claims. Raises CredentialRefused."""
        for number, key in enumerate(candidates):
            try:
                return dict(
                    jwt.decode(
                        token, key, algorithms=[algorithm], audience=list(issuer.audiences), issuer=issuer.issuer,
                        leeway=self._skew_s, options={"require": ["exp", "iss", "aud", "sub"]},
                    )
                )  # fmt: skip
            except jwt.InvalidSignatureError:
                if number + 1 < len(candidates):
                    continue
                raise CredentialRefused("the signature of the token is wrong", f"issuer {issuer.issuer}") from None
            except jwt.ExpiredSignatureError:
                ended = _json(token.split(".")[1])["exp"]
                raise CredentialRefused(f"the token expired {how_long(now - ended)} ago") from None
            except jwt.ImmatureSignatureError:
                raise CredentialRefused("the token is not valid yet: compare the clocks") from None
            except jwt.InvalidAudienceError:
                asked = ", ".join(issuer.audiences)
                raise CredentialRefused("the token is for another audience", f"audiences here: {asked}") from None
            except jwt.MissingRequiredClaimError as error:
                raise CredentialRefused(f"the token has no claim {error.claim}") from None
        raise CredentialRefused("the token is not valid")

    def _identity(self, claims: dict[str, Any], issuer: TokenIssuerIR) -> CallerIdentity:
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_NAME or not subject.isprintable():
            raise CredentialRefused("the subject of the token is no name")
        namespace = account = "-"
        if issuer.service_accounts:
            found = _SERVICE_ACCOUNT.fullmatch(subject)
            if found is None:
                raise CredentialRefused("the token is that of no service account")
            namespace, account = found.groups()
        else:
            namespace = _mapped(claims, issuer.namespace_claim, _NAMESPACE)
            account = _mapped(claims, issuer.service_account_claim, _ACCOUNT_NAME)
        namespace = namespace_in(issuer.trust_domain, namespace, self._own)
        name = service_account_name(namespace, account) if issuer.service_accounts else f"{issuer.issuer}#{subject}"
        groups = tuple(_texts(claims, issuer.groups_claim))
        kept = tuple((claim, value) for claim in self._claims for value in _texts(claims, claim))
        return CallerIdentity(
            namespace, account, name=name, source="token", groups=groups, claims=kept, claims_read=self._claims
        )


def _json(part: str) -> dict[str, Any]:
    """A part of a token that has to be an object. Raises CredentialRefused."""
    try:
        document = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise CredentialRefused("the token is malformed") from None
    if not isinstance(document, dict):
        raise CredentialRefused("the token is malformed")
    return document


def _mapped(claims: dict[str, Any], claim: str, form: re.Pattern[str]) -> str:
    """The value of a claim that an operator maps; "-" where none is mapped. Raises CredentialRefused."""
    if not claim:
        return "-"
    value = claims.get(claim)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise CredentialRefused(f"the token has no claim {claim} with a name of Kubernetes")
    return value


def _texts(claims: dict[str, Any], claim: str) -> list[str]:
    """What a claim says, as texts. Raises CredentialRefused for too much: to leave some out could lift a denial."""
    value = claims.get(claim) if claim else None
    if value is None:
        return []
    each = value if isinstance(value, list) else [value]
    if len(each) > MAX_GROUPS:
        raise CredentialRefused(f"the claim {claim} of the token has more than {MAX_GROUPS} values")
    texts = [one if isinstance(one, str) else json.dumps(one) for one in each]
    if any(_LONE_SURROGATE.search(text) for text in texts):
        raise CredentialRefused(f"a value of the claim {claim} of the token is no text")
    if any(len(text) > MAX_NAME for text in texts):
        raise CredentialRefused(f"a value of the claim {claim} of the token is longer than {MAX_NAME} characters")
    return texts
