"""A line of an audit chain: one JSON object, which has the hash of the line before it, and its own; and its files.

    {"chain":"0","seq":7,"time":"…","kind":"exchange","prev":"<64 hex digits>", …,"hash":"<64 hex digits>"}

The hash is that of all bytes of the line before `,"hash":`, by SHA-256 (FIPS 180-4), or by HMAC-SHA-256 (RFC 2104) with
a key that whoever writes to the folder does not have. The files of a chain are `audit-CHAIN-NUMBER.jsonl`, and
`audit-CHAIN.head`, which says how far it is: that shows that records at the end were removed. It has the hash (or HMAC)
of its own line.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from egressproxy.model.secret import SecretBytes

#: What the first record of a chain has for the hash before it.
FIRST: Final = "0" * 64
SHA256: Final = "sha256"
HMAC_SHA256: Final = "hmac-sha256"

_LINE: Final = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}\n?', re.DOTALL)

_FILE: Final = re.compile(r"audit-([0-9]{1,4})-([0-9]{6,})\.jsonl")


class BadLine(ValueError):
    """A line is no record, or its hash is not its own."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where a chain has got to: the number of its last record, from 1, and its hash."""

    seq: int = 0
    hash: str = FIRST


def made_line(chain: str, before: Link, values: Mapping[str, Any], key: SecretBytes | None) -> tuple[bytes, Link]:
    """The next line, with its line feed, and where the chain is then. What is none of JSON is written as text."""
    head = {"chain": chain, "seq": before.seq + 1, "prev": before.hash}
    content = json.dumps(head | dict(values), separators=(",", ":"), default=str).encode("utf-8", "backslashreplace")[
        :-1
    ]
    digest = _digest(content, key)
    return b'%b,"hash":"%b"}\n' % (content, digest.encode()), Link(before.seq + 1, digest)


def read_line(line: bytes, key: SecretBytes | None) -> tuple[dict[str, Any], str]:
    """What a line says, and its hash; that of an HMAC is compared with a `key` alone. Raises BadLine, with a reason."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise BadLine("the line is no record")
    content, digest = match.group(1), match.group(2).decode()
    try:
        values = json.loads(content + b"}")
    except ValueError:
        raise BadLine("the line is no JSON") from None
    if [type(values.get(name)) for name in ("seq", "prev", "chain")] != [int, str, str]:
        raise BadLine("the record has no chain, number or hash of the one before it")
    if not hmac.compare_digest(_digest(content, key), digest):
        raise BadLine("the record does not have the hash that it tells: it was changed, or the key is another")
    return values, digest


def _digest(content: bytes, key: SecretBytes | None) -> str:
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.new(key.reveal(), content, hashlib.sha256).hexdigest()


def file_name(chain: str, number: int) -> str:
    """The name of a chain's file; numbers count from 1."""
    return f"audit-{chain}-{number:06}.jsonl"


def head_path(folder: Path, chain: str) -> Path:
    return folder / f"audit-{chain}.head"


def chains_in(folder: Path) -> dict[str, list[tuple[int, Path]]]:
    """By chain, the numbers and paths of its files, in order. Raises OSError."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.iterdir():
        if match := _FILE.fullmatch(path.name):
            found.setdefault(match.group(1), []).append((int(match.group(2)), path))
    return {chain: sorted(found[chain]) for chain in sorted(found, key=int)}


def read_head(folder: Path, chain: str, key: SecretBytes | None) -> Link | None:
    """The head of a chain; None where there is none. Raises BadLine, OSError."""
    try:
        with open(head_path(folder, chain), "rb", opener=for_its_owner) as file:
            data = file.read()
    except FileNotFoundError:
        return None
    values, _ = read_line(data, key)
    if values["chain"] != chain:
        raise BadLine("the head is that of another chain")
    return Link(values["seq"] - 1, values["prev"])


def write_head(folder: Path, chain: str, link: Link, time: str, key: SecretBytes | None, *, sync: bool) -> None:
    """Say that the chain has got to `link`. A crash leaves the former head or this one. Raises OSError."""
    line, _ = made_line(chain, link, {"time": time, "kind": "head"}, key)
    path = head_path(folder, chain)
    fresh = path.with_suffix(".head.new")
    with suppress(FileNotFoundError):
        fresh.unlink()  # of a crash, or a link that somebody has put there
    with open(fresh, "xb", opener=for_its_owner) as file:
        file.write(line)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)


def for_its_owner(path: str, flags: int) -> int:
    """An opener for `open`: for this user alone, and never behind a link or on what is no file. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor
