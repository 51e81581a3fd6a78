"""`egressproxy filters`: the filter types, with their phases and the schema of their config."""

from __future__ import annotations

import json

import click

from egressproxy.cli.options import output_option
from egressproxy.cli.suggestions import did_you_mean

__all__ = ["command"]


@click.command("filters")
@click.argument("name", required=False, metavar="[TYPE]")
@output_option
def command(name: str | None, output: str) -> None:
    """List the filter types, or describe one: where it may run, and the JSON Schema of its config.

    \b
    Examples:
      egressproxy filters
      egressproxy filters egressproxy.io/CredentialInjector:v1
      egressproxy filters -o json
    """
    from egressproxy.filters.catalog import Catalog

    catalog = Catalog()
    described = catalog.describe()
    if name is not None:
        found = catalog.get(name)
        if found is None:
            hint = did_you_mean(name, described, f"known are {', '.join(described)}", cutoff=0.4)
            raise click.BadParameter(f"unknown type {name!r}; {hint}", param_hint="TYPE")
        described = {found.name: described[found.name]}
    if output == "json" or name is not None:
        click.echo(json.dumps(described, indent=2))
        return
    for known, about in described.items():
        click.echo(f"{known}\n    {about['summary']}\n    phases: {', '.join(about['phases'])}")
        if about["published"]:
            click.echo(f"    published as: {', '.join(about['published'])}")
