"""What `make demo` prints is what the README shows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.own_network import can_have_own_network, own_network
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.skipif(not can_have_own_network(), reason="its ports are fixed: it needs a network namespace")
def test_the_demo_gives_the_answers_of_the_readme():
    words = ["run", "--config", "config/demo.yaml", "--log-level", "error", "--"]
    provider = [sys.executable, "config/demo/provider.py"]
    with own_network():
        done = subprocess.run(
            [sys.executable, "-m", "egressproxy", *words, *provider],
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = (ROOT / "README.md").read_text(encoding="utf-8").partition("```console\n")[2].partition("```")[0]
    assert done.stdout.strip() == shown.partition("\n\n")[2].strip()


@pytest.mark.skipif(not can_have_own_network(), reason="its ports are fixed: it needs a network namespace")
def test_the_demo_of_the_compose_file_is_refused_four_times_and_cannot_go_around():
    words = ["run", "--config", "docker/policies", "--log-level", "error", "--", sys.executable, "docker/demo.py"]
    with own_network():
        done = subprocess.run(
            [sys.executable, "-m", "egressproxy", *words],
            cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    allowed, *refused, around = done.stdout.strip().split("\n\n")
    assert not allowed.splitlines()[-1].startswith("  403"), "here no name server answers, but policy lets it pass"
    assert len(refused) == 4
    for each in refused:
        told, asked, answer = each.splitlines()
        host = asked.split("/")[2].partition(":")[0]
        assert told.startswith("refused: ")
        assert answer.startswith(f"  403 Denied: {host} is not allowed"), each
    assert around.endswith("the gateway is the only way out")
