"""Verbs that take their configuration from --config: a path without it gets an error that says what to write."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


class ConfigByOption(click.Command):
    """A verb whose arguments are not paths. Further arguments raise click.UsageError with the remedy."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click's; raises click.UsageError for further arguments."""
        ctx.allow_extra_args = True
        before = ["egressproxy", ctx.info_name or "", *args]
        left = super().parse_args(ctx, args)
        if left and not ctx.resilient_parsing:
            # A path may be in the place of an argument, which is then left over.
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
    told = f"{named}: unexpected argument, and no such file; give a configuration with --config PATH"
    return f"{told}, and a command behind --" if written[1] == "run" else told
