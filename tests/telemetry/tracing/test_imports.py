"""Where no Gateway traces, nothing of this package is imported, and nothing that makes text of a log that is JSON."""

import subprocess
import sys

import pytest

UNUSED = ("egressproxy.telemetry.tracing", "egressproxy.telemetry.text_log")
LOADED = f"[name for name in sys.modules if name.startswith({UNUSED})]"


@pytest.mark.parametrize("module", ["egressproxy.doors.data_plane", "egressproxy.processes.workers.process"])
def test_what_serves_does_not_import_it(module: str):
    code = f"import sys, {module}; print({LOADED})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
