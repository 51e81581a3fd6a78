"""`egressproxy denials`: what was denied lately, why, and what would allow it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from time import localtime, strftime
from typing import Any, Final

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import asking_options
from egressproxy.cli.styled_lines import StyledLine, print_found, print_lines

_DIFF_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


@click.command("denials")
@click.option(
    "--minutes", type=click.IntRange(1, 1440), default=60, show_default=True, help="Denials of so many minutes."
)
@click.option("--namespace", metavar="NS", default="", help="Denials of clients in this namespace alone.")
@asking_options
def command(minutes: int, namespace: str, output: str, admin: AdminAddress) -> None:
    """Show what a running gateway has denied lately, over all workers: grouped by destination and caller, the most
    frequent first, each with why, what to do, and the change of a policy that would allow it.

    A change is one entry for one host and port; it was compiled, and the request was decided again with it. None is
    shown where no such change would help: for closed addresses, limits, filters, and `deny` entries. Nothing is
    changed: edit the file, or apply the object.

    \b
    Examples:
      egressproxy denials
      egressproxy denials --minutes 5 --namespace agents
      egressproxy denials -o json | jq -r '.denials[] | .change.diff // empty'

    Exit status: 0, or 2 for wrong usage or no response.
    """
    pairs = [("minutes", str(minutes)), *([("namespace", namespace)] if namespace else [])]
    found = ask(admin, "/denials", pairs)
    nothing: StyledLine = [(f"nothing was denied in the last {minutes} minutes", "")]
    lines = chain.from_iterable(map(_lines, found["denials"])) if found["denials"] else [nothing]
    print_found(found, output, lambda: print_lines(lines, sys.stdout))


def _lines(group: Mapping[str, Any]) -> Iterator[StyledLine]:
    """One group: how often, what, by whom, why, what to do, and the change."""
    yield [
        (f"{group['count']} x {group['method']} {group['destination']}", "bold"),
        (f" by {caller_of(group)}", ""), (f"  {group['reason']}", "red"),
        (f"  last {clock(group['last'])}, request {group['request_id']}", "dim"),
    ]  # fmt: skip
    yield [("  why     ", "dim"), (group["why"], "")]
    if group["allowed_now"]:
        yield [("  now     ", "dim"), ("the configuration in service allows it", "green")]
        return
    yield [("  do      ", "dim"), (group["remedy"], "")]
    change = group["change"]
    if change is not None:
        where = f" in {change['file']}" if change["file"] else ""
        yield [("  change  ", "dim"), (f"{change['object']}{where}", "")]
        for line in change["diff"].splitlines():
            yield [(f"    {line}", _DIFF_STYLES.get(line[:1], ""))]


def caller_of(values: Mapping[str, Any]) -> str:
    """Who a client is, in one word: its service account, its name, or its address."""
    if values.get("service_account", "-") != "-":
        return f"{values['namespace']}/{values['service_account']}"
    name = values.get("identity", "-")
    return str(name if name != "-" else values.get("client", "-"))


def clock(seconds: float) -> str:
    """The time of day here."""
    return strftime("%H:%M:%S", localtime(seconds))
