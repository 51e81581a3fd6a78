"""`egressproxy kill-switch list`, `kill` and `restore`: clients that are out of service in a running process."""

from __future__ import annotations

from typing import Any

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import asking_options
from egressproxy.cli.styled_lines import near_lines, print_found, printable
from egressproxy.cli.suggestions import listed
from egressproxy.model.encoding import rfc3339


@click.group("kill-switch")
def command() -> None:
    """Block a client at once, and unblock it: in all workers of a running process, whatever policies say.

    \b
    Examples:
      egressproxy kill-switch kill system:serviceaccount:agents:worker --why "leaks keys"
      egressproxy kill-switch list
      egressproxy kill-switch restore system:serviceaccount:agents:worker
    """


@command.command("list", short_help="Show blocked identities.")
@asking_options
def list_killed(output: str, admin: AdminAddress) -> None:
    """Print the blocked identities, with time and reason of each block.

    \b
    Examples:
      egressproxy kill-switch list
      egressproxy kill-switch list -o json --admin 127.0.0.1:15910

    Exit status: 0, or 2 for wrong usage or no response.
    """
    found = ask(admin, "/kill-switch")
    print_found(found, output, lambda: _show(found))


@command.command("kill", short_help="Block an identity.")
@click.argument("identity")
@click.option("--why", metavar="TEXT", default="", help="The reason, which `list` shows; clients do not see it.")
@asking_options
def kill(identity: str, why: str, output: str, admin: AdminAddress) -> None:
    """Refuse every request of IDENTITY from now on (403), and cut its exchanges in progress, tunnels included.

    IDENTITY is the name in the access log (`identity`). A service account is the same client as
    system:serviceaccount:NAMESPACE:NAME and as spiffe://DOMAIN/ns/NAMESPACE/sa/NAME. The block holds until `restore`,
    over reloads and restarts of workers. With --state-dir it also holds over a restart of the process.

    \b
    Examples:
      egressproxy kill-switch kill system:serviceaccount:agents:worker
      egressproxy kill-switch kill agents/users#alice --why "stolen password" --api-token-file token

    Exit status: 0 done in every worker, 2 wrong usage, no response or a refusal.
    """
    _change([("kill", identity), *([("why", why)] if why else [])], output, admin)


@command.command("restore", short_help="Unblock an identity.")
@click.argument("identity", shell_complete=listed("/kill-switch", "killed", "identity", "why"))
@asking_options
def restore(identity: str, output: str, admin: AdminAddress) -> None:
    """Unblock IDENTITY. Each form of the name of a service account works.

    \b
    Examples:
      egressproxy kill-switch restore system:serviceaccount:agents:worker

    Exit status: 0 done in every worker, 1 nobody is out of service under this name, 2 wrong usage, no response or a
    refusal.
    """
    _change([("restore", identity)], output, admin)


def _change(pairs: list[tuple[str, str]], output: str, admin: AdminAddress) -> None:
    def near() -> str:
        killed = [each["identity"] for each in ask(admin, "/kill-switch")["killed"]]
        return near_lines(pairs[0][1], killed, "nobody is out of service", "out of service are")

    found = ask(admin, "/kill-switch", pairs, method="POST", not_found=1, near=near)
    print_found(found, output, lambda: _say_what_was_done(pairs[0], found, admin))


def _say_what_was_done(change: tuple[str, str], found: dict[str, Any], admin: AdminAddress) -> None:
    verb, identity = change
    if verb == "restore":
        click.echo("done in every worker")
        return
    click.echo(f"done in every worker; {found['cut']} exchange{'s were' if found['cut'] != 1 else ' was'} cut")
    if not found["kept"]:
        click.echo("a restart of the process ends the block, because the process has no --state-dir", err=True)
    _say_if_unseen(identity, admin)


def _say_if_unseen(identity: str, admin: AdminAddress) -> None:
    """A name that no client has had lately may be a slip, and then the client that was meant goes on."""
    from egressproxy.gateway.identity.killed_identities import KilledIdentities, KilledIdentity
    from egressproxy.model.caller_identity import CallerIdentity

    killed = KilledIdentities((KilledIdentity(identity),))
    seen = [
        CallerIdentity(each["namespace"], each["service_account"], name=each["name"])
        for each in ask(admin, "/decisions")["decisions"]
    ]
    names = sorted({each.name for each in seen} - {"-"})
    if names and not any(map(killed.has, seen)):
        warning = "none of the latest requests was of a client of this name: is it `identity` of the access log?"
        click.echo(f"{warning}\n{near_lines(identity, names, '', 'clients were')}", err=True)


def _show(found: dict[str, Any]) -> None:
    for each in found["killed"]:
        since = rfc3339(each["since"])
        why = f": {printable(each['why'])}" if each["why"] else ""
        click.echo(f"{printable(each['identity'])} since {since}{why}")
    if not found["killed"]:
        click.echo("nobody is out of service")
