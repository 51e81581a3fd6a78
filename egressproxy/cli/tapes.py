"""`egressproxy tapes`: checks recordings of `run --record`, and turns them into HAR and back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from egressproxy.cli.styled_lines import printable

if TYPE_CHECKING:
    from egressproxy.tapes.tape import Interaction

_paths = click.argument(
    "paths", nargs=-1, required=True, metavar="DIR…", type=click.Path(exists=True, path_type=Path)
)  # fmt: skip


@click.group("tapes")
def command() -> None:
    """Check tapes, which `run --record DIR -- CMD` writes, and exchange them with other tools.

    \b
    Examples:
      egressproxy tapes check tapes/
      egressproxy tapes har tapes/ > tapes.har
      egressproxy tapes import browser.har --to tapes/
    """


@command.command("check", short_help="Report secrets, faults and drift.")
@_paths
@click.option("--live", is_flag=True, help="Send the requests again, and compare the answers. This may have effects.")
@click.option("--host", metavar="NAME", default="", help="With --live: only requests to this host.")
@click.option(
    "--header", "headers", multiple=True, metavar="FIELD",
    help="With --live and --host: a field such as 'Authorization: Bearer $OPENAI_API_KEY', in place of a masked one;"
    " $NAME is a variable of the environment. May be given again.",
)  # fmt: skip
def check(paths: tuple[Path, ...], host: str, headers: tuple[str, ...], *, live: bool) -> None:
    """Report tapes that cannot be read, and what a recording would mask, such as a key that somebody has written by
    hand. Files are only read.

    With --live, also report by field where servers answer differently today: the status, the type, and the members of
    JSON by path. Values may differ.

    \b
    Examples:
      egressproxy tapes check tapes/
      egressproxy tapes check tapes/ --live --host api.openai.com --header 'Authorization: Bearer $OPENAI_API_KEY'

    Exit status: 0 nothing found, 1 something found, 2 wrong usage.
    """
    import asyncio

    from egressproxy.tapes.checks import check_file, files_of, header_of, is_to
    from egressproxy.tapes.tape import TapeError, counted

    if (host or headers) and not live:
        raise click.UsageError("--host and --header are for --live")
    if headers and not host:
        raise click.UsageError("--header may be a credential: say with --host who gets it")
    try:
        fields = [header_of(each) for each in headers]
        files = files_of(paths)
    except TapeError as error:
        raise click.UsageError(str(error)) from None
    checked = [check_file(each) for each in files]
    interactions = [each for found, _ in checked for each in found]
    findings = [_told(each) for _, problems in checked for each in problems]
    if live:
        asked = [each for each in interactions if not host or is_to(each, host)]
        if not asked:
            raise click.UsageError(f"no tape has a request to {host or 'a server'}")
        findings += asyncio.run(_live(asked, fields))
    counts = ((len(interactions), "exchange"), (len(files), "tape"), (len(findings), "finding"))
    click.echo("{} in {}, {}.".format(*(counted(number, noun) for number, noun in counts)))
    sys.exit(1 if findings else 0)


def _told(finding: str) -> str:
    click.echo(printable(finding))
    return finding


async def _live(asked: list[Interaction], fields: list[tuple[str, str]]) -> list[str]:
    """Print and return the findings, one request after the other."""
    import aiohttp

    from egressproxy.tapes.checks import drift

    async with aiohttp.ClientSession(trust_env=True) as session:
        return [_told(finding) for each in asked for finding in await drift(session, each, fields)]


@command.command("har", short_help="Print tapes as an HTTP Archive.")
@_paths
def har(paths: tuple[Path, ...]) -> None:
    """Print the exchanges of tapes as HAR 1.2 on standard output, masked, for browsers and other tools.

    \b
    Examples:
      egressproxy tapes har tapes/ > tapes.har

    Exit status: 0, 1 a tape cannot be read, 2 wrong usage.
    """
    from egressproxy.tapes.checks import files_of
    from egressproxy.tapes.har import to_har
    from egressproxy.tapes.masking import Masker
    from egressproxy.tapes.tape import TapeError, read

    masker = Masker()
    try:
        found = [masker.interaction(each) for file in files_of(paths) for each in read(file)]
    except TapeError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(to_har(found), indent=2, ensure_ascii=False))


@command.command("import", short_help="Make tapes of an HTTP Archive.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--to", type=click.Path(file_okay=False, path_type=Path), default=Path("tapes"), show_default=True, metavar="DIR",
    help="The folder for the tapes.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace tapes that exist.")
def import_har(file: Path, to: Path, *, force: bool) -> None:
    """Make tapes of the exchanges in FILE, an HTTP Archive as browsers and proxies save it. Credentials and personal
    data are masked.

    \b
    Examples:
      egressproxy tapes import browser.har
      egressproxy tapes import session.har --to tests/tapes --force

    Exit status: 0, 1 FILE is no archive, or a tape exists or cannot be written, 2 wrong usage.
    """
    from egressproxy.tapes.har import from_har
    from egressproxy.tapes.masking import Masker
    from egressproxy.tapes.tape import TapeError, counted, file_name, write, written

    masker = Masker()
    tapes: dict[str, list[str]] = {}
    try:
        found = [masker.interaction(each) for each in from_har(file.read_bytes(), str(file))]
        for masked in map(masker.interaction, found):  # with credentials of later exchanges, too
            tapes.setdefault(file_name(masked.uri), []).append(written(masked.readable()))
        there = [str(to / name) for name in tapes if (to / name).exists()]
        if there and not force:
            raise click.ClickException(f"{', '.join(there)} exists: give another folder, or --force to replace it")
        to.mkdir(parents=True, exist_ok=True)
        for name, entries in sorted(tapes.items()):
            write(to / name, entries)
            click.echo(f"{to / name}: {counted(len(entries), 'exchange')}")
    except (TapeError, OSError) as error:
        raise click.ClickException(str(error)) from None
