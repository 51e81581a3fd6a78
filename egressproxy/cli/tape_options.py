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
    from egressproxy.tapes import Run

#: The Gateway of a run without a configuration.
_GATEWAY: Final = ("tapes", "egressproxy")
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


def check_tapes(given: dict[str, Any], options: RunOptions) -> bool:
    """Whether the run has tapes. Raises click.UsageError for options that do not fit together."""
    replays = given["replay_from"] is not None
    has_tapes = replays or given["record_to"] is not None
    if not has_tapes and given["tape"]:
        raise click.UsageError("--tape is for --record and --replay")
    for name in ("strict", "rhythm", "ignore_body", "ignore_query"):
        if given[name] and not replays:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --replay DIR")
    if given["rhythm"] and options.is_configured:
        raise click.UsageError("--rhythm is for the gateway without a configuration: leave out --config")
    if given["strict"] and given["record_to"] is not None:
        raise click.UsageError("--strict records nothing: leave out --record, or --strict")
    if has_tapes and options.workers != 1:
        raise click.UsageError("tapes are written by one process: leave out --workers")
    if has_tapes and options.cluster is not None:
        raise click.UsageError("tapes are for the objects of --config, not for those of a cluster")
    return has_tapes


def tape_run(given: dict[str, Any]) -> Run:
    """The run that these options ask for. Raises click.UsageError."""
    from egressproxy.tapes import TapeError, record, replay

    record_to, replay_from = (
        None if given[name] is None else given[name] / given["tape"] for name in ("record_to", "replay_from")
    )
    try:
        if replay_from is None:
            assert record_to is not None
            return record(record_to)
        return replay(
            replay_from, strict=given["strict"], record_to=record_to, rhythm=given["rhythm"],
            ignore_body=given["ignore_body"], ignore_query=given["ignore_query"],
        )  # fmt: skip
    except TapeError as error:
        raise click.UsageError(str(error)) from None


def with_tapes(options: RunOptions, run: Run) -> RunOptions:
    """The options of a gateway with the tapes of `run`. Without a configuration it is an open forward proxy. Raises
    click.UsageError.
    """
    gateways, others = _gateways(options) if options.is_configured else _open_gateway(options.open_port)
    if not gateways:
        raise click.UsageError("the configuration has no Gateway to which tapes could be attached")
    return replace(options, config=(*options.config, run.write(gateways, others)))


def _gateways(options: RunOptions) -> tuple[list[str], Sequence[dict[str, Any]]]:
    """Those of the configuration. What is wrong with it is told when it is served."""
    from egressproxy.config.reading.load import read_all
    from egressproxy.config.resources.gateway import Gateway

    found = read_all(options.sources, options.state_dir).of(Gateway)
    return [f"{each.namespace}/{each.name}" for each in found], ()


def _open_gateway(port: int) -> tuple[list[str], Sequence[dict[str, Any]]]:
    namespace, name = _GATEWAY
    meta = {"name": name, "namespace": namespace}
    group = "gateway.networking.k8s.io"
    listener = {"name": "forward", "port": port, "protocol": "egressproxy.io/forward-proxy"}
    spec = {"gatewayClassName": "egressproxy", "listeners": [listener]}
    policy = {"targetRefs": [{"group": group, "kind": "Gateway", "name": name}], "mode": "Open"}
    return [f"{namespace}/{name}"], [
        {"apiVersion": f"{group}/v1", "kind": "Gateway", "metadata": meta, "spec": spec},
        {"apiVersion": "egressproxy.io/v1alpha1", "kind": "EgressPolicy", "metadata": meta, "spec": policy},
    ]
