"""The units of deploy/systemd, as systemd reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[1] / "deploy" / "systemd"
HAS_SYSTEMD = shutil.which("systemd-analyze") is not None


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """With a program that is there."""
    for each in UNITS.glob("egressproxy.*"):
        text = each.read_text(encoding="utf-8").replace("/usr/local/bin/egressproxy", sys.executable)
        (tmp_path / each.name).write_text(text, encoding="utf-8")
    return [str(tmp_path / "egressproxy.service"), str(tmp_path / "egressproxy.socket")]


@pytest.mark.skipif(not HAS_SYSTEMD, reason="systemd is not here")
def test_systemd_finds_nothing_wrong(units: list[str]):
    command = ["systemd-analyze", "verify", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not HAS_SYSTEMD, reason="systemd is not here")
def test_the_service_may_do_little(units: list[str]):
    command = ["systemd-analyze", "security", "--offline=yes", units[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"exposure level for egressproxy.service: ([\d.]+)", done.stdout)
    assert found is not None
    assert float(found[1]) < 2.0


def test_the_service_has_the_admin_address_of_its_socket():
    service, sockets = ((UNITS / f"egressproxy.{kind}").read_text(encoding="utf-8") for kind in ("service", "socket"))
    admin = re.search(r"--admin (\S+)", service)
    assert admin is not None
    assert f"ListenStream={admin[1]}\n" in sockets
