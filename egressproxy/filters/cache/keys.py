"""What keys are made of: the client, its credential, and the body in one spelling."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from egressproxy.ai_apis.message import JsonMessage
from egressproxy.ai_apis.strict_json import dumps
from egressproxy.model.exchange import Exchange
from egressproxy.model.fields import Fields, every_spelling

__all__ = ["CREDENTIALS", "canonical", "credentials_of", "digest", "in_order", "is_known"]

#: What says who the client is, to a backend: in every spelling.
CREDENTIALS: Final = every_spelling((
    "authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "x-amz-security-token",
))  # fmt: skip
#: Members of a body with which an answer depends on more than the request. Source: OpenAI, POST /v1/responses.
_STATEFUL: Final = ("background", "conversation", "previous_response_id")


def is_known(x: Exchange, fields: Fields) -> bool:
    """Whether anything tells this client, who has sent these fields, from others."""
    identity = x.identity
    return identity.namespace != "-" or identity.service_account != "-" or CREDENTIALS.search(fields.block) is not None


def credentials_of(fields: Fields) -> bytes:
    """What these fields say of who the client is, whatever the case of their names: HTTP/2 has small letters alone."""
    lines = (line.strip().partition(b":") for line in CREDENTIALS.findall(fields.block))
    return b"\n".join(name.lower() + b":" + value.strip() for name, _, value in lines)


def canonical(body: bytes) -> bytes | None:
    """A body of JSON with its members in order and without blanks; None where answers depend on more than it says.

    Raises Unreadable.
    """
    value = JsonMessage.parse(body)
    if not isinstance(value, dict) or any(value.get(name) for name in _STATEFUL):
        return None
    return dumps(in_order(value))


def in_order(value: object) -> object:
    """A value of JSON with the members of its objects sorted by name, at every depth."""
    if isinstance(value, dict):
        return {name: in_order(value[name]) for name in sorted(value)}
    return [in_order(each) for each in value] if isinstance(value, list) else value


def digest(parts: Sequence[bytes]) -> bytes:
    """Of parts of any length: no two lists of parts look alike."""
    made = blake2b(digest_size=32)
    for part in parts:
        made.update(b"%d:" % len(part))
        made.update(part)
    return made.digest()
