"""Numbers on the command line; errors name the range."""

from __future__ import annotations

import math
from collections.abc import Callable

import click

__all__ = ["seconds", "whole_number"]


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Returns a reader of integers from `least` to `most`, which raises click.BadParameter."""
    remedy = f"give one from {least:,} to {most:,}"

    def read(value: object) -> int:
        try:
            number = int(str(value))
        except ValueError:
            raise click.BadParameter(f"{str(value)!r} is not a whole number; {remedy}") from None
        if not least <= number <= most:
            raise click.BadParameter(f"{number} is too {'small' if number < least else 'large'}; {remedy}")
        return number

    return read


def seconds(most: int) -> Callable[[object], float]:
    """Returns a reader of times from 0 to `most` seconds, fractions included, which raises click.BadParameter."""
    remedy = f"give seconds from 0 to {most:,}, such as 10 or 2.5, without a unit"

    def read(value: object) -> float:
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise click.BadParameter(f"{str(value)!r} is not a number; {remedy}")
        if not 0 <= number <= most:
            raise click.BadParameter(f"{value} is too {'small' if number < 0 else 'large'}; {remedy}")
        return number

    return read
