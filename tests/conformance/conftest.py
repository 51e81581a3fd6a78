"""One program and its pods for all conformance cases: each case replaces what is configured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.suite import Suite
from tests.support.net import can_bind_low_ports


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    if not can_bind_low_ports():
        pytest.skip("the cases use ports 80 and 443")
    running = Suite(tmp_path_factory.mktemp("conformance") / "gw")
    try:
        yield running.start()
    finally:
        running.stop()
