"""Where no Gateway traces, nothing of this package is imported; nor is what is for people, until somebody looks."""

import subprocess
import sys

import pytest

UNUSED = (
    "egressproxy.telemetry.tracing", "egressproxy.telemetry.live_lines", "egressproxy.operators.explain",
    "egressproxy.admin.live", "egressproxy.admin.views", "egressproxy.processes.loader.proposals",
    "egressproxy.processes.loader.differences",
)  # fmt: skip
LOADED = f"[name for name in sys.modules if name.startswith({UNUSED!r})]"
SERVING = ["egressproxy.doors.data_plane", "egressproxy.processes.workers.process", "egressproxy.admin.server"]


@pytest.mark.parametrize("module", SERVING)
def test_what_serves_does_not_import_it(module: str):
    code = f"import sys, {module}; print({LOADED})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
