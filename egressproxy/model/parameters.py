"""Parameters of a request to the admin address: each of a known name, and there once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def read_parameters(pairs: Iterable[tuple[str, str]], names: Sequence[str]) -> dict[str, str]:
    """The values by name. Raises ValueError, a sentence."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in names:
            raise ValueError(f"parameter {name} is not known; there are {', '.join(names)}")
        if name in found:
            raise ValueError(f"parameter {name} is there twice")
        found[name] = value
    return found
