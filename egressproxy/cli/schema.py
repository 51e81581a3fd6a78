"""`egressproxy schema`: the JSON Schema of manifests, from the models that read them."""

from __future__ import annotations

import json

import click

from egressproxy.model.near_names import did_you_mean


@click.command("schema")
@click.argument("name", metavar="[KIND]", required=False)
@click.option("--kind", metavar="KIND", help="Only this kind: HTTPRoute, or with its group Backend.egressproxy.io.")
@click.option("--list", "list_kinds", is_flag=True, help="List the kinds instead.")
def command(name: str | None, kind: str | None, list_kinds: bool) -> None:
    """Print the JSON Schema of every kind, for editors, or of one.

    If several groups have the kind (Backend), the kind of egressproxy.io is meant.

    \b
    Examples:
      egressproxy schema > egressproxy.schema.json
      egressproxy schema --list
      egressproxy schema EgressPolicy
      egressproxy schema --kind Backend.gateway.networking.k8s.io

    \b
    In an editor with a YAML language server, as the first line of a manifest:
      # yaml-language-server: $schema=egressproxy.schema.json
    """
    from egressproxy.config.resources.kinds import KINDS
    from egressproxy.config.resources.meta import OUR_GROUP
    from egressproxy.config.schema import ManifestJsonSchema, json_schema

    if list_kinds:
        width = max(len(known.KIND) for known in KINDS)
        for known in KINDS:
            group = f"{known.GROUP}/" if known.GROUP else ""
            click.echo(f"{known.KIND:{width}}  {group}{', '.join(known.VERSIONS)}")
        return
    if name is not None and kind is not None:
        raise click.UsageError(f"{name} and --kind {kind}: give one kind")
    kind = kind or name
    if kind is None:
        click.echo(json.dumps(json_schema(), indent=2))
        return
    kind_name, _, group = kind.partition(".")
    found = [known for known in KINDS if known.KIND.lower() == kind_name.lower() and group in ("", known.GROUP)]
    if not found:
        names = sorted({known.KIND for known in KINDS})
        hint = did_you_mean(kind_name, names, f"known are {', '.join(names)}")
        raise click.BadParameter(f"unknown kind {kind!r}; {hint}", param_hint="KIND")
    chosen = next((known for known in found if known.GROUP == OUR_GROUP), found[0])
    schema = chosen.model_json_schema(by_alias=True, schema_generator=ManifestJsonSchema)
    versions = [f"{chosen.GROUP}/{version}" if chosen.GROUP else version for version in chosen.VERSIONS]
    schema["properties"]["apiVersion"]["enum"] = versions
    schema["properties"]["kind"]["const"] = chosen.KIND
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    click.echo(json.dumps(schema, indent=2))
