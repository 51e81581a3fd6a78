"""`egressproxy cache show` and `purge`: what the Cache filters of a running process keep, over all of its workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import asking_options
from egressproxy.cli.styled_lines import printable
from egressproxy.cli.suggestions import ROUTES


@click.group("cache")
def command() -> None:
    """Show or purge the caches of filters of type egressproxy.io/Cache:v1, over all workers of a running process.

    \b
    Examples:
      egressproxy cache show
      egressproxy cache purge --route agents/openai --path /v1/models
      egressproxy cache purge --all
    """


@command.command("show")
@asking_options
def show(output: str, admin: AdminAddress) -> None:
    """Print entries, bytes and hits of each cache.

    \b
    Examples:
      egressproxy cache show
      egressproxy cache show -o json --admin 127.0.0.1:15910

    Exit status: 0, or 2 for wrong usage or no response.
    """
    found = ask(admin, "/cache")
    _print(
        found,
        output,
        lambda each: f"{_counted(each['entries'])}, {each['bytes']:,} bytes, {each['hits']:,} hits",
    )


@command.command("purge", short_help="Remove answers from the caches.")
@click.option(
    "--route", metavar="NS/NAME", default="", shell_complete=ROUTES, help="Answers to requests of this route."
)
@click.option("--path", metavar="PREFIX", default="", help="Answers to paths with this prefix, without the query.")
@click.option(
    "--identity", metavar="NS/SA", default="",
    help="Answers for this service account; -/- for clients without an identity.",
)  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Every answer.")
@asking_options
def purge(
    route: str,
    path: str,
    identity: str,
    everything: bool,
    output: str,
    admin: AdminAddress,
) -> None:
    """Remove the answers that match all of --route, --path and --identity, or every answer with --all.

    An answer that is on its way at this moment still reaches its client, and is not kept.

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
    found = ask(admin, "/cache/purge", chosen or [("all", "1")], method="POST")
    _print(found, output, lambda each: f"{_counted(each['purged'])} purged, {each['entries']:,} left")


def _print(found: dict[str, Any], output: str, words: Callable[[dict[str, Any]], str]) -> None:
    """Print what a process says of its caches: as JSON, or a line for each with these words."""
    if output == "json":
        click.echo(json.dumps(found, indent=2))
        return
    for each in found["caches"]:
        name = printable(f"{each['from']} {each['filter']}")
        click.echo(f"{name}: {words(each)}")
    if not found["caches"]:
        click.echo("there is no cache")


def _counted(number: int) -> str:
    return f"{number:,} {'answer' if number == 1 else 'answers'}"
