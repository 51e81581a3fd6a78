"""`egressproxy cache show` and `purge`: what the Cache filters of a running process keep, over all of its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from egressproxy.cli.asking import ADMIN, ask
from egressproxy.cli.options import admin_option, output_option
from egressproxy.cli.styled_lines import printable

__all__ = ["command"]


@click.group("cache")
def command() -> None:
    """Show or purge what filters of type egressproxy.io/Cache:v1 keep, over all workers of a running process.

    \b
    Examples:
      egressproxy cache show
      egressproxy cache purge --route agents/openai --path /v1/models
      egressproxy cache purge --all
    """


@command.command("show")
@output_option
@admin_option("The admin address of the process.")
def show(output: str, admin: tuple[str, int] | None) -> None:
    """Print entries, bytes and hits of each cache.

    \b
    Examples:
      egressproxy cache show
      egressproxy cache show -o json --admin 127.0.0.1:15001

    Exit status: 0, or 2 for wrong usage or no response.
    """
    found = ask(admin or ADMIN, "/cache")
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for each in found["caches"]:
        click.echo(f"{_name(each)}: {_counted(each['entries'])}, {each['bytes']:,} bytes, {each['hits']:,} hits")
    if not found["caches"]:
        click.echo("there is no cache")


@command.command("purge", short_help="Take answers out of the caches.")
@click.option("--route", metavar="NS/NAME", default="", help="Answers to requests of this route.")
@click.option("--path", metavar="PREFIX", default="", help="Answers to paths that begin so, without their query.")
@click.option(
    "--identity", metavar="NS/SA", default="",
    help="Answers for this service account; -/- for clients without an identity.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every answer.")
@click.option(
    "--api-token-file", "token", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="The token of `run --api-token-file`, where the process has one.",
)  # fmt: skip
@output_option
@admin_option("The admin address of the process.")
def purge(
    route: str,
    path: str,
    identity: str,
    everything: bool,
    token: Path | None,
    output: str,
    admin: tuple[str, int] | None,
) -> None:
    """Take answers out of the caches: those for which all of --route, --path and --identity hold, or --all.

    An answer that is on its way at this moment is given to its client, and not kept.

    \b
    Examples:
      egressproxy cache purge --route agents/openai --path /v1/models
      egressproxy cache purge --identity agents/worker
      egressproxy cache purge --all --api-token-file token

    Exit status: 0 done in every worker, 2 wrong usage, no response or a refusal.
    """
    chosen = [(name, value) for name, value in (("route", route), ("path", path), ("identity", identity)) if value]
    if bool(chosen) == everything:
        raise click.UsageError("say which answers: --route, --path, --identity or several of these; or --all alone")
    try:
        value = token.read_text("ascii").strip() if token is not None else ""
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--api-token-file {token} cannot be read ({type(error).__name__})") from None
    found = ask(admin or ADMIN, "/cache/purge", chosen or [("all", "1")], method="POST", token=value)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for each in found["caches"]:
        click.echo(f"{_name(each)}: {_counted(each['purged'])} purged, {each['entries']:,} left")
    if not found["caches"]:
        click.echo("there is no cache")


def _name(each: dict[str, Any]) -> str:
    return printable(f"{each['from']} {each['filter']}")


def _counted(number: int) -> str:
    return f"{number:,} {'answer' if number == 1 else 'answers'}"
