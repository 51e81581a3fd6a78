"""The JSON Schema of all kinds, made in the process that loads: the models need memory only until it ends."""

from __future__ import annotations

import json

from egressproxy.config.schema import json_schema


def schema(_request: bytes) -> bytes:
    """JSON Schema of every kind, as JSON; the request is empty."""
    return json.dumps(json_schema()).encode()
