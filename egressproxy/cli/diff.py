"""`egressproxy diff`: what a new configuration would change, and which recent decisions would change with it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.options import (
    ADMIN_DEFAULT,
    admin_option,
    asked_admin,
    bind_option,
    config_option,
    experimental_option,
    output_option,
)
from egressproxy.cli.problems import compiled_or_exit
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.styled_lines import print_found, print_lines
from egressproxy.model.secret import SecretSource
from egressproxy.operators.explain.outline_diff import compare, lines

if TYPE_CHECKING:
    from egressproxy.gateway.exchange.recent_decisions import RecentDecision
    from egressproxy.gateway.snapshot import Snapshot
    from egressproxy.ir.gateway import ConfigIR
    from egressproxy.operators.explain.decision_diff import DecisionChange


#: Different requests of an access log that are decided again.
MAX_DECISIONS = 100_000


@click.command("diff")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[OLD] NEW")
@config_option("The same as OLD and NEW, as in `run`.")
@admin_option(
    "A running process: its recent decisions are made again, and without OLD its configuration is the old one."
    f" Default without OLD: {ADMIN_DEFAULT}.",
    default=None,
)
@click.option(
    "--access-log", "access_log", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Repeat the decisions of this access log instead of those in the memory of a process.",
)  # fmt: skip
@bind_option("As in `run`. Default: that of the running process; with OLD, 127.0.0.1.", default=None)
@experimental_option("As in `run`. Default: as the running process was started.")
@output_option
@secret_options
def command(
    paths: tuple[Path, ...],
    config: tuple[Path, ...],
    admin: AdminAddress | None,
    access_log: Path | None,
    bind: tuple[str, ...],
    experimental: bool,
    output: str,
    sources: tuple[SecretSource, ...],
) -> None:
    """Compare what two configurations (files or folders), or a running process and a new configuration, serve:
    listeners, routes, rules, backends and their policies, by name and field; and the recent decisions that would flip
    from allow to deny or back. Values of Secrets are not compared.

    \b
    Examples:
      egressproxy diff policies/                              # against the running process
      egressproxy diff policies/ new/
      egressproxy diff policies/ new/ --access-log /var/log/egress.jsonl
      egressproxy diff new/ --admin 127.0.0.1:15900 -o json | jq '.flips[] | select(.after == "allow")'

    Exit status: 0 no difference, 1 something differs, 2 wrong usage, or a configuration is refused.
    """
    paths += config
    if not 1 <= len(paths) <= 2:
        raise click.UsageError("give one configuration to compare with the running process, or two: OLD NEW")
    if len(paths) == 1 and admin is None:
        admin = asked_admin(admin)
    *old_path, new_path = paths
    from egressproxy.operators.explain.outline import outline

    if old_path:
        bind = bind or ("127.0.0.1",)
        old = compiled_or_exit((old_path[0], *sources), bind, experimental)
        before = outline(old)
    else:
        running = ask(asked_admin(admin), "/model")
        old, before, bind = None, running["model"], bind or tuple(running["bind"])
        experimental = experimental or running.get("experimental", False)
    new = compiled_or_exit((new_path, *sources), bind, experimental)
    found: dict[str, Any] = compare(before, outline(new))
    if access_log is not None or admin is not None:
        found |= _flips(old, new, admin, access_log)
    found["same"] = not (found["added"] or found["removed"] or found["changed"] or found.get("flips"))
    print_found(found, output, lambda: show(found, sys.stdout))
    sys.exit(0 if found["same"] else 1)


def _flips(old: ConfigIR | None, new: ConfigIR, admin: AdminAddress | None, access_log: Path | None) -> dict[str, Any]:
    """The decisions that flip, and how many were made again."""
    from egressproxy.doors.products import offline
    from egressproxy.model.work import at_once
    from egressproxy.operators.explain.decision_diff import flips

    async def replayed() -> tuple[list[DecisionChange], int]:
        before, after = offline(old) if old is not None else None, offline(new)
        recent = list(_of_log(access_log, before or after)) if access_log is not None else _of_admin(asked_admin(admin))
        return at_once(flips(before, after, recent)), len(recent)

    try:
        found, count = asyncio.run(replayed())
    except (ValueError, OSError) as error:  # a filter or a certificate that cannot be built
        click.echo(f"egressproxy: one of the configurations cannot be served: {error}", err=True)
        sys.exit(2)
    return {"flips": [each.values() for each in found], "replayed": count}


def _of_admin(admin: AdminAddress) -> list[RecentDecision]:
    from egressproxy.gateway.exchange.recent_decisions import RecentDecision

    return [RecentDecision.of_admin(each) for each in ask(admin, "/decisions")["decisions"]]


def _of_log(path: Path, snapshot: Snapshot) -> Iterator[RecentDecision]:
    """Each request of an access log once. The log has no scheme: that of the listener, https for port 443, is taken."""
    from egressproxy.gateway.exchange.recent_decisions import RecentDecision

    schemes = {(live.gateway, live.name): live.scheme for port in snapshot.ports.values() for live in port.listeners}
    seen: set[RecentDecision] = set()
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
                scheme = schemes.get((record["gateway"], record["listener"]), b"http").decode()
                if scheme == "http" and str(record["authority"]).endswith(":443"):
                    scheme = "https"
                decision = RecentDecision.of_log(record, scheme)
            except (ValueError, KeyError, TypeError):
                continue  # not a line of an access log, or an incomplete one
            if decision not in seen and len(seen) < MAX_DECISIONS:
                seen.add(decision)
                yield decision


_STYLES: Final = {"+": "green", "-": "red", "~": "yellow", "!": "bold red", " ": ""}


def show(found: Mapping[str, Any], file: IO[str]) -> None:
    """Print the lines; `found` is what `compare` returns, with `flips` and `replayed` if decisions were made again."""
    print_lines(([(line, _STYLES.get(line.lstrip()[:1], ""))] for line in lines(found)), file)
