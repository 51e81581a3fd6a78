"""A network namespace of one test: nothing outside is reached, and rules of nftables hold for nobody else.

with own_network("10.9.0.7/24"):
    ...  # threads and programs that are started here are in it, too
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.support.waiting import WAIT_S

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
#: A user that is not the gateway's.
NOBODY = 65534


@contextmanager
def own_network(*addresses: str) -> Iterator[None]:
    """This thread is in a new namespace, with loopback, which has these addresses, too. Raises OSError."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network namespace can be made")
        try:
            _run("ip", "link", "set", "lo", "up")
            for address in addresses:
                _run("ip", "address", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
            yield
        finally:
            _libc.setns(before, _CLONE_NEWNET)
    finally:
        os.close(before)


@cache
def can_have_own_network() -> bool:
    """Whether this process may make one, and nftables in it."""
    try:
        with own_network():
            load_rules("table inet probe {}")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def load_rules(rules: str) -> None:
    """Load rules of nftables, written as in a file. Raises CalledProcessError, FileNotFoundError."""
    subprocess.run(["nft", "-f", "-"], input=rules.encode(), check=True, timeout=WAIT_S, capture_output=True)


def as_nobody(*command: str) -> list[str]:
    """This command, run by a user that is not the gateway's."""
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=WAIT_S, capture_output=True)
