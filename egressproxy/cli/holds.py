"""`egressproxy holds list`, `approve` and `deny`: requests that wait for a person in a running process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import asking_options
from egressproxy.cli.styled_lines import near_lines, print_found, printable
from egressproxy.cli.suggestions import listed
from egressproxy.model.admin_requests import MAX_PAGE

_waiting = listed("/holds", "holds", "id", "method", "authority")


@click.group("holds")
def command() -> None:
    """Show, approve or deny requests that wait at filters of type egressproxy.io/ApprovalHold:v1, over all workers.

    \b
    Examples:
      egressproxy holds list
      egressproxy holds approve 5e1f0b6c2d3a4f58 --by alice
      egressproxy holds deny 5e1f0b6c2d3a4f58 --why "not this bucket"
    """


@command.command("list", short_help="Show requests that wait.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="The largest number of requests to show.",
)
@asking_options
def list_holds(limit: int, output: str, admin: AdminAddress) -> None:
    """List requests that wait for approval, soonest expiry first: id, client, target, time left. A caller that may not
    decide sees no query and no body.

    \b
    Examples:
      egressproxy holds list
      egressproxy holds list --limit 1000
      egressproxy holds list -o json

    Exit status: 0, or 2 for wrong usage or no response.
    """
    found = _first(limit, admin)
    print_found(found, output, lambda: _show(found))


def _show(found: dict[str, Any]) -> None:
    for each in found["holds"]:
        click.echo(hold_line(each))
        for line in _content(each):
            click.echo(f"    {printable(line)}")
    if not found["holds"]:
        click.echo("nothing waits")
    elif found["continue"]:
        click.echo(f"… {found['waiting']} wait; --limit {found['waiting']} shows all of them")


def _first(limit: int, admin: AdminAddress) -> dict[str, Any]:
    """What /holds answers, with so many requests, of as many pages as that needs."""
    found: dict[str, Any] = {"holds": [], "continue": ""}
    while True:
        pairs = [("limit", str(min(limit - len(found["holds"]), MAX_PAGE)))]
        pairs += [("continue", found["continue"])] if found["continue"] else []
        page = ask(admin, "/holds", pairs)
        found = {**page, "holds": [*found["holds"], *page["holds"]]}
        if not page["continue"] or len(found["holds"]) >= limit:
            return found


def hold_line(hold: dict[str, Any]) -> str:
    """A request that waits: its id, who asks for what, and how long it has."""
    tool = f" tool {hold['tool']}" if hold["tool"] else ""
    query = f"?{hold['query']}" if hold.get("query") else ""
    who = hold["identity"] if hold["identity"] != "-" else hold["client"]
    size = f"{hold['bodyBytes']} bytes, sha256 {hold['bodySha256'][:16]}"
    path = "" if hold["method"] == "CONNECT" else hold["path"]  # which is the authority once more there
    what = f"{hold['method']} {hold['authority']}{path}{query}{tool}"
    return printable(f"{hold['id']}  {who}  {what}  ({size})  {hold['leftSeconds']:.0f} s left")


def _content(hold: dict[str, Any]) -> Iterator[str]:
    """What is shown of the body: the calls of tools, or how it begins."""
    for call in hold.get("calls", ()):
        yield f"calls {call['tool']} {call['arguments']}"
    if hold.get("body") and (not hold["calls"] or hold["body"].startswith("[")):  # of several messages all are shown
        yield f"body {hold['body']}"
    if hold.get("isCut"):
        yield "… and more, which is not shown: the digests are of all of it"
    elif hold["bodyBytes"] and not hold.get("body"):
        yield "the body is not shown"


@command.command("approve", short_help="Approve a request.")
@click.argument("key", metavar="ID", shell_complete=_waiting)
@click.option("--by", metavar="NAME", default="", help="Who approves, for the access log and Events.")
@click.option("--why", metavar="TEXT", default="", help="Why, for the access log and Events.")
@asking_options
def approve(key: str, by: str, why: str, output: str, admin: AdminAddress) -> None:
    """Approve the request with this ID, and no other.

    \b
    Examples:
      egressproxy holds approve 5e1f0b6c2d3a4f58 --by alice

    Exit status: 0 done, 1 nothing with this ID waits (any more), 2 wrong usage, no response or a refusal.
    """
    _decide("approve", key, by, why, output, admin)


@command.command("deny", short_help="Refuse a request.")
@click.argument("key", metavar="ID", shell_complete=_waiting)
@click.option("--by", metavar="NAME", default="", help="Who denies, for the access log and Events.")
@click.option("--why", metavar="TEXT", default="", help="Why, for the access log, Events and the client.")
@asking_options
def deny(key: str, by: str, why: str, output: str, admin: AdminAddress) -> None:
    """Refuse the request with this ID (403).

    \b
    Examples:
      egressproxy holds deny 5e1f0b6c2d3a4f58 --why "not this bucket"

    Exit status: 0 done, 1 nothing with this ID waits (any more), 2 wrong usage, no response or a refusal.
    """
    _decide("deny", key, by, why, output, admin)


def _decide(verdict: str, key: str, by: str, why: str, output: str, admin: AdminAddress) -> None:
    pairs = [(verdict, key), *((name, text) for name, text in (("by", by), ("why", why)) if text)]

    def near() -> str:
        ids = [each["id"] for each in ask(admin, "/holds", [("limit", str(MAX_PAGE))])["holds"]]
        return near_lines(key, ids, "nothing waits", "what waits has the ids")

    found = ask(admin, "/holds", pairs, method="POST", not_found=1, near=near)
    print_found(found, output, lambda: click.echo(f"done; {found['waiting']} wait"))
