"""For all tests: property tests take the time they need, and in the pipeline the same examples every time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings

from egressproxy.transport.loop import Loop

settings.register_profile("developer", deadline=None)
settings.register_profile("pipeline", deadline=None, derandomize=True)
settings.load_profile("pipeline" if os.environ.get("CI") else "developer")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], Loop]]:
    """Tests run on the loop of the product."""
    return {"loop": Loop}
