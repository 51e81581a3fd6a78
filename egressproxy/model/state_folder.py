"""The files that were written through the admin API: those below a folder with a mark file. So every process can tell,
with or without --state-dir. The API never removes the mark, since its own files never begin with a dot.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MARK: Final = ".egressproxy-state"


def holds(path: Path) -> bool:
    """Whether the file lies below such a folder, after resolving links. Raises OSError."""
    return any(os.path.lexists(folder / MARK) for folder in path.resolve().parents)
