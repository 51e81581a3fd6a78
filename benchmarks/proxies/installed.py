"""Programs from PyPI, each installed once into a virtual environment of its own under .cache/benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.processes import StartError
from benchmarks.world import REPOSITORY

CACHE = REPOSITORY / ".cache" / "benchmarks"


def install(package: str, version: str, extra: str = "", *others: str) -> Path:
    """The folder of the virtual environment. `others` are packages that it needs beside. Raises StartError where pip
    fails.
    """
    folder = CACHE / f"{package}-{version}"
    done = folder / "-".join((".installed", *others))
    if done.exists():
        return folder
    asked = f"{package}{extra}=={version}"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install", asked, *others],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise StartError(f"{asked} cannot be installed from PyPI: {ran.stderr.strip()[-300:]}")
    done.touch()
    return folder
