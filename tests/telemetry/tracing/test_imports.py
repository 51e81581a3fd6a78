"""Where no Gateway traces nothing of this package is imported, and nothing for users' filters where there is none."""

import subprocess
import sys

import pytest

UNWANTED = (
    "egressproxy.telemetry.tracing", "egressproxy.filters.author_errors", "egressproxy.filters.block_watch",
    "egressproxy.ai.content.filter_bodies", "egressproxy.testing", "egressproxy.pytest_plugin", "egressproxy.tapes",
)  # fmt: skip
LOADED = f"[name for name in sys.modules if name.startswith({UNWANTED!r})]"


@pytest.mark.parametrize("module", ["egressproxy.doors.data_plane", "egressproxy.processes.workers.process"])
def test_what_serves_does_not_import_it(module: str):
    code = f"import sys, {module}; print({LOADED})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
