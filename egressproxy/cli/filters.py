"""`egressproxy filters`: the catalogue of filter types, with their phases and the schema of their config."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from egressproxy.cli.options import config_option
from egressproxy.cli.problems import show_problems
from egressproxy.model.near_names import did_you_mean

if TYPE_CHECKING:
    from egressproxy.doors.catalog import Catalog


class _OrNew(click.Command):
    """The first word `new` is another command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["new"]:
            from egressproxy.cli.new_filter import new

            return new.make_context(f"{info_name} new", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("filters", cls=_OrNew)
@click.argument("name", required=False, metavar="[TYPE | new NAME]")
@config_option("A manifest, or a folder of them, whose FilterTypes are listed, too; may be given again.")
@click.option(
    "-o", "--output", type=click.Choice(("text", "wide", "json", "yaml")), default="text", show_default=True,
    help="wide: one line for each type. One TYPE is described as json, or as yaml.",
)  # fmt: skip
def command(name: str | None, config: tuple[Path, ...], output: str) -> None:
    """List the filter types, or describe one: where it may run, and the JSON Schema of its config. Or write the files
    of a new filter.

    The list includes types of installed packages, which are imported for it, and with --config the FilterTypes of these
    manifests.

    \b
    Examples:
      egressproxy filters
      egressproxy filters egressproxy.io/CredentialInjector:v1
      egressproxy filters -o wide -c config/
      egressproxy filters -o json
      egressproxy filters new max-tokens --body buffer
    """
    from egressproxy.doors.catalog import Catalog

    catalog = Catalog()
    described = {**catalog.describe(), **_declared(config, catalog)}
    if name is not None:
        found = catalog.get(name)
        full_name = found.name if found is not None else name
        if full_name not in described:
            hint = did_you_mean(name, described, f"known are {', '.join(described)}", cutoff=0.4)
            raise click.BadParameter(f"unknown type {name!r}; {hint}", param_hint="TYPE")
        described = {full_name: described[full_name]}
        output = "json" if output == "text" else output
    described = dict(sorted(described.items()))
    if output == "json":
        click.echo(json.dumps(described, indent=2))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=110), nl=False)
    elif output == "wide":
        click.echo("\n".join(_table(described)))
    else:
        for known, about in described.items():
            click.echo("\n".join(_lines(known, about)))


def _declared(config: tuple[Path, ...], catalog: Catalog) -> dict[str, dict[str, Any]]:
    """The types that FilterType objects in these files make known, described; what is wrong in a file ends the verb."""
    if not config:
        return {}
    from egressproxy.config.compile.extensions.filter_types import FilterTypes
    from egressproxy.config.compile.gateways.gateway_classes import GatewayClasses
    from egressproxy.config.compile.references import References
    from egressproxy.config.reading.load import load
    from egressproxy.config.reading.problems import ConfigError

    try:
        resources = load(config)
    except ConfigError as error:
        show_problems(error.problems, sys.stderr)
        raise SystemExit(2) from None
    types = FilterTypes(resources, catalog, References(resources), GatewayClasses(resources).types)
    return {each.name: each.described for each in types.all()}


def _lines(name: str, about: dict[str, Any]) -> list[str]:
    lines = [name, f"    {about['summary']}"] if about["summary"] else [name]
    if "problem" in about:
        return [*lines, f"    cannot be used: {about['problem']}"]
    lines.append(f"    phases: {', '.join(about['phases'])}")
    if about["published"]:
        lines.append(f"    published as: {', '.join(about['published'])}")
    lines.append(f"    support: {about['support']}")
    if about["source"] != "built-in":
        lines.append(f"    from: {about['source']}")
    return lines


def _table(described: dict[str, dict[str, Any]]) -> list[str]:
    """One line for each type, in columns."""
    rows = [("TYPE", "SUPPORT", "FROM", "PHASES")]
    for name, about in described.items():
        phases = f"cannot be used: {about['problem']}" if "problem" in about else ",".join(about["phases"])
        rows.append((name, about["support"], about["source"], phases))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join((*map(str.ljust, row[:3], widths), row[3])) for row in rows]
