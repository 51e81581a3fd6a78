"""Files of PEM, each replaced as a whole: a client, or the gateway, may be reading it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding


def pem_of(certificate: x509.Certificate) -> str:
    """The certificate as PEM."""
    return certificate.public_bytes(Encoding.PEM).decode()


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Put this in the place of the file when it is on the disk. Raises OSError, and has changed nothing then."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
