"""Numbers on the command line; errors name the range."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import click

__all__ = ["seconds", "whole_number"]

_Number = TypeVar("_Number", int, float)


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Returns a reader of integers from `least` to `most`, which raises click.BadParameter."""
    return _reader(int, "a whole number", least, most, f"give one from {least:,} to {most:,}")


def seconds(most: int) -> Callable[[object], float]:
    """Returns a reader of times from 0 to `most` seconds, fractions included, which raises click.BadParameter."""
    remedy = f"give seconds from 0 to {most:,}, such as 10 or 2.5, without a unit"
    return _reader(float, "a number", 0, most, remedy)


def _reader(
    read: Callable[[str], _Number], what: str, least: float, most: float, remedy: str
) -> Callable[[object], _Number]:
    def bounded(value: object) -> _Number:
        try:
            number = read(str(value))
        except ValueError:
            number = None
        if number is None or math.isnan(number):
            raise click.BadParameter(f"{str(value)!r} is not {what}; {remedy}")
        if not least <= number <= most:
            raise click.BadParameter(f"{value} is too {'small' if number < least else 'large'}; {remedy}")
        return number

    return bounded
