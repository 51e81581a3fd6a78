from __future__ import annotations

import pytest

from egressproxy.model.work import BlockingWork, at_once


def test_all_steps_are_taken_and_what_blocks_is_called_between_them():
    seen: list[str] = []

    def work() -> BlockingWork[str]:
        seen.append("first")
        yield None
        yield lambda: seen.append("blocking")
        seen.append("last")
        return "made"

    assert at_once(work()) == "made"
    assert seen == ["first", "blocking", "last"]


def test_what_blocks_may_fail():
    def fail() -> None:
        raise ValueError("no")

    def work() -> BlockingWork[None]:
        yield fail

    with pytest.raises(ValueError, match="no"):
        at_once(work())
