"""`egressproxy schema`: what may be written in a manifest, as JSON Schema, from the very models that read it."""

from __future__ import annotations

import json
from difflib import get_close_matches

import click

__all__ = ["command"]


@click.command("schema", short_help="Print what a manifest may say.")
@click.option(
    "--kind", metavar="KIND", help="Print this kind's JSON Schema: HTTPRoute, or with its group Backend.egressproxy.io."
)
def command(kind: str | None) -> None:
    """Without --kind, list the kinds that are understood; with it, print the kind's JSON Schema.

    A name that several groups have (Backend) means the one of egressproxy.io.

    \b
    Examples:
      egressproxy schema
      egressproxy schema --kind EgressPolicy
      egressproxy schema --kind Backend.gateway.networking.k8s.io
    """
    from egressproxy.config.resources.kinds import KINDS
    from egressproxy.config.resources.meta import OUR_GROUP

    if kind is None:
        width = max(len(known.KIND) for known in KINDS)
        for known in KINDS:
            group = f"{known.GROUP}/" if known.GROUP else ""
            click.echo(f"{known.KIND:{width}}  {group}{', '.join(known.VERSIONS)}")
        return
    name, _, group = kind.partition(".")
    found = [known for known in KINDS if known.KIND.lower() == name.lower() and group in ("", known.GROUP)]
    if not found:
        names = sorted({known.KIND for known in KINDS})
        by_lower = {known.lower(): known for known in names}
        near = get_close_matches(name.lower(), by_lower, n=1)
        hint = f"did you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(names)}"
        raise click.BadParameter(f"unknown kind {kind!r}; {hint}", param_hint="--kind")
    chosen = next((known for known in found if known.GROUP == OUR_GROUP), found[0])
    schema = chosen.model_json_schema(by_alias=True)
    versions = [f"{chosen.GROUP}/{version}" if chosen.GROUP else version for version in chosen.VERSIONS]
    schema["properties"]["apiVersion"]["enum"] = versions
    schema["properties"]["kind"]["const"] = chosen.KIND
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    click.echo(json.dumps(schema, indent=2))
