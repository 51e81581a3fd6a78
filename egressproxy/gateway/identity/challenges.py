"""What a client is told that has shown no credential, or a wrong one: 407 on a forward proxy, 401 elsewhere.

Sources: RFC 9110 sections 11.6.1, 11.7.1, 15.5.2 and 15.5.8; RFC 6750 section 3; RFC 7617 section 2.
"""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason

__all__ = ["Challenges", "Unauthenticated"]

_REALM = b'realm="egressproxy"'


class Unauthenticated(GatewayError):
    """The client is not known. `fields` are the challenges."""

    default_status = 407

    def __init__(
        self, reason: Reason, message: str, status: int, fields: tuple[tuple[bytes, bytes], ...], **more: str
    ) -> None:
        super().__init__(reason, message, status=status, **more)  # type: ignore[arg-type]
        self.fields = fields


class Challenges:
    """Those of one listener, made once."""

    __slots__ = ("_missing", "_refused", "_remedy", "_remedy_refused", "_status")

    def __init__(self, *, is_forward: bool, takes_tokens: bool, takes_passwords: bool, token_field: str) -> None:
        """`token_field` "": tokens stand where passwords do, and as a password, too."""
        self._status = 407 if is_forward else 401
        name = b"Proxy-Authenticate" if is_forward else b"WWW-Authenticate"
        field = "Proxy-Authorization" if is_forward else "Authorization"
        basic = b'Basic %b, charset="UTF-8"' % _REALM
        missing: list[tuple[bytes, bytes]] = []
        refused: list[tuple[bytes, bytes]] = []
        if takes_passwords or (takes_tokens and not token_field):  # the one that most clients know comes first
            missing.append((name, basic))
            refused.append((name, basic))
        if takes_tokens:
            missing.append((name, b"Bearer " + _REALM))
            refused.append((name, b'Bearer %b, error="invalid_token"' % _REALM))
        self._missing = tuple(missing)
        self._refused = tuple(refused)
        of_tokens, of_passwords = token_field or field if takes_tokens else "", field if takes_passwords else ""
        self._remedy = _remedy(of_tokens, of_passwords)
        self._remedy_refused = _remedy(of_tokens, of_passwords, is_refused=True)

    def missing(self) -> Unauthenticated:
        """For a client that has shown nothing."""
        message = (
            "the gateway does not know this client"
            if not self._remedy
            else f"authentication is required: {self._remedy}"
        )
        return Unauthenticated(Reason.CREDENTIALS_REQUIRED, message, self._status, self._missing, remedy=self._remedy)

    def refused(self, message: str, detail: str) -> Unauthenticated:
        """For a client whose credential is wrong. `detail` is for the log alone."""
        remedy = self._remedy_refused
        return Unauthenticated(
            Reason.CREDENTIALS_REFUSED, message, self._status, self._refused, remedy=remedy, detail=detail
        )

    def __repr__(self) -> str:
        return f"Challenges({self._status}, {len(self._missing)})"


def _remedy(of_tokens: str, of_passwords: str, *, is_refused: bool = False) -> str:
    """What to show in which field; "" for a field in which there is nothing to show."""
    token, user = "a token", "a user name and a password"
    if is_refused:
        token, user = "a valid token", "the right user name and password"
    if of_tokens == of_passwords:
        return f"show {token}, or {user}, in {of_tokens}" if of_tokens else ""
    shown = [f"{token} in {of_tokens}"] if of_tokens else []
    return f"show {' or '.join([*shown, f'{user} in {of_passwords}'] if of_passwords else shown)}"
