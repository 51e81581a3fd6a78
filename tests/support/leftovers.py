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
    """Objects of these kinds that have come since, and are still alive."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        gc.freeze()  # what is there already is not looked at: the process has a million objects of other tests

    def of(self, talk: Conversation) -> Counter[str]:
        """The names of their types, after everybody has left the conversation."""
        talk.everybody_leaves()
        talk.act(lambda: None)
        return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, self._kinds))


def leftovers_of(*kinds: type) -> Callable[..., Any]:
    """A fixture that keeps the garbage collector off during a test, and counts what stays of these kinds.

    What is there when the test begins stays frozen to the end of the process, so that collections are quick.
    """

    @pytest.fixture
    def left() -> Iterator[Leftovers]:
        gc.collect()
        gc.disable()
        try:
            yield Leftovers(*kinds)
        finally:
            gc.enable()

    return left
