"""`egressproxy doctor`: what this machine, and what is asked for, lack to serve. It changes nothing."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import click

from egressproxy.cli.client_options import CLIENT_OPTIONS
from egressproxy.cli.findings import FAILURE, OK, WARNING, Finding
from egressproxy.cli.options import ConfigByOption
from egressproxy.cli.run import command as run_command
from egressproxy.cli.run import options_of
from egressproxy.cli.secrets import secret_options
from egressproxy.cli.styled_lines import print_lines
from egressproxy.cli.tape_options import TAPE_OPTIONS
from egressproxy.model.secret import SecretSource
from egressproxy.run_options import RunOptions

#: The time of each probe, in seconds. All run at once, so that it is nearly that of the whole command.
PROBE_S: Final = 10.0
_STYLES: Final = {OK: "green", WARNING: "yellow bold", FAILURE: "red bold"}
#: Options of `run` that are for its command, or that `secret_options` adds here.
_ELSEWHERE: Final = frozenset(
    {"listener", *CLIENT_OPTIONS, *TAPE_OPTIONS, "secret", "secrets", "secret_env", "trust_bundle", "tls_key_log"}
)


@dataclass(frozen=True, slots=True)
class Probe:
    """One topic, and what looks at it."""

    topic: str
    look: Callable[[], Iterable[Finding]]


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
def command(connect: str, output: str, sources: tuple[SecretSource, ...], **given: Any) -> None:
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
    findings = list(_looked(_probes(given, sources, connect), output))
    failures, warnings = (sum(each.level == level for each in findings) for level in (FAILURE, WARNING))
    if output == "json":
        click.echo(json.dumps({"ok": not failures, "findings": [asdict(each) for each in findings]}, indent=2))
    else:
        click.echo(f"{_counted(failures, 'failure')}, {_counted(warnings, 'warning')}.")
    sys.exit(1 if failures else 0)


#: Those of `run`, but for those with a form of their own here.
command.params += [each for each in run_command.params if each.name not in _ELSEWHERE]


def _probes(given: dict[str, Any], sources: tuple[SecretSource, ...], connect: str) -> list[Probe]:
    """Raises click.UsageError for an argument of --connect that is no host."""
    from egressproxy.cli import config_probes, machine_probes

    probes = [
        Probe("build", machine_probes.build),
        Probe("dns", machine_probes.dns),
        Probe("roots", machine_probes.roots),
        Probe("time", machine_probes.clock),
        Probe("kernel", machine_probes.kernel),
        Probe("environment", machine_probes.environment),
        Probe("packages", machine_probes.packages),
    ]
    if connect:
        probes.append(Probe("connect", partial(machine_probes.connection, machine_probes.target_of(connect))))
    try:
        options = options_of(given, sources)
    except click.UsageError as error:
        why = error.message
        return [*probes, Probe("options", lambda: [Finding(FAILURE, "options", why)])]
    return [*probes, *_probes_of(options, config_probes)]


def _probes_of(options: RunOptions, probes: Any) -> list[Probe]:
    asked = probes.Asked(options)
    return [
        Probe("limits", partial(probes.limits, options)),
        Probe("files", partial(probes.files, options)),
        Probe("configuration", asked.configuration),
        Probe("ports", asked.ports),
        Probe("dns servers", asked.dns_servers),
    ]


def _looked(probes: Sequence[Probe], output: str) -> Iterator[Finding]:
    """The findings of all probes, which run at once, in the order of the probes; as text each is printed when it and
    those before it are known.
    """
    answers: SimpleQueue[tuple[str, list[Finding]]] = SimpleQueue()
    for probe in probes:
        # Not awaited at the end: a probe may hang for longer than anybody waits.
        threading.Thread(target=_run, args=(probe, answers), daemon=True).start()
    known: dict[str, list[Finding]] = {}
    deadline = time.monotonic() + PROBE_S
    shows_progress = output == "text" and sys.stderr.isatty()
    for probe in probes:
        while probe.topic not in known:
            if shows_progress:
                print(f"\r\x1b[K… {probe.topic} ({len(known)} of {len(probes)})", end="", file=sys.stderr, flush=True)
            try:
                topic, found = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                why = f"no result within {PROBE_S:g} s"
                topic, found = probe.topic, [Finding(WARNING, probe.topic, why, "look at it by hand")]
            known[topic] = found
        if shows_progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if output == "text":
            print_lines(map(_line, known[probe.topic]), sys.stdout)
        yield from known[probe.topic]


def _run(probe: Probe, answers: SimpleQueue[tuple[str, list[Finding]]]) -> None:
    try:
        found = list(probe.look())
    except Exception as error:  # a probe that fails says nothing of the others
        found = [Finding(WARNING, probe.topic, f"could not be looked at: {type(error).__name__}: {error}")]
    answers.put((probe.topic, found))


def _line(found: Finding) -> list[tuple[str, str]]:
    remedy = [(f" ({found.remedy})", "green")] if found.remedy else []
    return [(f"{found.level:8}", _STYLES[found.level]), (f"{found.topic:14}", "cyan"), (found.seen, ""), *remedy]


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
