"""What a client has shown whose certificate was refused: OpenSSL forgets it with the handshake, and the ssl module
tells a server nothing of it.

OpenSSL's verify callback sees it. It is set here as in `any_certificate`, and changes nothing of the verdict. Where
that cannot be done, nothing is told.
"""

from __future__ import annotations

import ctypes
import hashlib
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from egressproxy.net.any_certificate import VerifyCallback, inside, openssl_library

#: Bytes of a distinguished name that are read, and characters of a serial number, which has 20 bytes (RFC 5280).
_MAX_NAME: Final = 160
_MAX_SERIAL: Final = 40
_PEER, _FAIL_WITHOUT = 1, 2  # SSL_VERIFY_PEER, SSL_VERIFY_FAIL_IF_NO_PEER_CERT (ssl.h)


class RefusedCertificate(NamedTuple):
    """`subject` and `issuer` in printable ASCII, `/CN=x/O=y`; `serial` and `sha256` in hexadecimal digits."""

    subject: str
    issuer: str
    serial: str
    sha256: str


#: Of the handshake that failed last, until it is taken: the callback runs inside of it, in the thread of the loop.
_latest: RefusedCertificate | None = None


def note_refused(context: ssl.SSLContext) -> None:
    """Have certificates noted that this server's context refuses, for `take_refused`. Its verify mode stays."""
    library, mode = _library(), context.verify_mode
    if library is None or mode is ssl.CERT_NONE:
        return
    library.SSL_CTX_set_verify(inside(context), _PEER | (_FAIL_WITHOUT if mode is ssl.CERT_REQUIRED else 0), _NOTE)
    if context.verify_mode is not mode:
        raise ValueError("the OpenSSL of this Python did not keep the mode of verification")


def take_refused() -> RefusedCertificate | None:
    """The certificate that was refused in the handshake that has just failed; None where none was, or none is told."""
    global _latest
    found, _latest = _latest, None
    return found


def _note(was_good: int, store: int | None) -> int:
    global _latest
    if not was_good:
        _latest = None
        with suppress(ValueError, IndexError, OSError):  # nothing is told
            _latest = _read(store)
    return was_good


#: Kept for as long as a context may call it.
_NOTE = VerifyCallback(_note)


def _read(store: int | None) -> RefusedCertificate | None:
    library = _library()
    leaf = library.X509_STORE_CTX_get0_cert(store) if library is not None else None
    if library is None or not leaf:
        return None
    size = library.i2d_X509(leaf, None)
    if size <= 0:
        return None
    der = ctypes.create_string_buffer(size)
    library.i2d_X509(leaf, ctypes.byref(ctypes.c_char_p(ctypes.addressof(der))))
    subject, issuer = (
        _text(library, name(leaf)) for name in (library.X509_get_subject_name, library.X509_get_issuer_name)
    )
    return RefusedCertificate(subject, issuer, _serial(der.raw), hashlib.sha256(der.raw).hexdigest())


def _text(library: ctypes.CDLL, name: int) -> str:
    text = ctypes.create_string_buffer(_MAX_NAME)
    library.X509_NAME_oneline(name, text, _MAX_NAME)
    shown = text.value.decode("ascii", "replace")
    return "".join(each if each.isprintable() and each not in ';,"' else "?" for each in shown) or "(empty)"


def _serial(der: bytes) -> str:
    """Source: RFC 5280 section 4.1: Certificate, tbsCertificate, then version (which may be left out), serialNumber."""
    at, _ = _content(der, 0)
    at, _ = _content(der, at)
    if der[at] == 0xA0:
        _, at = _content(der, at)
    begin, end = _content(der, at)
    return der[begin:end].hex()[:_MAX_SERIAL]


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of what begins here begins and ends (X.690 section 8.1.3)."""
    length, at = der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        length, at = int.from_bytes(der[at : at + octets], "big"), at + octets
    return at, at + length


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """OpenSSL with types for what is called here; None where it has not all of it."""
    library = openssl_library()
    if library is None:
        return None
    pointer = ctypes.c_void_p
    try:
        for name, result, arguments in (
            ("X509_STORE_CTX_get0_cert", pointer, (pointer,)),
            ("X509_get_subject_name", pointer, (pointer,)),
            ("X509_get_issuer_name", pointer, (pointer,)),
            ("X509_NAME_oneline", pointer, (pointer, ctypes.c_char_p, ctypes.c_int)),
            ("i2d_X509", ctypes.c_int, (pointer, pointer)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError:
        return None
    return library
