"""The files of audit chains in a folder: `audit-CHAIN-NUMBER.jsonl`, and `audit-CHAIN.head`, which says how far it is.

The head is what shows that records at the end were removed. It has the hash (or HMAC) of its own line.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from egressproxy.filters.audit.record_chain import BadLine, Link, made_line, read_line
from egressproxy.model.secret import SecretBytes

_FILE: Final = re.compile(r"audit-([0-9]{1,4})-([0-9]{6,})\.jsonl")


def file_name(chain: str, number: int) -> str:
    """The name of a chain's file; numbers count from 1."""
    return f"audit-{chain}-{number:06}.jsonl"


def head_path(folder: Path, chain: str) -> Path:
    """Where the head of this chain is."""
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
