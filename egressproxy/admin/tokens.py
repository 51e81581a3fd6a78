"""The token of those who may write."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Shorter ones can be guessed.
MIN_TOKEN: Final = 16


def read_token(file: Path) -> bytes:
    """Read anew each time, so that it can be replaced. Raises ValueError, which does not show it."""
    try:
        found = file.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"the token file {file} cannot be read: {(error.strerror or '').lower()}") from None
    if len(found) < MIN_TOKEN:
        raise ValueError(f"the token in {file} is shorter than {MIN_TOKEN} characters")
    return found
