"""Data of state files, encrypted by AES-256-GCM. Imported only where a key is given."""

from __future__ import annotations

import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12


class WrongKey(ValueError):
    """The data was encrypted with another key, or changed."""


def seal(key: bytes, data: bytes, about: bytes) -> bytes:
    """A nonce and the encrypted data. `key`: 32 bytes; `about`: what `unseal` has to be given, too."""
    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, data, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The data. Raises WrongKey."""
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], about)
    except InvalidTag:
        raise WrongKey from None
