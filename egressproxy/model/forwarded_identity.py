"""X-Egress-Identity: the client's identity, sent from one gateway to the next and signed with a shared key.

The value is `v1.PAYLOAD.MAC`: JSON and HMAC-SHA256, both in base64url. The MAC covers method and authority of the
request, too, so that the value is of no use for another request. The payload has the time and a nonce, so a value is
valid for seconds, and once in each verifying process (`SeenValues`). The field is removed from every client's request,
verified or not. Use one key per receiver: a party that can verify can also sign.
Sources: RFC 2104 (HMAC), RFC 4648 section 5 (base64url).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from egressproxy.model.secret import SecretBytes

FIELD: Final = b"X-Egress-Identity"
#: How old a value may be, and how far ahead the clock of the other gateway.
MAX_AGE_S: Final = 30
MAX_SKEW_S: Final = 5
#: As long as the hash (RFC 2104 section 3).
MIN_KEY_BYTES: Final = 32
#: The most values that are remembered against replay: 9 MiB, and 35 s at 1,870 a second. Beyond that, the values of the
#: earliest second are forgotten, and further values of that second are rejected.
MAX_SEEN: Final = 65_536
#: The most bytes of a value: every accepted token's ASCII claims fit.
MAX_BYTES: Final = 24 * 1024
_MAX_TEXT: Final = 320
#: The most characters of a name (issuer and subject), and of a group or claim, as for tokens.
_MAX_NAME: Final = 1024
_MAX_ENTRIES: Final = 256
_VERSION: Final = b"v1"
_KEYS: Final = (
    "time", "nonce", "gateway", "client", "namespace", "service_account", "name", "groups", "claims",
)  # fmt: skip


class NotVerified(Exception):
    """The value is not accepted; the message gives the reason, never the value. `result`: from a closed list, for
    metrics.
    """

    def __init__(self, result: str, text: str) -> None:
        super().__init__(text)
        self.result = result


class TooMuchToTell(ValueError):
    """The identity of a client does not fit into a value."""


@dataclass(frozen=True, slots=True)
class ForwardedIdentity:
    """A gateway's client. `gateway` is the Gateway ("namespace/name"), `client` the client's address. "-": unknown, or
    the connection serves several clients. The other fields are as in `CallerIdentity`.
    """

    gateway: str
    client: str = "-"
    namespace: str = "-"
    service_account: str = "-"
    name: str = "-"
    groups: tuple[str, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    claims_read: tuple[str, ...] | None = None


def sign(key: SecretBytes, identity: ForwardedIdentity, method: bytes, authority: str, now: float) -> bytes:
    """The value for a request with this method and authority ("host:port"); `now` in seconds since 1970. Raises
    TooMuchToTell: leaving out groups could lift a denial.
    """
    claims: dict[str, list[str]] | None = None
    if identity.claims_read is not None:
        claims = {name: [] for name in identity.claims_read}
        for claim, said_of_it in identity.claims:
            claims.setdefault(claim, []).append(said_of_it)
    values = (
        int(now), secrets.token_urlsafe(12), identity.gateway, identity.client, identity.namespace,
        identity.service_account, identity.name, identity.groups, claims,
    )  # fmt: skip
    text = json.dumps(dict(zip(_KEYS, values, strict=True)), separators=(",", ":"))
    payload = base64.urlsafe_b64encode(text.encode()).rstrip(b"=")
    value = b"%b.%b.%b" % (_VERSION, payload, _mac(key, payload, method, authority))
    if len(value) > MAX_BYTES:
        raise TooMuchToTell(f"{len(value)} bytes, and a value has at most {MAX_BYTES}")
    return value


class SeenValues:
    """The accepted values, remembered until they expire. One per process; workers also share them
    (`gateway/identity/seen_values`).
    """

    __slots__ = ("_by_second", "_count", "_forgotten")

    def __init__(self) -> None:
        self._by_second: dict[int, set[bytes]] = {}
        self._count = 0
        self._forgotten = 0  # values of this second and earlier ones are rejected

    def take(self, time: int, mac: bytes, now: float) -> None:
        """Remember the MAC of a value signed at `time` (seconds since 1970). Raises NotVerified for a replay."""
        if time <= self._forgotten:
            raise NotVerified("forgotten", "it is older than the values that this gateway remembers")
        of_second = self._by_second.get(time)
        if of_second is None:
            for old in [second for second in self._by_second if now - second > MAX_AGE_S]:
                self._forget(old)
            of_second = self._by_second[time] = set()
        if mac in of_second:
            raise NotVerified("repeated", "it was shown before")
        of_second.add(mac)
        self._count += 1
        if self._count > MAX_SEEN:
            self._forgotten = min(self._by_second)
            self._forget(self._forgotten)

    def _forget(self, second: int) -> None:
        self._count -= len(self._by_second.pop(second))

    def __repr__(self) -> str:
        return f"SeenValues({self._count} of {len(self._by_second)} seconds)"


def verify(
    keys: Iterable[SecretBytes], value: bytes, method: bytes, authority: str, now: float, seen: SeenValues
) -> ForwardedIdentity:
    """The client's identity. The value must be signed by one of the keys for this method and authority, recent, and not
    yet `seen`; it is then added. `now` is in seconds since 1970. Raises NotVerified.
    """
    parts = value.split(b".")
    if len(value) > MAX_BYTES or len(parts) != 3 or parts[0] != _VERSION:
        raise NotVerified("malformed", "it is malformed")
    _, payload, shown = parts
    if not any(hmac.compare_digest(shown, _mac(key, payload, method, authority)) for key in keys):
        raise NotVerified("no_key", "no key of this gateway has signed it for this method and authority")
    try:
        document = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise NotVerified("malformed", "it is malformed") from None
    if not isinstance(document, dict) or tuple(document) != _KEYS:
        raise NotVerified("malformed", "it has other entries than this version knows")
    time, *texts, name, groups, claims = document.values()
    is_well_formed = (
        type(time) is int
        and all(isinstance(text, str) and _is_plain(text) for text in texts)
        and isinstance(name, str)
        and 0 < len(name) <= _MAX_NAME
        and name.isprintable()
        and _are_names(groups)
        and (
            claims is None
            or (isinstance(claims, dict) and _are_names([*claims]) and all(map(_are_names, claims.values())))
        )
    )
    if not is_well_formed:
        raise NotVerified("malformed", "it has entries of another type")
    if now - time > MAX_AGE_S:
        raise NotVerified("too_old", f"it is {now - time:.0f} s old, and holds for {MAX_AGE_S} s: compare the clocks")
    if time - now > MAX_SKEW_S:
        raise NotVerified("ahead", f"it is from {time - now:.0f} s ahead: compare the clocks")
    seen.take(time, shown, now)
    pairs = () if claims is None else tuple((claim, value) for claim, values in claims.items() for value in values)
    _, gateway, client, namespace, account = texts
    read = None if claims is None else tuple(claims)
    return ForwardedIdentity(gateway, client, namespace, account, name, tuple(groups), pairs, read)


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _MAX_TEXT and text.isascii() and text.isprintable()


def _are_names(value: object) -> bool:
    """Whether the value is a list of groups, or of names or values of claims."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_ENTRIES
        and all(isinstance(each, str) and len(each) <= _MAX_NAME for each in value)
    )


def _mac(key: SecretBytes, payload: bytes, method: bytes, authority: str) -> bytes:
    """The MAC over the parts, joined by LF, which no part can contain."""
    signed = b"\n".join((b"egressproxy identity", _VERSION, method, authority.encode(), payload))
    return base64.urlsafe_b64encode(hmac.digest(key.reveal(), signed, hashlib.sha256)).rstrip(b"=")
