"""Authors of filters see the types of egressproxy: mypy finds `py.typed` where the package is installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILTER = """
from egressproxy.filters import Exchange, Filter, LocalResponse

class Stamp(Filter):
    async def request_headers(self, x: Exchange) -> LocalResponse | None:
        reveal_type(x.request.fields)
        return 403
"""


def test_mypy_sees_the_filter_api_of_an_installed_package(tmp_path: Path):
    pytest.importorskip("mypy")
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "egressproxy").symlink_to(ROOT / "egressproxy")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
    (tmp_path / "stamp.py").write_text(FILTER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--python-executable={folder}/bin/python"]
    done = subprocess.run([*command, "stamp.py"], cwd=tmp_path, capture_output=True, text=True)
    assert 'Revealed type is "egressproxy.model.fields.Fields"' in done.stdout, done.stdout + done.stderr
    assert "Incompatible return value type" in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_the_marker_of_types_is_installed():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    assert (data["egressproxy"], (ROOT / "egressproxy" / "py.typed").exists()) == (["py.typed"], True)
