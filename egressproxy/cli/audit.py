"""`egressproxy audit verify` and `show`: the records that Audit filters have written."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from egressproxy.cli.options import output_option

if TYPE_CHECKING:
    from egressproxy.model.secret import SecretBytes
    from egressproxy.operators.audit.verification import Anchor

_ANCHOR = re.compile(r"([0-9]{1,4}):([0-9]{1,18}):([0-9a-f]{64})")
_folder = click.Path(exists=True, file_okay=False, path_type=Path)
#: Findings of one chain that are shown.
_MAX_SHOWN = 50


def _anchors(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> list[Anchor]:
    from egressproxy.operators.audit.verification import Anchor

    found = []
    for value in values:
        match = _ANCHOR.fullmatch(value)
        if match is None:
            raise click.BadParameter(f"{value!r} is no anchor: give CHAIN:RECORD:HASH, as `audit verify` prints it")
        found.append(Anchor(match[1], int(match[2]), match[3]))
    return found


def _key(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> SecretBytes | None:
    from egressproxy.model.secret import SecretBytes

    if path is None:
        return None
    try:
        return SecretBytes(path.read_bytes().strip())
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}") from None


@click.group("audit")
def command() -> None:
    """Verify or show the records that filters of type egressproxy.io/Audit:v1 have written.

    \b
    Examples:
      egressproxy audit verify /var/log/egressproxy/audit --key-file audit.key
      egressproxy audit show /var/log/egressproxy/audit -o json
    """


@command.command("verify", short_help="Verify that the chains of records are whole.")
@click.argument("folders", nargs=-1, required=True, type=_folder, metavar="FOLDER…")
@click.option(
    "--key-file", "key", type=click.Path(exists=True, dir_okay=False, path_type=Path), callback=_key, metavar="FILE",
    help="The key of HMAC-SHA-256, if the filter has a keyRef.",
)  # fmt: skip
@click.option(
    "--anchor", "anchors", multiple=True, callback=_anchors, metavar="CHAIN:RECORD:HASH",
    help="A record that an earlier run printed, kept elsewhere: it reveals a replaced or shortened chain. May be given"
    " again.",
)  # fmt: skip
@click.option("--partial", "is_partial", is_flag=True, help="Accept chains whose first files are in an archive.")
def verify(folders: tuple[Path, ...], key: SecretBytes | None, anchors: list[Anchor], is_partial: bool) -> None:
    """Verify that the chains in these folders are whole, and report each fault with file and line.

    The last column is the anchor of the chain: keep it elsewhere, and give it to a later run.

    \b
    Examples:
      egressproxy audit verify /var/log/egressproxy/audit
      egressproxy audit verify /var/log/egressproxy/audit --key-file audit.key --anchor 0:48211:9c41…

    Exit status: 0 if all chains are whole, 1 if not, 2 for wrong usage.
    """
    from egressproxy.operators.audit.verification import verified

    is_whole = True
    for folder in folders:
        try:
            reports = verified(folder, key, anchors, is_partial=is_partial)
        except OSError as error:
            raise click.ClickException(f"{error.filename}: {error.strerror}") from None
        if not reports:
            click.echo(f"{folder}: there are no records", err=True)
            is_whole = False
        for report in reports:
            for finding in report.findings[:_MAX_SHOWN]:
                click.echo(str(finding), err=True)
            if len(report.findings) > _MAX_SHOWN:
                click.echo(f"… and {len(report.findings) - _MAX_SHOWN} more", err=True)
            state = "NOT WHOLE" if report.findings else "whole"
            is_whole = is_whole and not report.findings
            end = f"{report.chain}:{report.end.seq}:{report.end.hash}"
            click.echo(
                f"{folder} chain {report.chain}: {state}; {report.records} records in {report.files} files; {end}"
            )
    sys.exit(0 if is_whole else 1)


@command.command("show")
@click.argument("folders", nargs=-1, required=True, type=_folder, metavar="FOLDER…")
@output_option
@click.option(
    "--kind", type=click.Choice(("exchange", "open", "gap", "all")), default="exchange", show_default=True,
    help="exchange: the outcome of requests. open: the start of a file. gap: lost records.",
)  # fmt: skip
def show(folders: tuple[Path, ...], output: str, kind: str) -> None:
    """Print the records of these folders, by time. They are not verified.

    \b
    Examples:
      egressproxy audit show /var/log/egressproxy/audit
      egressproxy audit show /var/log/egressproxy/audit -o json | jq 'select(.decision == "denied")'

    Exit status: 0, 1 if a folder has no records or cannot be read, 2 for wrong usage.
    """
    from egressproxy.operators.audit.verification import records_in

    try:
        by_folder = {folder: list(records_in(folder)) for folder in folders}
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None
    empty = [folder for folder, records in by_folder.items() if not records]
    for folder in empty:
        click.echo(f"{folder}: there are no records", err=True)
    found = [record for records in by_folder.values() for record in records]
    for record in sorted(found, key=lambda record: (str(record.get("time")), record["chain"], record["seq"])):
        if kind not in ("all", record.get("kind")):
            continue
        if output == "json":
            click.echo(json.dumps(record, separators=(",", ":")))
        else:
            click.echo(_line(record))
    sys.exit(1 if empty else 0)


def _line(record: dict[str, object]) -> str:
    if record.get("kind") != "exchange":
        return f"{record.get('time')} {record['chain']}:{record['seq']} {record.get('kind')}"
    who = f"{record.get('namespace')}/{record.get('service_account')}"
    where = f"{record.get('method')} {record.get('authority')}{record.get('path')}"
    parts = [record.get("time"), f"{record['chain']}:{record['seq']}", who, record.get("client"), where]
    parts += [record.get("decision"), record.get("status")]
    if record.get("reason") != "-":
        parts.append(record.get("reason"))
    for name in ("model", "tools_called"):
        if values := record.get(name):
            parts.append(f"{name}={','.join(map(str, values))}" if isinstance(values, list) else "")
    return " ".join(str(part) for part in parts)
