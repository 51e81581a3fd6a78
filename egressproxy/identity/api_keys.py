"""API keys of clients: how they are made, stored as hashes, recognized in a request, and taken out of it.

A key has 256 random bits, so a plain SHA-256 of it is safe to store: nobody can guess a key to compare. A slow hash
(as for passwords, which people choose) would only delay each request. The lookup is by digest, with the same work for
every key: its time depends on the digest, from which nobody finds a key.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from math import inf
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from egressproxy.identity.credentials import CredentialRefused, how_long
from egressproxy.ir.identity import ApiKeyIR
from egressproxy.model.caller_identity import CallerIdentity, service_account_name
from egressproxy.model.fields import CREDENTIAL_FIELDS, every_spelling
from egressproxy.model.key_grant import KeyGrant
from egressproxy.model.message import RequestHead
from egressproxy.model.strict_json import Unreadable, loads_strictly

#: In every key, in front of its random part: by it a key is told from those of providers.
MARK: Final = "egk_"
MAX_RECORD_BYTES: Final = 64 * 1024
MAX_LISTED: Final = 256

_KEY: Final = re.compile(rb"[A-Za-z0-9-]{0,32}egk_[A-Za-z0-9_-]{1,128}")
_PREFIX: Final = re.compile(r"[A-Za-z0-9-]{0,32}")
_SCHEME: Final = re.compile(rb"(?i:bearer|(basic))[ ]+([^ ,]+)")
_LINES: Final = every_spelling(CREDENTIAL_FIELDS)
#: A key among other text. What is shorter behind the mark is no random key.
_AMONG: Final = re.compile(rb"egk_[A-Za-z0-9_-]{16,}")
#: The mark in Base64, by its position in a group of three bytes: the characters that no neighbour changes, behind those
#: of the same group that the byte in front of it changes.
_BASE64: Final = re.compile(rb"(?:ZWdrX|[^\r\n]{2}Vna1|[^\r\n]{3}lZ2tf)[A-Za-z0-9+/_-]{18,}")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_MAX_DECODED: Final = 3
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_TEXT: Final = re.compile(r"[!-~]{1,253}")
_MEMBERS: Final = frozenset(
    ("hash", "name", "namespace", "serviceAccount", "groups", "notAfter", "routes", "models")
)  # fmt: skip


def new_key(prefix: str = "") -> str:
    """A new random key. `prefix`: what stands in front, for clients that check the form of keys. Raises ValueError."""
    if not _PREFIX.fullmatch(prefix):
        raise ValueError("a prefix has letters, digits and - alone, 32 at most")
    return f"{prefix}{MARK}{secrets.token_urlsafe(32)}"


def digest_of(key: bytes) -> bytes:
    """The hash of a key, as bytes."""
    return sha256(key).digest()


# --- records ---------------------------------------------------------------------------------------------------------
class MalformedRecord(ValueError):
    """A record of a key that cannot be used; the text says why, and repeats nothing of its hash."""


def read_record(entry: str, value: bytes | str, of: str) -> ApiKeyIR:
    """The key that an entry of a Secret (`of`, "namespace/name") describes, as JSON. An unknown member is an error,
    since it may be a misspelt restriction. Raises MalformedRecord.
    """
    if len(value) > MAX_RECORD_BYTES:
        raise MalformedRecord(f"it is longer than {MAX_RECORD_BYTES} bytes")
    try:
        record = loads_strictly(value)  # of a member that stands twice, one would be lost: it may be a restriction
    except Unreadable as error:
        raise MalformedRecord(f"{error}: make it with `egressproxy keys new`") from None
    if not isinstance(record, dict):
        raise MalformedRecord("it is no JSON object: make it with `egressproxy keys new`")
    if unknown := sorted(record.keys() - _MEMBERS):
        raise MalformedRecord(f"{unknown[0][:80]!r} is no member of a record; those are {', '.join(sorted(_MEMBERS))}")
    hashed = _HASH.fullmatch(_text(record, "hash"))
    if hashed is None:
        raise MalformedRecord("hash is not sha256: with 64 hexadecimal digits in lower case")
    namespace, account = _named(record, "namespace", _LABEL), _named(record, "serviceAccount", _NAME)
    if account != "-" and namespace == "-":
        raise MalformedRecord("serviceAccount without namespace: there are service accounts of this name everywhere")
    name = f"{of}#{_text(record, 'name') or entry}"
    home = of.partition("/")[0]
    routes = _texts(record, "routes")
    digest = bytes.fromhex(hashed[1])
    return ApiKeyIR(
        digest=digest,
        name=service_account_name(namespace, account) if account != "-" else name,
        namespace=namespace,
        service_account=account,
        groups=_texts(record, "groups") or (),
        not_after=_moment(record),
        grant=KeyGrant(
            f"{of}#{entry}",
            digest,
            None if routes is None else frozenset(each if "/" in each else f"{home}/{each}" for each in routes),
            _texts(record, "models"),
        ),
    )


def new_record(key: str, **members: Any) -> dict[str, Any]:
    """The record of a key, with those members that have a value."""
    made = {"hash": f"sha256:{digest_of(key.encode()).hex()}"}
    return made | {name: value for name, value in members.items() if value}


def _text(record: Mapping[str, Any], member: str) -> str:
    value = record.get(member, "")
    if not isinstance(value, str) or (member in record and not _TEXT.fullmatch(value)):
        raise MalformedRecord(f"{member} is no text of 1 to 253 visible ASCII characters")
    return value


def _named(record: Mapping[str, Any], member: str, form: re.Pattern[str]) -> str:
    value = _text(record, member)
    if value and not form.fullmatch(value):
        raise MalformedRecord(f"{member} is no name of Kubernetes")
    return value or "-"


def _texts(record: Mapping[str, Any], member: str) -> tuple[str, ...] | None:
    value = record.get(member)
    if member not in record:
        return None
    if (
        not isinstance(value, list)
        or not 0 < len(value) <= MAX_LISTED
        or not all(isinstance(each, str) and _TEXT.fullmatch(each) for each in value)
    ):
        raise MalformedRecord(f"{member} is no list of 1 to {MAX_LISTED} texts: leave it out for no restriction")
    return tuple(value)


def _moment(record: Mapping[str, Any]) -> float:
    """`notAfter` in seconds since 1970."""
    if "notAfter" not in record:
        return inf
    try:
        found = datetime.fromisoformat(_text(record, "notAfter"))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise MalformedRecord("notAfter is no time such as 2027-01-31T00:00:00Z") from None
    return found.timestamp()


# --- requests --------------------------------------------------------------------------------------------------------
def shown_key(value: bytes) -> bytes:
    """The key in the value of a field: alone, as Bearer token, or as password or user of Basic; b"" if none is."""
    if _KEY.fullmatch(value):
        return value
    found = _SCHEME.fullmatch(value)
    if found is None:
        return b""
    token = found[2]
    if found[1]:
        try:
            bare = token.rstrip(b"=")
            plain = base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True)
        except binascii.Error:
            return b""
        user, _, password = plain.partition(b":")
        token = password if _KEY.fullmatch(password) else user
    return token if _KEY.fullmatch(token) else b""


def take_keys(head: RequestHead) -> set[bytes]:
    """The keys that a request shows in the fields of providers (`CREDENTIAL_FIELDS`) or in `?key=`, which leave it."""
    shown: set[bytes] = set()

    def kept(line: re.Match[bytes]) -> bytes:
        key = shown_key(line[0].partition(b":")[2].strip(b" \t"))
        if not key:
            return line[0]
        shown.add(key)
        return b""

    block = _LINES.sub(kept, head.fields.block)
    if shown:
        head.fields.block = block
    path, mark, query = head.path.partition(b"?")
    if mark and (b"key=" in query or b"%" in query):
        left = []
        for part in query.split(b"&"):
            name, _, value = part.partition(b"=")
            plain = unquote_to_bytes(value) if unquote_to_bytes(name) == b"key" else b""
            if plain and _KEY.fullmatch(plain):
                shown.add(plain)
            else:
                left.append(part)
        if len(left) <= query.count(b"&"):
            head.path = path + (b"?" + b"&".join(left) if left else b"")
            head.target = head.path  # the key is nowhere in the head
    return shown


def has_key(text: bytes) -> bool:
    """Whether a key stands anywhere in this text: as it is, percent-encoded, in Base64, or so inside of each other."""
    for _ in range(_MAX_DECODED):
        if b"egk_" in text and _AMONG.search(text):
            return True
        is_near = b"ZWdrX" in text or b"Vna1" in text or b"lZ2tf" in text  # faster than the expression
        if is_near and any(map(_is_key_in_base64, _BASE64.findall(text))):
            return True
        if b"%" not in text:
            return False
        text = unquote_to_bytes(text)
    return False


def _is_key_in_base64(text: bytes) -> bool:
    text = text[: len(text) // 4 * 4].translate(_URL_SAFE)
    with suppress(binascii.Error):  # what is in front of the mark may be anything
        return _AMONG.search(base64.b64decode(text)) is not None
    return False


def drop_hidden_keys(head: RequestHead) -> bool:
    """Whether a request shows a key in a place where `take_keys` reads none; then that place is empty."""
    fields = head.fields
    if not has_key(b"\n".join((head.target, head.host, head.via, head.upgrade, fields.block))):
        return False
    fields.block = without_keys(fields.block)
    head.via = head.upgrade = b""
    if has_key(head.target):
        head.path = head.target = b"/"
    if has_key(head.host):
        head.host = b""
    return True


def without_keys(block: bytes) -> bytes:
    """The lines of fields that have no key."""
    return b"".join(b"\r\n" + line for line in block.split(b"\r\n")[1:] if not has_key(line))


def client_of_key(key: ApiKeyIR) -> CallerIdentity:
    """The client that shows this key."""
    return CallerIdentity(
        key.namespace, key.service_account, name=key.name, source="key", groups=key.groups, grant=key.grant
    )


class ApiKeys:
    """The keys of one listener, by digest; `take`, `drop_hidden` and `shown` are `take_keys`, `drop_hidden_keys` and
    `shown_key`.
    """

    __slots__ = ("_by_digest", "_identities")
    take = staticmethod(take_keys)
    drop_hidden = staticmethod(drop_hidden_keys)
    shown = staticmethod(shown_key)

    def __init__(self, keys: Iterable[ApiKeyIR]) -> None:
        self._by_digest = {each.digest: each for each in keys}
        self._identities: dict[bytes, CallerIdentity] = {}

    def find(self, key: bytes, now: float) -> tuple[ApiKeyIR, CallerIdentity]:
        """The record of a key, and its client. `now`: seconds since 1970. Raises CredentialRefused."""
        digest = digest_of(key)
        found = self._by_digest.get(digest)
        if found is None:
            raise CredentialRefused("the API key is unknown, or revoked", f"no key with the hash sha256:{digest.hex()}")
        if now >= found.not_after:
            ago = how_long(now - found.not_after)
            raise CredentialRefused(f"the API key expired {ago} ago", f"key {found.grant.entry}")
        identity = self._identities.get(digest)
        if identity is None:
            identity = self._identities[digest] = client_of_key(found)
        return found, identity

    def has(self, key: object) -> bool:
        """Whether this record (ApiKeyIR) is still among them, unchanged."""
        return isinstance(key, ApiKeyIR) and self._by_digest.get(key.digest) == key

    def grants(self, grant: KeyGrant, now: float) -> bool:
        """Whether the key of this grant still has it."""
        found = self._by_digest.get(grant.digest)
        return found is not None and found.grant == grant and now < found.not_after
