"""Certificates for tests: one authority, leaf certificates for any names, and TLS contexts made of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

__all__ = ["Leaf", "Pki"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate chain and its key, PEM."""

    chain_pem: str
    key_pem: str


class Pki:
    """An authority that nobody trusts but the test. With a folder, its certificate also lies there as `ca.crt`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._ca = trustme.CA()
        self.ca_pem: str = self._ca.cert_pem.bytes().decode()
        self.ca_file: Path | None = None
        if folder is not None:
            self.ca_file = folder / "ca.crt"
            self.ca_file.write_text(self.ca_pem, encoding="ascii")

    def issue(self, *names: str) -> Leaf:
        """A leaf for these DNS names or addresses."""
        made = self._ca.issue_cert(*names)
        chain = "".join(blob.bytes().decode() for blob in made.cert_chain_pems)
        return Leaf(chain, made.private_key_pem.bytes().decode())

    def server_context(self, *names: str, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        """A context for a server that shows a leaf for these names."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert(*names).configure_cert(context)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context that trusts this authority and no other."""
        return ssl.create_default_context(cadata=self.ca_pem)
