"""What a client is told that has shown no credential, or a wrong one: 407 on a forward proxy, 401 elsewhere.

Sources: RFC 9110 sections 11.6.1, 11.7.1, 15.5.2 and 15.5.8; RFC 6750 section 3; RFC 7617 section 2.
"""

from __future__ import annotations

from egressproxy.errors import GatewayError, Reason

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

    __slots__ = ("_missing", "_refused_token", "_remedy", "_remedy_refused", "_status", "_wanted")

    def __init__(
        self,
        *,
        is_forward: bool,
        takes_tokens: bool = False,
        takes_passwords: bool = False,
        token_field: str = "",
        takes_keys: bool = False,
        knows_addresses: bool = False,
    ) -> None:
        """`token_field` "": tokens stand where passwords do, and as a password, too. Where a request can show nothing,
        what is refused is the connection: 403, since 401 and 407 ask for a credential.
        """
        self._status = 403 if not (takes_tokens or takes_passwords or takes_keys) else 407 if is_forward else 401
        name = b"Proxy-Authenticate" if is_forward else b"WWW-Authenticate"
        field = "Proxy-Authorization" if is_forward else "Authorization"
        missing: list[tuple[bytes, bytes]] = []
        if (
            takes_passwords or (takes_tokens and not token_field) or (takes_keys and is_forward)
        ):  # the one that most clients know comes first
            missing.append((name, b'Basic %b, charset="UTF-8"' % _REALM))
        refused_token = list(missing)
        if takes_tokens or takes_keys:
            missing.append((name, b"Bearer " + _REALM))
            refused_token.append((name, b'Bearer %b, error="invalid_token"' % _REALM))
        self._missing = tuple(missing)
        self._refused_token = tuple(refused_token)
        of_tokens, of_passwords = token_field or field if takes_tokens else "", field if takes_passwords else ""
        self._wanted = _wanted(of_tokens, of_passwords)
        self._remedy_refused = _wanted(of_tokens, of_passwords, is_refused=True)
        self._remedy = _remedy(of_tokens, of_passwords, is_forward=is_forward, knows_addresses=knows_addresses)
        if takes_keys:
            of_keys = field if is_forward else "Authorization or the field of the provider, such as x-api-key"
            self._wanted = _or(self._wanted, f"an API key in {of_keys}")
            self._remedy_refused = _or(self._remedy_refused, f"a valid API key in {of_keys}")
            sent = f"send the field {field}: Bearer KEY, with an API key of this gateway"
            url = "write the proxy's URL as http://any:KEY@GATEWAY, or " if is_forward else ""
            others = takes_tokens or takes_passwords
            self._remedy = f"{self._remedy}, or {sent}" if others else f"{url}{sent}"

    def missing(self) -> Unauthenticated:
        """For a client that has shown nothing."""
        message = "the gateway does not know this client"
        if self._wanted:
            message = f"authentication is required: {self._wanted}"
        return Unauthenticated(Reason.CREDENTIALS_REQUIRED, message, self._status, self._missing, remedy=self._remedy)

    def refused(self, message: str, detail: str, *, is_token: bool) -> Unauthenticated:
        """For a client whose credential is wrong. `detail` is for the log alone; `is_token`: it is a token."""
        fields = self._refused_token if is_token else self._missing
        remedy = self._remedy_refused
        return Unauthenticated(Reason.CREDENTIALS_REFUSED, message, self._status, fields, remedy=remedy, detail=detail)


def _or(wanted: str, more: str) -> str:
    return f"{wanted}, or {more}" if wanted else f"show {more}"


def _wanted(of_tokens: str, of_passwords: str, *, is_refused: bool = False) -> str:
    """What to show in which field; "" for a field in which there is nothing to show."""
    token, user = "a token", "a user name and a password"
    if is_refused:
        token, user = "a valid token", "the right user name and password"
    if of_tokens == of_passwords:
        return f"show {token}, or {user}, in {of_tokens}" if of_tokens else ""
    shown = [f"{token} in {of_tokens}"] if of_tokens else []
    return f"show {' or '.join([*shown, f'{user} in {of_passwords}'] if of_passwords else shown)}"


def _remedy(of_tokens: str, of_passwords: str, *, is_forward: bool, knows_addresses: bool) -> str:
    if not of_tokens and not of_passwords:
        where = ", or from an address that it knows" if knows_addresses else ""
        return f"connect with a client certificate that the gateway believes{where} (identity of the EgressPolicy)"
    usual = "Proxy-Authorization" if is_forward else "Authorization"
    urls = ["http://any:TOKEN@GATEWAY"] if is_forward and of_tokens == usual else []
    if of_passwords and is_forward:
        urls.append("http://USER:PASSWORD@GATEWAY")
    fields = [f"{of_tokens}: {'Bearer ' if of_tokens == usual else ''}TOKEN"] if of_tokens else []
    if of_passwords:
        fields.append(f"{of_passwords}: Basic BASE64(USER:PASSWORD)")
    address = f"write the proxy's URL as {' or '.join(urls)}" if urls else ""
    send = f"send the field {' or '.join(fields)}"
    return f"{address}, or {send}" if address else send
