"""The process that signs leaves: what that takes of memory is gone when it has ended.

It is told the CA with each name, in a line of JSON, and answers with a line; it ends with its input.
"""

from __future__ import annotations

import json
import signal
import sys
from functools import lru_cache

from egressproxy.gateway.leaf_certificates.minting import SigningCa
from egressproxy.model.secret import SecretBytes
from egressproxy.net.process import close_memory


@lru_cache(maxsize=64)
def _ca(chain_pem: str, key_pem: SecretBytes) -> SigningCa:
    return SigningCa(chain_pem, key_pem)


def answer(line: bytes) -> dict[str, object]:
    """To one question: the leaf, or the `error` that says why there is none."""
    asked = json.loads(line)
    try:
        leaf = _ca(asked["chain"], SecretBytes(asked["key"].encode())).mint(asked["name"], asked["now"])
    except ValueError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"chain": leaf.chain_pem, "key": leaf.key_pem.reveal().decode(), "expires_at": leaf.expires_at}


def main() -> None:
    """Until nobody asks any more."""
    close_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the gateway, which may drain
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(line)).encode() + b"\n")
        sys.stdout.buffer.flush()
