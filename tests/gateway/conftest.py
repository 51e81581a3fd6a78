"""Conversations for these tests, on fakes or on both fakes and sockets; each is closed, and so checked, at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.conversation import Conversation, conversation

Start = Callable[..., Conversation]


def _starting(wire: str) -> Iterator[Start]:
    made: list[Conversation] = []

    def start(*arguments: Any, **more: Any) -> Conversation:
        made.append(conversation(*arguments, wire=wire, **more))
        return made[-1]

    yield start
    for talk in made:
        talk.close()


@pytest.fixture
def converse() -> Iterator[Start]:
    """Starts conversations in memory, where time and back-pressure are the test's own."""
    yield from _starting("memory")


@pytest.fixture(params=["memory", "sockets"])
def converse_on(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts conversations in memory and, in a second run, over sockets: the same octets on both prove the fakes."""
    yield from _starting(request.param)
