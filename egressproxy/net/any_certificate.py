"""Asking clients for a certificate without judging it, which the ssl module cannot do: a certificate that it does not
accept ends the handshake.

OpenSSL can: what it found is for its verify callback to overrule. That callback is set here, on the SSL_CTX inside of a
context, and in the very library that Python's ssl module uses. Only `AllowInsecureFallback` needs it (GEP-91).
"""

from __future__ import annotations

import ctypes
import ssl
import sys
from functools import lru_cache

_VERIFY_PEER = 1  # SSL_VERIFY_PEER (ssl.h): ask; whoever has none is let in

VerifyCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


def _accept(_was_good: int, _store: int | None) -> int:
    return 1


#: Kept for as long as a context may call it.
_ACCEPT = VerifyCallback(_accept)


@lru_cache(maxsize=1)
def openssl_library() -> ctypes.CDLL | None:
    """The OpenSSL of the ssl module, with types for `SSL_CTX_set_verify`; None where it is not a library of its own, or
    this is not CPython.
    """
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


def can_take_any_certificate() -> bool:
    """Whether `take_any_certificate` works here."""
    return openssl_library() is not None


def take_any_certificate(context: ssl.SSLContext) -> None:
    """Ask the clients of this context for a certificate, and let everybody in. Raises ValueError where that cannot be
    done.
    """
    library = openssl_library()
    if library is None:
        raise ValueError("the OpenSSL of this Python cannot ask for a certificate without verifying it")
    library.SSL_CTX_set_verify(inside(context), _VERIFY_PEER, _ACCEPT)
    if context.verify_mode is not ssl.CERT_OPTIONAL:
        raise ValueError("the OpenSSL of this Python did not take the callback that lets every certificate pass")
