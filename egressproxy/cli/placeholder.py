"""`egressproxy placeholder`: a text that clients hold instead of a key."""

from __future__ import annotations

import secrets

import click


@click.command("placeholder")
@click.option(
    "--prefix", default="sk-egress-", show_default=True, metavar="TEXT",
    help="The first characters: some clients check the form of their key.",
)  # fmt: skip
def command(prefix: str) -> None:
    """Make up a placeholder for a CredentialInjector, and print it.

    Write it into `placeholder` of the injector's config, and into the clients as their key. It is not secret.

    \b
    Examples:
      egressproxy placeholder
      egressproxy placeholder --prefix sk-ant-egress-
    """
    if len(prefix) > 200 or not all(char.isascii() and (char.isalnum() or char in "._~-") for char in prefix):
        raise click.BadParameter("write letters, digits and . _ ~ - alone, 200 at most", param_hint="--prefix")
    click.echo(prefix + secrets.token_hex(16))
