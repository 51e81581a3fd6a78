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

#: The file that contexts write to, "" for none. Set before the first context is created.
_path = ""


def open_key_log(file: Path) -> int:
    """A descriptor that appends to this new or existing file. Raises OSError, and ValueError for a file that is not
    regular, not ours, or readable by others.
    """
    descriptor = os.open(file, _FLAGS, 0o600)
    found = os.fstat(descriptor)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no regular file"
    elif found.st_uid != os.geteuid():
        why = "it belongs to another user"
    elif found.st_mode & 0o077:
        why = "other users can read the file: chmod 600"
    if why:
        os.close(descriptor)
        raise ValueError(why)
    return descriptor


def start_key_log(file: Path) -> None:
    """Log the secrets of all TLS connections to this file from here on. Raises like `open_key_log`. The descriptor
    stays open, so contexts write into the checked file even if its name changes.
    """
    global _path
    descriptor = open_key_log(file)
    place = f"/proc/self/fd/{descriptor}"
    _path = place if os.path.exists(place) else str(file)


def log_keys_of(context: ssl.SSLContext) -> None:
    """Have this context write its secrets, where `start_key_log` was called."""
    if _path:
        context.keylog_filename = _path
