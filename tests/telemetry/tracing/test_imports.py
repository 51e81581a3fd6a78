"""Where no Gateway traces, nothing of this package is imported; and nothing of tapes where no run has some."""

import subprocess
import sys

import pytest

LOADED = "[name for name in sys.modules if name.startswith(('egressproxy.telemetry.tracing', 'egressproxy.tapes'))]"


@pytest.mark.parametrize("module", ["egressproxy.doors.data_plane", "egressproxy.processes.workers.process"])
def test_what_serves_does_not_import_it(module: str):
    code = f"import sys, {module}; print({LOADED})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
