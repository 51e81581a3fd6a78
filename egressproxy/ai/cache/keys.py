"""What keys are made of: the client, its credential, and the body in one spelling."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from egressproxy.ai.apis.long_json import dumping
from egressproxy.ai.apis.message import READ_AT_ONCE, JsonMessage
from egressproxy.model.caller_identity import CallerIdentity
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import CREDENTIAL_FIELDS, Fields, every_spelling
from egressproxy.model.strict_json import Unreadable, dumps
from egressproxy.model.work import Work

#: What says who the client is, to a backend: in every spelling.
CREDENTIALS: Final = every_spelling((*CREDENTIAL_FIELDS, "cookie"))
_encode_in_order: Final = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, sort_keys=True
).encode
#: Members of a body with which an answer depends on more than the request. Source: OpenAI, POST /v1/responses.
_STATEFUL: Final = ("background", "conversation", "previous_response_id")


def is_known(exchange: Exchange, fields: Fields) -> bool:
    """Whether anything tells this client, who has sent these fields, from others."""
    return is_named(exchange.identity) or CREDENTIALS.search(fields.block) is not None


def is_named(identity: CallerIdentity) -> bool:
    """Whether this client is told from others by more than its address."""
    return identity.name != "-" or identity.namespace != "-" or identity.service_account != "-"


def credentials_of(fields: Fields) -> bytes:
    """What these fields say of who the client is, whatever the case of their names: HTTP/2 has small letters alone."""
    lines = (line.strip().partition(b":") for line in CREDENTIALS.findall(fields.block))
    return b"\n".join(name.lower() + b":" + value.strip() for name, _, value in lines)


def canonical(body: bytes) -> Work[bytes | None]:
    """A body of JSON in order, no blanks, made in turns; None where answers depend on more than it says, and for what
    is no JSON of one meaning.
    """
    try:
        value = yield from JsonMessage.parsing(body)
        if not isinstance(value, dict) or any(value.get(name) for name in _STATEFUL):
            return None
        return in_order(value) if len(body) <= READ_AT_ONCE else (yield from dumping(value, is_sorted=True))
    except Unreadable:
        return None


def in_order(value: object) -> bytes:
    """A value of JSON without blanks, members sorted by name, at every depth. Raises Unreadable for infinity."""
    try:
        return _encode_in_order(value).encode()
    except ValueError:  # half a surrogate pair, which `dumps` writes as an escape, or infinity
        return dumps(json.loads(json.dumps(value, sort_keys=True)))


def telling(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """Finds the lines of these fields, for `told_by`."""
    every = b"|".join(re.escape(name.lower()) for name in dict.fromkeys(names))
    return re.compile(rb"\r\n(%b):[ \t]*+([^\r]*[^\r \t]|)" % every, re.IGNORECASE)  # as `Fields.get_all`


def told_by(telling: re.Pattern[bytes], fields: Fields) -> bytes:
    """What these fields say. In which order fields of several names stand makes no difference."""
    lines = [b"%b:%b" % (name.lower(), value) for name, value in telling.findall(fields.block)]
    lines.sort(key=lambda line: line.partition(b":")[0])
    return b"\n".join(lines)


def digest(parts: Sequence[bytes]) -> bytes:
    """Of parts of any length: no two lists of parts look alike, since their lengths come first."""
    lengths = b",".join(map(b"%d".__mod__, map(len, parts)))
    return blake2b(b"%b:%b" % (lengths, b"".join(parts)), digest_size=32).digest()
