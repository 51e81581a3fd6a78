"""An admin server on loopback; modules with a State of their own have a fixture `state`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from egressproxy.admin.server import AdminServer
from tests.admin.kit import State, admin_server, serving


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
async def admin(state: State) -> AsyncIterator[AdminServer]:
    async with serving(admin_server(state)) as made:
        yield made
