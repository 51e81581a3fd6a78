"""Credentials as fields carry them: `Bearer TOKEN` and `Basic BASE64(user:password)`.

Sources: RFC 6750 section 2.1 (Bearer), RFC 7617 section 2 (Basic), RFC 9110 section 11.4 (a field has one of them).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from egressproxy.model.caller_identity import CallerIdentity

#: The longest token that is looked at. Those of Kubernetes have 1 KiB, those of providers with many groups up to 8 KiB.
MAX_TOKEN_BYTES: Final = 16 * 1024
MAX_PASSWORD_BYTES: Final = 1024
MAX_USER_BYTES: Final = 256

_SCHEME: Final = re.compile(rb"(?i:(bearer)|basic)[ ]+([^ ,]+)")
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")


class CredentialRefused(Exception):
    """A credential does not hold. The message, for the client, repeats nothing of it; `detail` is for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class UnknownKey(CredentialRefused):
    """The issuer of a token is trusted, and the key that has signed it is not known here, or no key of it is yet."""

    def __init__(self, issuer: str, *, has_keys: bool) -> None:
        """`has_keys`: others of its keys are known."""
        why = "the token is signed with a key that its issuer does not have"
        if not has_keys:
            why = "the keys of the issuer of the token are not known here: try again, or ask who runs this gateway"
        super().__init__(why, f"issuer {issuer}")
        self.issuer = issuer


class Credential(NamedTuple):
    """One credential: a token (`user` None), or the name and password of a user."""

    user: bytes | None
    secret: bytes

    def __repr__(self) -> str:
        return f"Credential({'token' if self.user is None else 'password'})"


class Believed(NamedTuple):
    """Whose a credential is, until when it holds (seconds since 1970), and of a token its issuer."""

    identity: CallerIdentity
    until: float
    issuer: str = ""


def read_credentials(value: bytes, *, takes_tokens: bool, takes_passwords: bool) -> Credential:
    """What a value of Authorization or Proxy-Authorization shows. A password that looks like a token (JWT) is one,
    whatever the user, where tokens are taken: `https_proxy=http://anything:TOKEN@proxy` is all that many clients can
    say. Raises CredentialRefused.
    """
    found = _SCHEME.fullmatch(value)
    if found is None:
        if value.partition(b" ")[0].lower() in (b"bearer", b"basic"):
            raise CredentialRefused("the credentials are malformed, or shown twice")
        taken = "Bearer and Basic" if takes_tokens else "Basic"
        raise CredentialRefused(f"credentials of another scheme than {taken} are not taken")
    if found[1]:
        if not takes_tokens:
            raise CredentialRefused("tokens are not taken here: show a user name and a password")
        return _token(found[2])
    user, password = _user_and_password(found[2])
    if takes_tokens and _TOKEN.fullmatch(password):
        return _token(password)
    if not takes_passwords:
        raise CredentialRefused("the password is no token (JWT), and nothing else is taken here")
    if len(password) > MAX_PASSWORD_BYTES or len(user) > MAX_USER_BYTES:
        raise CredentialRefused("the user name or the password is too long")
    return Credential(user, password)


def token_credential(value: bytes) -> Credential:
    """What a field of its own shows, with `Bearer` in front or without. Raises CredentialRefused."""
    scheme, space, rest = value.partition(b" ")
    return _token(rest.strip(b" ") if space and scheme.lower() == b"bearer" else value)


def how_long(seconds: float) -> str:
    """A time for people, in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _token(value: bytes) -> Credential:
    if len(value) > MAX_TOKEN_BYTES:
        raise CredentialRefused(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    if not _TOKEN.fullmatch(value):
        raise CredentialRefused("the token is no signed JWT")
    return Credential(None, value)


def _user_and_password(encoded: bytes) -> tuple[bytes, bytes]:
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise CredentialRefused("the credentials are no base64") from None
    user, colon, password = decoded.partition(b":")
    if not colon or _CONTROL.search(decoded):
        raise CredentialRefused("the credentials are no user name and password")
    return user, password
