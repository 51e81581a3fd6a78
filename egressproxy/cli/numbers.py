"""Numbers on the command line: what is none, or too small or too great, is told with what would do."""

from __future__ import annotations

import math

import click

__all__ = ["Seconds", "WholeNumber"]


class WholeNumber(click.ParamType):
    """An integer from `least` to `most`. Raises click.BadParameter."""

    name = "integer"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        remedy = f"give one from {self._least:,} to {self._most:,}"
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is not a whole number; {remedy}", param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{number} is too {'small' if number < self._least else 'great'}; {remedy}", param, ctx)
        return number


class Seconds(click.ParamType):
    """A time from 0 to `most` seconds, with or without a fraction. Raises click.BadParameter."""

    name = "seconds"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        remedy = f"give seconds from 0 to {self._most:,}, such as 10 or 2.5, without a unit"
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            self.fail(f"{str(value)!r} is not a number; {remedy}", param, ctx)
        if not 0 <= seconds <= self._most:
            self.fail(f"{value} is too {'small' if seconds < 0 else 'great'}; {remedy}", param, ctx)
        return seconds
