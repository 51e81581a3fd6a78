"""The system's CA certificates (OpenSSL's file and folder, or SSL_CERT_FILE and SSL_CERT_DIR): whether they have
changed. Nothing is read here: a TLS context does that, and the mark says when a new one is due.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Final

#: How often a watch looks at them, in seconds: packages of the distribution bring others now and then.
LOOK_S: Final = 10.0
#: What OpenSSL looks for in the folder (`openssl rehash`).
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")

_in_force = ""


def mark() -> str:
    """Tells the present files from others, by inode, size and time; links are followed. "" where there are none."""
    found = hashlib.blake2b(digest_size=16)
    is_there = False
    for file in _files():
        try:
            state = os.stat(file)
        except OSError:
            continue
        is_there = True
        found.update(repr((file, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)).encode())
    return found.hexdigest() if is_there else ""


def watched(clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """A function that gives the mark; it looks at the files every LOOK_S seconds."""
    known, look_at = "", 0.0

    def look() -> str:
        nonlocal known, look_at
        if clock() >= look_at:
            known, look_at = mark(), clock() + LOOK_S
        return known

    return look


def put_in_force(name: str) -> None:
    """Contexts that trust the system are made anew from here on, if this mark is another than that before."""
    global _in_force
    _in_force = name


def in_force() -> str:
    """The mark that was put in force last."""
    return _in_force


def _files() -> Iterator[str]:
    places = ssl.get_default_verify_paths()
    if places.cafile is not None:
        yield places.cafile
    if places.capath is not None:
        for folder in places.capath.split(":"):
            try:
                yield from sorted(os.path.join(folder, each) for each in os.listdir(folder) if _HASHED.fullmatch(each))
            except OSError:
                continue
