"""Files by which clients trust the roots of this system and a CA besides: PEM for most of them, a store for Java."""

from __future__ import annotations

import os
import re
import secrets
import ssl
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

from egressproxy.cli.client_settings import STORE_PASSWORD

#: Where systems have them. Source: crypto/x509/root_linux.go of Go.
_SYSTEM: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


class TrustProblem(ValueError):
    """What clients shall trust cannot be had; the message says why."""


def read_ca(path: Path) -> str:
    """The certificates in a file of PEM, or in a folder's `ca.crt`, and nothing else of it. Raises TrustProblem."""
    file = path / "ca.crt" if path.is_dir() else path
    try:
        found = x509.load_pem_x509_certificates(file.read_text("ascii", "replace").encode())
    except OSError as error:
        raise _of_file(file, error) from None
    except ValueError:
        raise TrustProblem(f"{file}: this is not a certificate in PEM") from None
    return "".join(map(pem_of, found))


def certificates(pem: str) -> list[x509.Certificate]:
    """Those that can be read: among a system's roots there may be one that cannot, or whose form is deprecated."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in _BLOCK.findall(pem):
            with suppress(ValueError):
                found.append(x509.load_pem_x509_certificate(block.encode()))
    return found


def is_root(certificate: x509.Certificate) -> bool:
    """Whether the certificate is self-issued: most clients accept only chains that end at a self-issued one."""
    return certificate.issuer == certificate.subject


def write_trust(ca_pem: str, bundle: Path, java_store: Path) -> None:
    """Write both files, of the roots of the system and these. Raises TrustProblem."""
    try:
        _write_java_store(java_store, write_bundle(bundle, ca_pem))
    except OSError as error:
        raise _of_file(bundle, error) from None


def _of_file(file: Path, error: OSError) -> TrustProblem:
    return TrustProblem(f"{error.filename or file}: {error.strerror or error}")


def write_bundle(path: Path, ca_pem: str) -> str:
    """Write and return the roots of the system and these. Raises TrustProblem where the system has none."""
    roots = system_roots()
    there = {re.sub(r"\s", "", each) for each in _BLOCK.findall(roots)}
    added = [each for each in _BLOCK.findall(ca_pem) if re.sub(r"\s", "", each) not in there]
    text = f"{roots.rstrip()}\n" + "".join(f"{each}\n" for each in added)
    replace_file(path, text.encode())
    return text


def _write_java_store(path: Path, pem: str) -> None:
    """These roots as a trust store that Java reads (PKCS #12)."""
    entries = [PKCS12Certificate(each, b"%d" % number) for number, each in enumerate(certificates(pem))]
    replace_file(path, serialize_java_truststore(entries, BestAvailableEncryption(STORE_PASSWORD.encode())))


def system_roots() -> str:
    """PEM. What $SSL_CERT_FILE names goes before the system's own file, as it does for OpenSSL."""
    default = ssl.get_default_verify_paths().cafile
    files: Sequence[str] = (*((default,) if default else ()), *_SYSTEM)
    for file in files:
        try:
            text = Path(file).read_text("utf-8", "replace")
        except OSError:
            continue
        if _BLOCK.search(text):
            return text
    looked = ", ".join(dict.fromkeys(files))
    raise TrustProblem(
        f"the roots of this system are not found ({looked}): install ca-certificates, or name their file in"
        " $SSL_CERT_FILE"
    )


def pem_of(certificate: x509.Certificate) -> str:
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
