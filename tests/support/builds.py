"""Tests that are for the sources alone."""

from __future__ import annotations

import pytest

from egressproxy import build

__all__ = ["of_sources"]

#: For a test that patches, subclasses or looks into what may be compiled (docs/compiled.md, "What differs").
of_sources = pytest.mark.skipif(build.name() == build.COMPILED, reason="it looks into classes: for the sources alone")
