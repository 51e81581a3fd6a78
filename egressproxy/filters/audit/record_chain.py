"""A line of an audit chain: one JSON object, which has the hash of the line before it, and its own. Pure.

    {"chain":"0","seq":7,"time":"…","kind":"exchange","prev":"<64 hex digits>", …,"hash":"<64 hex digits>"}

The hash is that of all bytes of the line before `,"hash":`, by SHA-256 (FIPS 180-4), or by HMAC-SHA-256 (RFC 2104) with
a key that whoever writes to the folder does not have.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from egressproxy.model.secret import SecretBytes

#: What the first record of a chain has for the hash before it.
FIRST: Final = "0" * 64
SHA256: Final = "sha256"
HMAC_SHA256: Final = "hmac-sha256"

_LINE: Final = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}\n?', re.DOTALL)


class BadLine(ValueError):
    """A line is no record, or its hash is not its own."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where a chain has got to: the number of its last record, from 1, and its hash."""

    seq: int = 0
    hash: str = FIRST


def made_line(chain: str, before: Link, values: Mapping[str, Any], key: SecretBytes | None) -> tuple[bytes, Link]:
    """The line of the next record, with its line feed, and where the chain is then. A value that is none of JSON is
    written as the text that it makes of itself.
    """
    head = {"chain": chain, "seq": before.seq + 1, "prev": before.hash}
    told = json.dumps(head | dict(values), separators=(",", ":"), default=str).encode("utf-8", "backslashreplace")[:-1]
    digest = _digest(told, key)
    return b'%b,"hash":"%b"}\n' % (told, digest.encode()), Link(before.seq + 1, digest)


def read_line(line: bytes, key: SecretBytes | None) -> tuple[dict[str, Any], str]:
    """What a line says, and its hash. Without a `key` the hash of an HMAC is not compared.

    Raises BadLine, which says what is wrong.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        raise BadLine("the line is no record")
    told, digest = found.group(1), found.group(2).decode()
    try:
        values = json.loads(told + b"}")
    except ValueError:
        raise BadLine("the line is no JSON") from None
    if (
        type(values.get("seq")) is not int
        or type(values.get("prev")) is not str
        or type(values.get("chain")) is not str
    ):
        raise BadLine("the record has no chain, number or hash of the one before it")
    if not hmac.compare_digest(_digest(told, key), digest):
        raise BadLine("the record does not have the hash that it tells: it was changed, or the key is another")
    return values, digest


def _digest(told: bytes, key: SecretBytes | None) -> str:
    if key is None:
        return hashlib.sha256(told).hexdigest()
    return hmac.new(key.reveal(), told, hashlib.sha256).hexdigest()
