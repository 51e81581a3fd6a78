"""Verbs that are given their configuration by --config: a path without it is told what to write."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

__all__ = ["ConfigByOption"]


class ConfigByOption(click.Command):
    """A verb whose arguments, if any, are no paths. What is left over raises click.UsageError with the remedy."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        before = ["egressproxy", ctx.info_name or "", *args]
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            # A path may stand in the place of an argument, and push out one of them.
            taken = [
                str(ctx.params[each.name]) for each in self.params if isinstance(each, click.Argument) and each.name
            ]
            raise click.UsageError(_told(before, left, [*taken, *left]), ctx)
        return left


def _told(written: list[str], left: list[str], words: list[str]) -> str:
    paths = [word for word in words if Path(word).exists()]
    meant = paths or left
    rest = [word for word in written if word not in meant]
    command = shlex.join([*rest, *(part for path in meant for part in ("--config", path))])
    named = shlex.join(meant)
    if paths:
        return f"{named} is given without --config: write {command}"
    return f"{named}: no argument goes here, and there is no such file; a configuration is given by --config PATH"
