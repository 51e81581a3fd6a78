"""The process that makes the JSON Schema of all kinds, prints it and ends: it takes the models with it."""

from __future__ import annotations

import gc
import json
import os
import sys

__all__ = ["main"]


def main() -> None:
    gc.disable()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from egressproxy.config.schema import json_schema

    sys.stdout.write(json.dumps(json_schema()))
    sys.stdout.flush()
    os._exit(0)
