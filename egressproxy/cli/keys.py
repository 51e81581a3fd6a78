"""`egressproxy keys new`, `list` and `revoke`: API keys of clients, as records in manifests of Secrets."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from egressproxy.ir.identity import ApiKeyIR

_PATHS: Final = click.Path(exists=True, path_type=Path)


@click.group("keys")
def command() -> None:
    """Make, list and revoke API keys of clients, whom an EgressPolicy knows by them (apiKeys of its identity).

    \b
    Examples:
      egressproxy keys new --name ci --expires 30d --secret agents/keys --secret-file policies/keys.yaml
      egressproxy keys list policies/
      egressproxy keys revoke ci-3f2a9c policies/keys.yaml
    """


def _expires(_: click.Context, __: click.Parameter, value: str | None) -> str:
    """The end date as `notAfter` has it; "" for none."""
    if not value:
        return ""
    from egressproxy.model.encoding import rfc3339, time_span

    if 0 < (seconds := time_span(value) or 0.0) < 1e11:  # a later year has five digits
        return rfc3339(time() + seconds)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        moment = None
    if moment is None:
        raise click.BadParameter(f"{value}: write 30d, 12h, or a time such as 2027-01-31T00:00:00Z")
    ends = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if ends <= time():
        raise click.BadParameter(f"{value} is over: write a time to come")
    return rfc3339(ends)


@command.command("new", short_help="Make a key.")
@click.option("--name", required=True, metavar="NAME", help="The client's name; keys of one name are one client.")
@click.option("--namespace", metavar="NAME", help="The namespace of the client.")
@click.option("--service-account", metavar="NAME", help="The service account of the client, with --namespace.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the client; may be given again.")
@click.option("--routes", multiple=True, metavar="ROUTE,…", help="The only routes, as NAME or NAMESPACE/NAME.")
@click.option("--models", multiple=True, metavar="MODEL,…", help="The only models, with * for any characters.")
@click.option(
    "--expires", "not_after", callback=_expires, metavar="TIME",
    help="When it ends: 30d, 12h, or a time. Default: never.",
)  # fmt: skip
@click.option("--prefix", default="", metavar="TEXT", help="What the key begins with, such as sk-ant-.")
@click.option(
    "--secret",
    default="keys",
    show_default=True,
    metavar="[NAMESPACE/]NAME",
    help="The Secret that gets the record, in namespace default without one.",
)
@click.option(
    "--secret-file", type=click.Path(path_type=Path), metavar="PATH",
    help="The manifest of the Secret, or a folder with a file for each entry. Default: print a manifest.",
)  # fmt: skip
def new(
    name: str,
    namespace: str | None,
    service_account: str | None,
    groups: tuple[str, ...],
    routes: tuple[str, ...],
    models: tuple[str, ...],
    not_after: str,
    prefix: str,
    secret: str,
    secret_file: Path | None,
) -> None:
    """Make up a key, and print it once: only its hash is stored.

    With --secret-file the record goes into that file, and the key to the standard output. Without, the manifest of a
    Secret goes to the standard output, and the key to the standard error.

    \b
    Examples:
      egressproxy keys new --name ci --expires 30d --secret agents/keys --secret-file policies/keys.yaml
      egressproxy keys new --name ci --models 'gpt-*,o4-mini' --routes openai > keys.yaml

    Exit status: 0, 1 the file cannot be changed, 2 wrong usage.
    """
    from egressproxy.cli.key_files import KeyFileError, add_entry, new_manifest
    from egressproxy.identity.api_keys import MalformedRecord, digest_of, new_key, new_record, read_record

    try:
        key = new_key(prefix)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--prefix") from None
    record = new_record(
        key, name=name, namespace=namespace, serviceAccount=service_account, groups=list(groups), notAfter=not_after,
        routes=_listed(routes), models=_listed(models),
    )  # fmt: skip
    entry = f"{re.sub(r'[^-._a-zA-Z0-9]', '-', name)[:240]}-{digest_of(key.encode()).hex()[:6]}"
    namespaced = secret if "/" in secret else f"default/{secret}"
    text = json.dumps(record)
    try:
        read_record(entry, text, namespaced)
    except MalformedRecord as problem:
        raise click.UsageError(str(problem)) from None
    if secret_file is None:
        click.echo(new_manifest(namespaced, entry, text), nl=False)
        click.echo(f"the key of {entry}, which is shown this once:\n{key}", err=True)
        return
    try:
        add_entry(secret_file, secret, entry, text)
    except (KeyFileError, OSError) as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"{entry} is written to {secret_file}; the key is shown this once:", err=True)
    click.echo(key)


@command.command("list", short_help="Show the keys in manifests.")
@click.argument("paths", nargs=-1, required=True, type=_PATHS)
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", help="The format.")
def list_keys(paths: tuple[Path, ...], output: str) -> None:
    """Print the keys in these manifests, or folders of them: entry, client, end and restrictions; never a key or hash.

    \b
    Examples:
      egressproxy keys list policies/
      egressproxy keys list policies/keys.yaml -o json

    Exit status: 0, or 1 if a record is malformed or a file cannot be read.
    """
    from egressproxy.cli.key_files import KeyFileError, entries
    from egressproxy.identity.api_keys import MalformedRecord, read_record

    found, is_bad = [], False
    for path in paths:
        try:
            for each in entries(path):
                try:
                    found.append(_told(each.name, read_record(each.name, each.value, each.secret), each.file))
                except MalformedRecord as problem:
                    is_bad = True
                    click.echo(f"{each.file}: entry {each.name} of {each.secret} is not used: {problem}", err=True)
        except (KeyFileError, OSError) as problem:
            raise click.ClickException(str(problem)) from None
    if output == "json":
        click.echo(json.dumps({"keys": found}, indent=2))
    for told in found if output == "text" else ():
        parts = [told["entry"], told["client"], told["state"]]
        parts += [f"{name}={','.join(told[name])}" for name in ("groups", "routes", "models") if told[name]]
        click.echo("  ".join(parts))
    if not found and not is_bad:
        click.echo("no keys", err=True)
    if is_bad:
        raise click.exceptions.Exit(1)


@command.command("revoke", short_help="Remove a key from a manifest.")
@click.argument("entry")
@click.argument("path", type=_PATHS)
def revoke(entry: str, path: Path) -> None:
    """Remove the record ENTRY (see `list`) from the Secret in the file PATH. A gateway that reads the file refuses the
    key from then on; `egressproxy kill-switch kill` also cuts what the client has in progress.

    \b
    Examples:
      egressproxy keys revoke ci-3f2a9c policies/keys.yaml

    Exit status: 0 removed, 1 there is no such entry, or the file cannot be changed, 2 wrong usage.
    """
    from egressproxy.cli.key_files import KeyFileError, remove_entry

    try:
        remove_entry(path, entry)
    except (KeyFileError, OSError) as problem:
        raise click.ClickException(str(problem)) from None
    click.echo(f"{entry} is revoked in {path}", err=True)


def _listed(values: tuple[str, ...]) -> list[str]:
    return [each.strip() for value in values for each in value.split(",") if each.strip()]


def _told(entry: str, key: ApiKeyIR, file: Path) -> dict[str, Any]:
    from egressproxy.model.encoding import rfc3339

    ends = "" if key.not_after == inf else rfc3339(key.not_after)
    state = f"{'expired' if time() >= key.not_after else 'until'} {ends}" if ends else "without an end"
    return {
        "entry": entry, "client": key.name, "state": state, "notAfter": ends or None, "groups": list(key.groups),
        "routes": sorted(key.grant.routes or ()), "models": list(key.grant.models or ()), "file": str(file),
    }  # fmt: skip
