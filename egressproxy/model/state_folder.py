"""Which files were written through the admin API: those below a folder with a mark in it.

The mark lies in the folder itself, so that every process and every command knows it, whether it was told --state-dir
or not. A write through the API cannot remove it: the names of its files never begin with a dot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MARK: Final = ".egressproxy-state"


def holds(path: Path) -> bool:
    """Whether the file lies in such a folder, or below one, once every link is followed. Raises OSError."""
    return any(os.path.lexists(folder / MARK) for folder in path.resolve().parents)
