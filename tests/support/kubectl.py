"""The real kubectl, where it is installed."""

from __future__ import annotations

import os
import shutil

import pytest


def find_kubectl() -> str:
    """Its path. A test that needs it is skipped without it, and fails in a pipeline (EGRESSPROXY_CLIENTS=required)."""
    found = shutil.which("kubectl")
    if found is not None:
        return found
    message = "kubectl is missing: apt-get install --no-install-recommends kubernetes-client"
    if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
        pytest.fail(message)
    pytest.skip(message)
