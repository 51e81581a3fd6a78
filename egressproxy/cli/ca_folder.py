"""CaFolder: the files of a CA. `tls.crt` and `tls.key` are the gateway's, `ca.crt` is what clients trust."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from egressproxy.cli.trust_bundle import pem_of, replace_file
from egressproxy.config.compile.certificates import dns_constraints
from egressproxy.gateway.leaf_certificates.minting import MintingError, SigningCa, cross_signed, new_ca
from egressproxy.model.encoding import rfc3339
from egressproxy.model.secret import SecretBytes

_CERTIFICATE, _KEY, _TRUSTED = "tls.crt", "tls.key", "ca.crt"


class CaProblem(ValueError):
    """What was asked for cannot be done; the message says why."""


class CaFolder:
    """One CA, and those before it that clients still trust. `trusted`: of ca.crt, the CA itself first."""

    def __init__(self, path: Path, chain: Sequence[x509.Certificate], key: SecretBytes, trusted: Sequence[str]) -> None:
        self.path = path
        self._certificate = chain[0]
        self._key = key
        self._trusted = tuple(trusted)

    @classmethod
    def create(cls, path: Path, name: str, days: int, permitted: Sequence[str], excluded: Sequence[str]) -> CaFolder:
        """A new CA. Raises CaProblem where one is there, OSError."""
        for each in (_CERTIFICATE, _KEY, _TRUSTED):
            if (path / each).exists():
                raise CaProblem(f"{path / each} is there already: `ca rotate {path}` replaces a CA")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        pem, key = new_ca(name or _new_name(), time(), days, permitted, excluded)
        made = cls(path, [x509.load_pem_x509_certificate(pem.encode())], key, (pem,))
        made._write(pem)
        return made

    @classmethod
    def read(cls, path: Path) -> CaFolder:
        """The CA that is there. Raises CaProblem, OSError."""
        chain_pem = (path / _CERTIFICATE).read_text("ascii", "replace")
        key = SecretBytes((path / _KEY).read_bytes())
        try:
            SigningCa(chain_pem, key)
            chain = x509.load_pem_x509_certificates(chain_pem.encode())
            trusted_pem = (path / _TRUSTED).read_bytes() if (path / _TRUSTED).exists() else chain_pem.encode()
            trusted = [pem_of(each) for each in x509.load_pem_x509_certificates(trusted_pem)]
        except MintingError as error:
            raise CaProblem(f"{path / _CERTIFICATE}: {error}") from None
        except ValueError:
            raise CaProblem(f"{path / _TRUSTED}: this is not a certificate in PEM") from None
        return cls(path, chain, key, trusted)

    def rotate(self, *, keeps_old: bool) -> CaFolder:
        """A new CA for this one, which with `keeps_old` signs it and stays trusted. Raises CaProblem, OSError."""
        old = self._root()
        life = old.not_valid_after_utc - old.not_valid_before_utc
        permitted, excluded = dns_constraints(self._certificate)
        pem, key = new_ca(_new_name(), time(), max(1, life.days), permitted, excluded)
        shown = pem
        if keeps_old:
            if len(self._trusted) > 1:
                raise CaProblem("the last rotation is not finished: give ca.crt to all clients, then `rotate --finish`")
            if old.not_valid_after_utc <= datetime.now(UTC):
                raise CaProblem(
                    "the CA has expired, so no client accepts its certificates: `rotate --leaked` replaces it"
                )
            try:
                shown = cross_signed(pem, pem_of(old), self._key)
            except MintingError as error:
                why = f"the old CA {error}, so that it cannot sign the new one"
                raise CaProblem(f"{why}: `rotate --leaked` replaces it without, for all clients at once") from None
        trusted = (pem, pem_of(old)) if keeps_old else (pem,)
        made = CaFolder(self.path, x509.load_pem_x509_certificates(shown.encode()), key, trusted)
        made._write(shown)
        return made

    def finish(self) -> CaFolder:
        """Forget what was before this CA. Raises CaProblem where there is nothing to forget, OSError."""
        if len(self._trusted) < 2:
            raise CaProblem("ca.crt has no other CA: there is no rotation to finish")
        pem = pem_of(self._root())
        made = CaFolder(self.path, [x509.load_pem_x509_certificate(pem.encode())], self._key, (pem,))
        made._write(pem)
        return made

    @property
    def trusted_pem(self) -> str:
        """The CA alone, as clients trust it."""
        return pem_of(self._root())

    def values(self) -> dict[str, Any]:
        """What there is to be told, nothing of the key."""
        root = self._root()
        permitted, excluded = dns_constraints(self._certificate)
        return {
            "folder": str(self.path),
            "subject": root.subject.rfc4514_string(),
            "sha256": root.fingerprint(hashes.SHA256()).hex(":").upper(),
            "notBefore": rfc3339(root.not_valid_before_utc.timestamp()),
            "notAfter": rfc3339(root.not_valid_after_utc.timestamp()),
            "permitted": permitted,
            "excluded": excluded,
            "alsoTrusted": [
                x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string() for pem in self._trusted[1:]
            ],
        }

    def _root(self) -> x509.Certificate:
        """The CA as clients trust it: by its own signature where ca.crt has that."""
        key = self._certificate.public_key()
        found = (x509.load_pem_x509_certificate(pem.encode()) for pem in self._trusted)
        return next((each for each in found if each.public_key() == key), self._certificate)

    def _write(self, shown: str) -> None:
        """The key first, which nobody but us may read; each file is replaced as a whole."""
        replace_file(self.path / _KEY, self._key.reveal(), 0o600)
        replace_file(self.path / _CERTIFICATE, shown.encode())
        replace_file(self.path / _TRUSTED, "".join(self._trusted).encode())


def _new_name() -> str:
    """No two have one name: clients find a CA by it."""
    return f"egressproxy CA {datetime.now(UTC):%Y-%m-%d} {secrets.token_hex(2)}"
