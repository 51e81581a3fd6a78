"""X-Egress-Identity: who the client of one gateway is, told to the next one and signed with a key that both have.

The value is `v1.PAYLOAD.MAC`: JSON and HMAC-SHA256, both in base64url. The MAC covers method and authority of the
request, too, so that the value is of no use for another one, and the payload has the time and a nonce: it holds for
seconds, and once for each process that verifies it (`SeenValues`). It is taken out of whatever a client sends, verified
or not. A key is for one receiver: who can verify can sign, too.
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
#: How many values are remembered, so that none is believed twice: 9 MiB, and 35 s of 1,870 a second. Where more come,
#: those of the earliest second are forgotten, and no other of that second is believed.
MAX_SEEN: Final = 65_536
#: Of a value: whatever a token says of ASCII fits.
MAX_BYTES: Final = 24 * 1024
_MAX_TEXT: Final = 320
#: Of a name: that of an issuer and a subject; of a group or a claim, as tokens may have them.
_MAX_NAME: Final = 1024
_MAX_ENTRIES: Final = 256
_VERSION: Final = b"v1"
_KEYS: Final = (
    "time", "nonce", "gateway", "client", "namespace", "service_account", "name", "groups", "claims",
)  # fmt: skip


class NotVerified(Exception):
    """Why the value does not say who the client is, without the value. `result`: of a closed list, for metrics."""

    def __init__(self, result: str, text: str) -> None:
        super().__init__(text)
        self.result = result


class TooMuchToTell(ValueError):
    """What is known of a client does not fit into a value."""


@dataclass(frozen=True, slots=True)
class ForwardedIdentity:
    """What a gateway says of its client. `gateway` is its Gateway ("namespace/name"), `client` the address. "-": it is
    not known, or the connection is not for one client alone. The others are those of `CallerIdentity`.
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
    TooMuchToTell: to leave groups out could lift what is denied to them.
    """
    claims: dict[str, list[str]] | None = None
    if identity.claims_read is not None:
        claims = {name: [] for name in identity.claims_read}
        for claim, said_of_it in identity.claims:
            claims.setdefault(claim, []).append(said_of_it)
    said = (
        int(now), secrets.token_urlsafe(12), identity.gateway, identity.client, identity.namespace,
        identity.service_account, identity.name, identity.groups, claims,
    )  # fmt: skip
    text = json.dumps(dict(zip(_KEYS, said, strict=True)), separators=(",", ":"))
    payload = base64.urlsafe_b64encode(text.encode()).rstrip(b"=")
    value = b"%b.%b.%b" % (_VERSION, payload, _mac(key, payload, method, authority))
    if len(value) > MAX_BYTES:
        raise TooMuchToTell(f"{len(value)} bytes, and a value has at most {MAX_BYTES}")
    return value


class SeenValues:
    """The values that were believed, for as long as they could be shown again. One per process; workers remember them
    together, too (`gateway/identity/seen_values`).
    """

    __slots__ = ("_by_second", "_count", "_forgotten")

    def __init__(self) -> None:
        self._by_second: dict[int, set[bytes]] = {}
        self._count = 0
        self._forgotten = 0  # nothing of this second and those before is believed

    def take(self, time: int, mac: bytes, now: float) -> None:
        """Remember this MAC of that second (since 1970). Raises NotVerified if it may have been shown before."""
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
    """Who the client is, if one of the keys has signed this value for this method and authority, it is young, and not
    `seen` yet; now it is. `now` is in seconds since 1970. Raises NotVerified.
    """
    parts = value.split(b".")
    if len(value) > MAX_BYTES or len(parts) != 3 or parts[0] != _VERSION:
        raise NotVerified("malformed", "it is malformed")
    _, payload, shown = parts
    if not any(hmac.compare_digest(shown, _mac(key, payload, method, authority)) for key in keys):
        raise NotVerified("no_key", "no key of this gateway has signed it for this method and authority")
    try:
        said = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise NotVerified("malformed", "it is malformed") from None
    if not isinstance(said, dict) or tuple(said) != _KEYS:
        raise NotVerified("malformed", "it has other entries than this version knows")
    time, *texts, name, groups, claims = said.values()
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
    told = () if claims is None else tuple((claim, value) for claim, values in claims.items() for value in values)
    _, gateway, client, namespace, account = texts
    read = None if claims is None else tuple(claims)
    return ForwardedIdentity(gateway, client, namespace, account, name, tuple(groups), told, read)


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _MAX_TEXT and text.isascii() and text.isprintable()


def _are_names(said: object) -> bool:
    """Whether it is a list of groups, or of names or values of claims."""
    return (
        isinstance(said, list)
        and len(said) <= _MAX_ENTRIES
        and all(isinstance(each, str) and len(each) <= _MAX_NAME for each in said)
    )


def _mac(key: SecretBytes, payload: bytes, method: bytes, authority: str) -> bytes:
    """No part can hold the LF that stands between them."""
    signed = b"\n".join((b"egressproxy identity", _VERSION, method, authority.encode(), payload))
    return base64.urlsafe_b64encode(hmac.digest(key.reveal(), signed, hashlib.sha256)).rstrip(b"=")
