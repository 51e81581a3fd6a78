"""Which files were written through the admin API: those below a folder with a mark in it, which every process knows,
told of --state-dir or not. No write through the API removes it: its files never begin with a dot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MARK: Final = ".egressproxy-state"


def holds(path: Path) -> bool:
    """Whether the file lies in such a folder, or below one, once every link is followed. Raises OSError."""
    return any(os.path.lexists(folder / MARK) for folder in path.resolve().parents)
