"""The options that `run` and `serve-filters` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from egressproxy.cli.option_values import address_and_port, memory_size, seconds, whole_number
from egressproxy.cli.options import Decorator, experimental_option, together

#: More than any machine has cores: a typing error must not start ten thousand processes.
MAX_WORKERS: Final = 256
#: Of memory: a process that serves nobody has half of it.
LEAST_MEMORY: Final = 64 << 20
#: One day.
MAX_DRAIN_S: Final = 86_400


def _path(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("the path is empty; give a file, - for standard output, or off")
    return None if value == "-" else value


def _token_file(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> Path | None:
    if file is not None:
        from egressproxy.admin.write_access import read_token

        try:
            read_token(file)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return file


#: Of a process that serves, named as the fields of RunOptions.
serving_options: Decorator = together(
    click.option(
        "--api-token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
        callback=_token_file,
        help="A file with the bearer token that writes need, and on other addresses than loopback all but health,"
        " /metrics and the files of the admin page.",
    ),
    click.option(
        "--metrics", type=address_and_port, default="off", show_default=True, metavar="HOST:PORT",
        help="A second address that serves only /metrics, /healthz, /livez and /readyz, for scrapers and probes on the"
        " network. `off`: none.",
    ),
    click.option(
        "--access-log", metavar="PATH", default=None, callback=_path,
        help="The file for one line per exchange; `-`: standard output (the default), `off`: none. SIGHUP reopens the"
        " file.",
    ),
    click.option(
        "--access-log-format", type=click.Choice(("auto", "text", "json")), default="auto", show_default=True,
        help="The form of the access log: text for people, JSON for programs; `auto` is text on a terminal, else JSON.",
    ),
    click.option(
        "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info", show_default=True,
        help="The level of the diagnostics on standard error.",
    ),
    click.option(
        "--log-format", type=click.Choice(("text", "json")), default="text", show_default=True,
        help="The form of the diagnostics: text, or one JSON object per line for log collectors.",
    ),
    click.option(
        "--debug-filters", is_flag=True,
        help="Log what filters raise with its text and traceback. It may hold keys and content of requests: for"
        " debugging alone.",
    ),
    click.option(
        "--drain-timeout", "drain_timeout_s", type=seconds(MAX_DRAIN_S), default=10.0, show_default=True,
        metavar="SECONDS",
        help="How long in-flight exchanges and tunnels may take after SIGTERM; send the signal again to stop at once.",
    ),
    click.option(
        "--max-memory", type=memory_size(LEAST_MEMORY), default=None, metavar="SIZE",
        help="Resident memory of each worker, such as 512Mi: near it, connections are not kept alive, and requests get"
        " 503. Default: its part of the cgroup's limit, if there is one; 0: no limit.",
    ),
    click.option(
        "--workers", type=whole_number(1, MAX_WORKERS), default=1, show_default=True, metavar="N",
        help=f"Worker processes, each on one core, at most {MAX_WORKERS}; they share the listening sockets. With 1 this"
        " process serves itself.",
    ),
    experimental_option(
        "Serve what provisional GEPs of Gateway API define, whose fields may change: see docs/gateway-api.md."
    ),
)  # fmt: skip
