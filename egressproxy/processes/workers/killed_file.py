"""The file of those who are out of service: it is read at the start, and replaced as a whole with each change.

One process writes it, which has the lock of the folder (`--state-dir`). A file that cannot be read says nothing of who
is out of service; nobody may be served by it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from egressproxy.gateway.identity.killed_identities import MAX_KILLED, KilledIdentities, KilledIdentity
from egressproxy.model.strict_json import loads_strictly
from egressproxy.net.durable_file import replace_file

#: In the folder of `--state-dir`. Objects of the API have names without a dot in front.
NAME: Final = ".kill-switch.json"
#: MAX_KILLED names and reasons, each character of them escaped.
MAX_BYTES: Final = 256 * 1024 * 1024
VERSION: Final = 1
_FIELDS: Final = {"identity", "why", "since"}


def read_killed(file: Path) -> KilledIdentities:
    """Who is out of service; nobody where there is no file. Raises OSError, and ValueError with a sentence."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return KilledIdentities()
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    found = loads_strictly(data)
    if type(found) is not dict or found.get("version") != VERSION or found.keys() != {"version", "killed"}:
        raise ValueError(f"it is not an object with version {VERSION} and killed")
    killed = found["killed"]
    if type(killed) is not list or len(killed) > MAX_KILLED:
        raise ValueError(f"killed is no list of at most {MAX_KILLED} identities")
    every = tuple(_identity(number, each) for number, each in enumerate(killed))
    if len({each.name for each in every}) != len(every):
        raise ValueError("an identity is there twice")
    return KilledIdentities(every, revision=1)


def write_killed(file: Path, killed: KilledIdentities) -> None:
    """Replace it, on the disk, by one that this user alone can read. Raises OSError, and has changed nothing then."""
    every = ",\n".join(
        f"  {json.dumps({'identity': each.name, 'why': each.why, 'since': each.since})}" for each in killed.every
    )
    replace_file(file, f'{{"version": {VERSION}, "killed": [\n{every}\n]}}\n'.encode())


def _identity(number: int, found: Any) -> KilledIdentity:
    """Raises ValueError, with the place."""
    path = f"killed[{number}]"
    if type(found) is not dict or found.keys() != _FIELDS:
        raise ValueError(f"{path} has not the fields {', '.join(sorted(_FIELDS))} alone")
    name, why, since = found["identity"], found["why"], found["since"]
    if type(name) is not str or type(why) is not str or type(since) not in (int, float) or not 0 <= since < 2**40:
        raise ValueError(f"{path} has a field of another type than text, text and seconds")
    try:
        return KilledIdentity(name, why, float(since))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
