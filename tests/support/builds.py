"""Tests that are for the sources alone."""

from __future__ import annotations

import pytest

from egressproxy import build

_WHY = "it looks into classes: for the sources alone"

#: For a test that patches, subclasses or looks into what may be compiled (docs/compiled.md, "What differs").
of_sources = pytest.mark.skipif(build.name() == build.COMPILED, reason=_WHY)


def skip_where_compiled() -> None:
    """For a module of tests that cannot even be imported then, since it has subclasses of what may be compiled."""
    if build.name() == build.COMPILED:
        pytest.skip(_WHY, allow_module_level=True)
