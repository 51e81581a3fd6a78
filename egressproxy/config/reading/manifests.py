"""Which files are manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SUFFIXES: Final = (".yaml", ".yml", ".json")


def manifest_files(folder: Path) -> list[Path]:
    """The manifests of a folder, by name. Symbolic links are followed, as a mounted ConfigMap needs."""
    found = (entry for entry in folder.iterdir() if entry.suffix in SUFFIXES and not entry.name.startswith("."))
    return sorted(entry for entry in found if not entry.is_dir())
