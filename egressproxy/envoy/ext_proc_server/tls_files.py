"""TlsFiles: the certificate, its key and the authorities of Envoys, from files that are read again when they change."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path
from time import monotonic
from typing import Final

from egressproxy.ir.gateway import CertificateIR, ClientCertificatesIR, ListenerTlsIR
from egressproxy.model.secret import SecretBytes
from egressproxy.net.tls_contexts.contexts import server_context
from egressproxy.run_options import FilterListener

log = logging.getLogger(__name__)

#: The least interval of checks of the files, in seconds.
_LOOK_S: Final = 1.0

#: The identity of each file: inode, size in bytes, and modification time in ns.
_State = tuple[tuple[int, int, int], ...]


class TlsFiles:
    """Clients need a certificate of one of the CAs, since filters send them credentials."""

    __slots__ = ("_authorities", "_certificate", "_context", "_key", "_looked_at", "_state")

    def __init__(self, certificate: Path, key: Path, authorities: Path) -> None:
        """The arguments are PEM files. Raises OSError, ssl.SSLError or ValueError for unusable files."""
        self._certificate = certificate
        self._key = key
        self._authorities = authorities
        self._state = self._states()
        self._looked_at = monotonic()
        self._context = self._read()

    @classmethod
    def of(cls, at: FilterListener) -> TlsFiles | None:
        """The files of this listener, None for one without TLS. Raises as the constructor."""
        if at.tls_certificate is None or at.tls_key is None or at.tls_client_ca is None:
            return None
        return cls(at.tls_certificate, at.tls_key, at.tls_client_ca)

    def context(self) -> ssl.SSLContext:
        """The context for a new connection, from the current files, or from the last usable ones."""
        now = monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look()
        return self._context

    def _look(self) -> None:
        try:
            state = self._states()
            if state == self._state:
                return
            self._state = state  # report unusable files once
            self._context = self._read()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            log.error(
                "the files of --tls-cert, --tls-key and --tls-client-ca cannot be used: %s; the former serve", why
            )
            return
        log.info("the files of --tls-cert, --tls-key and --tls-client-ca have changed: new connections use them")

    def _states(self) -> _State:
        found = [os.stat(path) for path in (self._certificate, self._key, self._authorities)]
        return tuple([(each.st_ino, each.st_size, each.st_mtime_ns) for each in found])

    def _read(self) -> ssl.SSLContext:
        key = SecretBytes(self._key.read_bytes())
        certificate = CertificateIR("serve-filters", self._certificate.read_text(), key)
        clients = ClientCertificatesIR(self._authorities.read_text())
        return server_context(ListenerTlsIR(certificates=(certificate,), clients=clients), ("h2",))
