"""`egressproxy reload`: makes a running process read its configuration again, and prints the outcome."""

from __future__ import annotations

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import admin_option


@click.command("reload")
@click.option(
    "--acknowledge", metavar="MARK", default="",
    help="Put the configuration with this mark into service although it allows what was recently denied"
    " (`run --guarded`). The refusal contains the mark; any other configuration is still refused.",
)  # fmt: skip
@admin_option("The admin address of the process; it must be on loopback.")
def command(acknowledge: str, admin: AdminAddress) -> None:
    """Read the configuration again, as SIGHUP does, and wait for the outcome.

    \b
    Examples:
      egressproxy reload
      egressproxy reload --acknowledge 6d1f0c9a2b3e

    Exit status: 0 the configuration is in service, 1 it is refused (and why), 2 wrong usage or no response.
    """
    ask(admin, "/reload", [("acknowledge", acknowledge)] if acknowledge else [], method="POST")
    click.echo("the configuration is in service")
