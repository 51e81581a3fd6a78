"""`egressproxy doctor`: what this machine, and what is asked for, lack to serve. It changes nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import click

from egressproxy.cli import config_probes, machine_probes
from egressproxy.cli.client_options import CLIENT_OPTIONS
from egressproxy.cli.machine_probes import FAILURE, OK, WARNING, Finding
from egressproxy.cli.options import ConfigByOption
from egressproxy.cli.run import command as run_command
from egressproxy.cli.run import options_of
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.styled_lines import StyledLine, print_found, print_lines
from egressproxy.cli.tape_options import TAPE_OPTIONS
from egressproxy.model.encoding import counted
from egressproxy.model.secret import SecretSource

#: The time of all probes, which run at once, in seconds.
PROBES_S: Final = 10.0
_STYLES: Final = {OK: "green", WARNING: "yellow bold", FAILURE: "red bold"}
#: Options of `run` that are for its command, or that have a form of their own here.
_ELSEWHERE: Final = frozenset(
    {"listener", *CLIENT_OPTIONS, *TAPE_OPTIONS, "secret", "secrets", "secret_env", "trust_bundle", "tls_key_log"}
)


@click.command("doctor", cls=ConfigByOption)
@click.option(
    "--connect", metavar="HOST[:PORT]", default="",
    help="Open one connection with TLS there (port 443), and verify the certificate. Default: none.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.option("--json", "output", flag_value="json", help="The same as -o json.")
@click.option(  # that of `run` makes the file
    "--tls-key-log", type=click.Path(dir_okay=False, path_type=Path), default=None, metavar="FILE", help="As in `run`."
)
@secret_options
@click.pass_context
def command(ctx: click.Context, /, connect: str, output: str, sources: tuple[SecretSource, ...], **given: Any) -> None:
    """Look at this machine, and at what the same options would ask of `run`: DNS, roots, clock, limits, kernel, ports,
    files, proxies of the environment, optional packages, and the configuration. Each line says what was seen, and what
    to do.

    Nothing is changed. Only DNS queries for example.com go to the network, to the servers of this machine and of the
    configuration; and with --connect one connection. As with `check`, the files of Python filters are run.

    \b
    Examples:
      egressproxy doctor
      egressproxy doctor --config policies/ --state-dir /var/lib/egressproxy --workers 4
      egressproxy doctor --connect api.openai.com --json

    Exit status: 0 no failure, 1 a failure, 2 wrong usage.
    """
    probes: list[tuple[str, Callable[[], Iterable[Finding]]]] = [*machine_probes.PROBES.items()]
    if connect:
        probes.append(("connect", partial(machine_probes.connection, machine_probes.target_of(connect))))
    try:
        options = options_of(ctx, given, sources)
    except click.UsageError as error:
        probes.append(("options", partial(list, [Finding(FAILURE, error.message)])))
    else:
        probes += [(topic, partial(look, options)) for topic, look in config_probes.PROBES.items()]
    findings: list[Finding] = []
    deadline = time.monotonic() + PROBES_S
    for probe in [_Probe(*each) for each in probes]:
        found = probe.findings(deadline)
        findings += found
        if output == "text":
            print_lines(map(_line, found), sys.stdout)
            sys.stdout.flush()
    failures, warnings = (sum(each.level == level for each in findings) for level in (FAILURE, WARNING))
    values = {"ok": not failures, "findings": [each._asdict() for each in findings]}
    summary = f"{counted(failures, 'failure')}, {counted(warnings, 'warning')}."
    print_found(values, output, lambda: click.echo(summary))
    sys.exit(1 if failures else 0)


#: Those of `run`, but for those with a form of their own here.
command.params += [each for each in run_command.params if each.name not in _ELSEWHERE]


class _Probe(Thread):
    """Looks at one topic. A daemon, since a probe may hang for longer than anybody waits."""

    def __init__(self, topic: str, look: Callable[[], Iterable[Finding]]) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        self._look = look
        self._found: list[Finding] = []
        self.start()

    def run(self) -> None:
        try:
            for each in self._look():
                self._found.append(each)  # not all at the end, which a probe may never reach
        except Exception as error:  # a probe that fails says nothing of the others
            self._found.append(Finding(WARNING, f"could not be looked at: {type(error).__name__}: {error}"))

    def findings(self, deadline: float) -> list[Finding]:
        """What is found before this time of the monotonic clock, each with its topic."""
        self.join(max(0.0, deadline - time.monotonic()))
        late = [Finding(WARNING, f"no result within {PROBES_S:g} s", "look at it by hand")] if self.is_alive() else []
        return [each._replace(topic=each.topic or self._topic) for each in (*self._found, *late)]


def _line(found: Finding) -> StyledLine:
    remedy = [(f" ({found.remedy})", "green")] if found.remedy else []
    return [(f"{found.level:8}", _STYLES[found.level]), (f"{found.topic:14}", "cyan"), (found.seen, ""), *remedy]
