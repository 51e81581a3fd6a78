"""The next part of a message that a reader of HTTP/1 expects."""

from __future__ import annotations

from typing import Final

IN_HEAD: Final = 0
IN_LENGTH: Final = 1
IN_CHUNKS: Final = 2
IN_REST: Final = 3
IDLE: Final = 4  # responses: none is expected; also behind a 101 or a tunnel's 2xx
BROKEN: Final = 5
