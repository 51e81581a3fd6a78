"""How much is tried of a property: as the profile of hypothesis says (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import settings

#: Of the profile `quick`.
QUICK = 15


def examples(many: int) -> int:
    """The examples of one property: 15 where somebody waits; with the profile `pipeline` half as many again as `many`.

    In `quick` they are others every time, so that all who run the tests look at more of them together.
    """
    return many * 3 // 2 if settings.get_current_profile_name() == "pipeline" else min(many, QUICK)
