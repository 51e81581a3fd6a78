from __future__ import annotations

import pytest

from egressproxy.model.steps import Cooperative, finished


def test_all_steps_are_taken_and_what_blocks_is_called_between_them():
    seen: list[str] = []

    def work() -> Cooperative[str]:
        seen.append("first")
        yield None
        yield lambda: seen.append("blocking")
        seen.append("last")
        return "made"

    assert finished(work()) == "made"
    assert seen == ["first", "blocking", "last"]


def test_what_blocks_may_fail():
    def fail() -> None:
        raise ValueError("no")

    def work() -> Cooperative[None]:
        yield fail

    with pytest.raises(ValueError, match="no"):
        finished(work())
