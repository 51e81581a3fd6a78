"""Options of `run -- CMD` for tapes: what the command asks the network is recorded, or answered from files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from egressproxy.cli.options import Decorator, together
from egressproxy.run_options import RunOptions

if TYPE_CHECKING:
    from egressproxy.config.manifests import Manifest
    from egressproxy.tapes import Run

_NAME: Final = re.compile(r"[\w-][\w.-]*")


def _tape(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if name and not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no name of a folder: use letters, digits, '.', '-' and '_'")
    return name


#: What TAPE_OPTIONS names.
tape_options: Decorator = together(
    click.option(
        "--record", "record_to", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        help="Record what the command asks and gets: tapes of YAML in this folder, one for each host, without"
        " credentials. Tunnels of the command are opened with a CA made for the run.",
    ),
    click.option(
        "--replay", "replay_from", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
        help="Answer the command from the tapes in this folder. What is missing goes to the network, and with --record"
        " is added to the tapes.",
    ),
    click.option("--tape", metavar="NAME", default="", callback=_tape, help="A folder of that name in DIR."),
    click.option(
        "--strict", is_flag=True,
        help="With --replay: never use the network. The exit status is 1 if a request is not on tape, or a recording"
        " was not asked for.",
    ),
    click.option("--rhythm", is_flag=True, help="With --strict: event streams take the time that they took."),
    click.option(
        "--ignore-body", multiple=True, metavar="PATH",
        help="With --replay: requests may differ here, a JSON path such as $.user, $.messages[*].id or $..id; may be"
        " given again.",
    ),
    click.option(
        "--ignore-query", multiple=True, metavar="NAME",
        help="With --replay: requests may differ in this parameter of the query; may be given again.",
    ),
)  # fmt: skip
#: Their names as parameters.
TAPE_OPTIONS: Final = ("record_to", "replay_from", "tape", "strict", "rhythm", "ignore_body", "ignore_query")


def with_tapes(given: dict[str, Any], options: RunOptions) -> tuple[RunOptions, Run | None]:
    """The options of a gateway with the tapes that are `given`, and their run; None without. Without a configuration it
    is an open forward proxy. Raises click.UsageError.
    """
    record_to, replay_from, tape = (given[name] for name in ("record_to", "replay_from", "tape"))
    for name in TAPE_OPTIONS[3:]:
        if given[name] and replay_from is None:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --replay DIR")
    if record_to is None and replay_from is None:
        if tape:
            raise click.UsageError("--tape is for --record and --replay")
        return options, None
    if given["rhythm"] and options.is_configured:
        raise click.UsageError("--rhythm is for the gateway without a configuration: leave out --config")
    if options.workers != 1:
        raise click.UsageError("tapes are written by one process: leave out --workers")
    if options.cluster is not None:
        raise click.UsageError("tapes are for the objects of --config, not for those of a cluster")
    from egressproxy.tapes import TapeError, record, replay

    is_strict: bool = given["strict"]
    gateways, others = _gateways(options, is_strict) if options.is_configured else _open_gateway(options.open_port)
    if not gateways:
        raise click.UsageError("the configuration has no Gateway to which tapes could be attached")
    rules = {name: given[name] for name in TAPE_OPTIONS[3:]}
    target = record_to and record_to / tape
    try:
        run = record(target) if replay_from is None else replay(replay_from / tape, record_to=target, **rules)
    except TapeError as error:
        raise click.UsageError(str(error)) from None
    return replace(options, config=(*options.config, run.write(gateways, others))), run


def _gateways(options: RunOptions, is_strict: bool) -> tuple[list[str], Sequence[Manifest]]:
    """Those of the configuration. What is wrong with it is told when it is served. Raises click.UsageError for a name
    server in a strict run, which resolves no name.
    """
    from egressproxy.config.reading.load import read_all
    from egressproxy.config.resources.gateway import Gateway

    found = read_all(options.sources, options.state_dir).of(Gateway)
    for each in found if is_strict else ():
        for listener in each.spec.listeners:
            if listener.protocol == "egressproxy.io/dns":
                raise click.UsageError(f"--strict resolves no names: leave out listener {listener.name} of {each}")
    return [f"{each.namespace}/{each.name}" for each in found], ()


def _open_gateway(port: int) -> tuple[list[str], Sequence[Manifest]]:
    from egressproxy.config.manifests import forward_gateway, policy

    place = "tapes/egressproxy"
    return [place], [forward_gateway(place, port), policy(place, ["egressproxy"], mode="Open")]
