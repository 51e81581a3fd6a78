"""The admin address: what is in service, status, probes, metrics and the writes of an operator.

aiohttp serves it. Importing aiohttp reads the system's trust store twice, for a client that is not used here; that
takes 100 ms. So it is imported while OpenSSL is told that the store is empty: that client's own contexts trust nobody.
"""

from __future__ import annotations

import os

_STORE = os.environ.get("SSL_CERT_FILE")
os.environ["SSL_CERT_FILE"] = os.devnull
try:
    import aiohttp  # noqa: F401
finally:
    if _STORE is None:
        del os.environ["SSL_CERT_FILE"]
    else:
        os.environ["SSL_CERT_FILE"] = _STORE
