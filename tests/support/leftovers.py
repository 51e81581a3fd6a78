"""Leftovers: what is still there of some kinds when everybody has left, and nobody has collected garbage.

left = leftovers_of(Exchange, UpstreamConnection)  # a fixture of the test module

def test_nothing_is_left_of_a_request(left: Leftovers):
    ...
    assert left.of(talk) == Counter()
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.conversation import Conversation


class Leftovers:
    """Objects of these kinds that the test has left alive; what other tests of the process keep does not count."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._of_others = self._there()  # held, so that nothing new has the id of one of them

    def of(self, talk: Conversation) -> Counter[str]:
        """The names of their types, after everybody has left the conversation."""
        talk.everybody_leaves()
        talk.act(lambda: None)
        of_others = {id(found) for found in self._of_others}
        return Counter(type(found).__name__ for found in self._there() if id(found) not in of_others)

    def _there(self) -> list[object]:
        return [found for found in gc.get_objects() if isinstance(found, self._kinds)]


def leftovers_of(*kinds: type) -> Callable[..., Any]:
    """A fixture that keeps the garbage collector off during a test, and counts what stays of these kinds."""

    @pytest.fixture
    def left() -> Iterator[Leftovers]:
        gc.collect()
        gc.disable()
        try:
            yield Leftovers(*kinds)
        finally:
            gc.enable()

    return left
