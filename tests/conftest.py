"""For all tests: property tests take the time they need, and in the pipeline the same examples every time."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("developer", deadline=None)
settings.register_profile("pipeline", deadline=None, derandomize=True)
settings.load_profile("pipeline" if os.environ.get("CI") else "developer")
