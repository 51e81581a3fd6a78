"""A folder as the kubelet mounts Secrets and ConfigMaps, and as it exchanges what is in it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path

_versions = count(1)


def mount(folder: Path, data: Mapping[str, str]) -> None:
    """Write it, or put other data in its place: in one moment, by renaming the link `..data`."""
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "..data"
    before = link.resolve() if link.exists() else None
    version = folder / f"..2026_11_22_{next(_versions)}"
    version.mkdir()
    for key, value in data.items():
        (version / key).write_text(value)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.replace(link)
    for key in data:
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(Path("..data") / key)
    for old in folder.iterdir():
        if old.name not in data and not old.name.startswith(".."):
            old.unlink()
    if before is not None:
        shutil.rmtree(before)
