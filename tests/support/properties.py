"""How much is tried of a property: all of it in the pipeline, which tries the same every time."""

from __future__ import annotations

import os


def examples(many: int) -> int:
    """The examples of one property: so many in the pipeline (`CI`), a quarter of them where somebody waits.

    Elsewhere they are others every time, so that all who run the tests look at more of them together.
    """
    return many if os.environ.get("CI") else many // 4
