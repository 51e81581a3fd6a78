"""OpenSSL's verify callback: what a client has shown whose certificate was refused, and certificates nobody judges.

OpenSSL forgets a refused certificate with the handshake, and the ssl module tells a server nothing of it; nor can the
module ask for a certificate without judging it (`AllowInsecureFallback`, GEP-91). OpenSSL's verify callback sees each,
and may overrule what was found. It is set here on the SSL_CTX inside of a context, and in the very library that
Python's ssl module uses. Where that cannot be done, nothing is told.
"""

from __future__ import annotations

import ctypes
import hashlib
import ssl
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

#: SSL_VERIFY_PEER and SSL_VERIFY_FAIL_IF_NO_PEER_CERT (ssl.h). With the first alone, whoever has none is let in.
_PEER, _FAIL_WITHOUT = 1, 2

VerifyCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


def _accept(_was_good: int, _store: int | None) -> int:
    return 1


#: Kept for as long as a context may call it.
_ACCEPT = VerifyCallback(_accept)


@lru_cache(maxsize=1)
def openssl_library() -> ctypes.CDLL | None:
    """The ssl module's OpenSSL, with types for `SSL_CTX_set_verify`; None: no library of its own, or no CPython."""
    import _ssl

    path = getattr(_ssl, "__file__", None)
    if path is None or sys.implementation.name != "cpython":
        return None
    library = ctypes.CDLL(path)  # finds what the module was linked with, too
    try:
        set_verify, get_mode = library.SSL_CTX_set_verify, library.SSL_CTX_get_verify_mode
    except AttributeError:
        return None
    set_verify.argtypes, set_verify.restype = (ctypes.c_void_p, ctypes.c_int, VerifyCallback), None
    get_mode.argtypes, get_mode.restype = (ctypes.c_void_p,), ctypes.c_int
    return library


def inside(context: ssl.SSLContext) -> ctypes.c_void_p:
    """The SSL_CTX of a context. PySSLContext (CPython, Modules/_ssl.c) is what every object begins with, then that."""
    return ctypes.c_void_p.from_address(id(context) + object.__basicsize__)


#: X509_V_ERR_CERT_HAS_EXPIRED (x509_vfy.h).
_HAS_EXPIRED: Final = 10


def _pass_expired(was_good: int, store: int | None) -> int:
    library = _library()
    if not was_good and library is not None and library.X509_STORE_CTX_get_error(store) == _HAS_EXPIRED:
        library.X509_STORE_CTX_set_error(store, 0)
        return 1
    return was_good


#: Kept for as long as a context may call it.
_PASS_EXPIRED = VerifyCallback(_pass_expired)


def accept_expired(context: ssl.SSLContext) -> None:
    """Accept certificates of servers that have expired, and judge everything else. Raises ValueError where it cannot
    be.
    """
    library = _library()
    if library is None:
        raise ValueError("the OpenSSL of this Python cannot accept a certificate that has expired")
    library.SSL_CTX_set_verify(inside(context), _PEER | _FAIL_WITHOUT, _PASS_EXPIRED)
    if context.verify_mode is not ssl.CERT_REQUIRED:
        raise ValueError("the OpenSSL of this Python did not keep the mode of verification")


def can_take_any_certificate() -> bool:
    """Whether `take_any_certificate` works here."""
    return openssl_library() is not None


def take_any_certificate(context: ssl.SSLContext) -> None:
    """Ask this context's clients for a certificate, and let everybody in. Raises ValueError where it cannot be."""
    library = openssl_library()
    if library is None:
        raise ValueError("the OpenSSL of this Python cannot ask for a certificate without verifying it")
    library.SSL_CTX_set_verify(inside(context), _PEER, _ACCEPT)
    if context.verify_mode is not ssl.CERT_OPTIONAL:
        raise ValueError("the OpenSSL of this Python did not take the callback that lets every certificate pass")


#: Bytes of a distinguished name that are read, and characters of a serial number, which has 20 bytes (RFC 5280).
_MAX_NAME: Final = 160
_MAX_SERIAL: Final = 40


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
            ("X509_STORE_CTX_get_error", ctypes.c_int, (pointer,)),
            ("X509_STORE_CTX_set_error", None, (pointer, ctypes.c_int)),
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
