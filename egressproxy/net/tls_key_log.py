"""The secrets of TLS connections in a file for Wireshark: for debugging, by an explicit option alone (`SSLKEYLOGFILE`
does nothing here). Format: NSS key log (RFC 9850), one line for each secret, as OpenSSL writes it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

#: Where contexts write; "" for nowhere. It is set before the first of them is made.
_path = ""


def open_key_log(file: Path) -> int:
    """A descriptor that appends to this file, new or not. Raises OSError; ValueError for what is no regular file of
    ours, or one that others may read.
    """
    descriptor = os.open(file, _FLAGS, 0o600)
    found = os.fstat(descriptor)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no regular file"
    elif found.st_uid != os.geteuid():
        why = "it belongs to another user"
    elif found.st_mode & 0o077:
        why = "others may read it: chmod 600"
    if why:
        os.close(descriptor)
        raise ValueError(why)
    return descriptor


def start_key_log(file: Path) -> None:
    """From here on the secrets of all TLS connections go there. Raises as `open_key_log`. The descriptor stays open:
    contexts write into the file that was checked, whatever has its name later.
    """
    global _path
    descriptor = open_key_log(file)
    place = f"/proc/self/fd/{descriptor}"
    _path = place if os.path.exists(place) else str(file)


def log_keys_of(context: ssl.SSLContext) -> None:
    """Have this context write its secrets, where `start_key_log` was called."""
    if _path:
        context.keylog_filename = _path
