"""Child processes start alike, whatever the environment says, and their ends are told alike."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import egressproxy
from egressproxy.net.child import child_command, ending
from tests.support.waiting import WAIT_S


def test_it_finds_modules_where_this_process_does_and_the_environment_changes_nothing(tmp_path: Path):
    (tmp_path / "egressproxy.py").write_text("raise SystemExit('not me')")
    command = child_command("import egressproxy; print(egressproxy.__file__, __debug__, sys.flags.dev_mode)")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PYTHONOPTIMIZE": "1", "PYTHONDEVMODE": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.stdout.split() == [egressproxy.__file__, "True", "False"], done.stderr


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-11, "was ended by SIGSEGV"),
        (-9, "was ended by SIGKILL (as the system does where memory is short)"),
        (-250, "was ended by signal 250"),
    ],
)
def test_how_it_ended(status: int, told: str):
    assert ending(status) == told
