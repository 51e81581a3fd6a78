"""LoadRequest: the inputs of a loading, and their form as bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NamedTuple

from egressproxy.model.secret import ConfigSource, SecretBytes, SecretSource
from egressproxy.processes.pickling import classes, dumps, loads

#: For the whole of a request. The one that asks ends the process after that, and so does the kernel.
LIMIT_S: Final = 120
#: How the copy ended that served a request: its exit status, or the number of the signal, negative.
STATUS: Final = struct.Struct("!i")
_KNOWN: Final = classes((Path, SecretBytes, SecretSource))


class LoadRequest(NamedTuple):
    """The files and folders to load, and what else a compilation needs.

    `memory` is that of the configuration in service, if any; `state` the folder of what the API has written; `cluster`
    what an API server has (`config.reading.cluster_objects`), with the values of Secrets. `unbound` are addresses and
    ports that cannot be bound, with a sentence why. Of `cluster` the Gateways of `gateway_namespaces` are taken, those
    of all namespaces if it is empty. `experimental`: what provisional GEPs define is served.
    `has_service`: a Service is in front of the gateway.
    """

    paths: tuple[ConfigSource, ...]
    bind: tuple[str, ...]
    memory: bytes = b""
    state: Path | None = None
    cluster: bytes | None = None
    unbound: tuple[tuple[str, int, str], ...] = ()
    gateway_namespaces: tuple[str, ...] = ()
    experimental: bool = False
    has_service: bool = False


def write_request(request: LoadRequest) -> bytes:
    """The request for `read_request`, with the values of Secrets: it goes through an inherited pipe alone."""
    return dumps(tuple(request))


def read_request(data: bytes) -> LoadRequest:
    """What `write_request` wrote. Raises nearly everything if this is no (whole) request."""
    return LoadRequest(*loads(data, _KNOWN, "part of a request"))
