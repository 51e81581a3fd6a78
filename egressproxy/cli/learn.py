"""`egressproxy learn`: the smallest policy that allows what clients were seen to do."""

from __future__ import annotations

import gzip
import heapq
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from difflib import unified_diff
from io import BufferedReader
from math import inf
from pathlib import Path
from typing import IO, Any, Final, cast

import click

from egressproxy.cli.asking import AdminAddress, ask
from egressproxy.cli.option_values import memory_size
from egressproxy.cli.options import ADMIN_DEFAULT, admin_option, asked_admin
from egressproxy.model.encoding import counted, json_object, time_span
from egressproxy.operators.learning import policy_plan
from egressproxy.operators.learning.judgement import Judgement, Left, LeftOut, Thresholds, judge
from egressproxy.operators.learning.names import PUBLIC_SUFFIX_FILE, PublicSuffixes, patterns_of
from egressproxy.operators.learning.observations import Observations, moment
from egressproxy.operators.learning.policy_text import MARK, changed, comment, file_text, left_out_lines

#: A longer line is no line of the access log.
MAX_LINE: Final = 1 << 17
#: How often a process is asked with --follow.
POLL_S: Final = 1.0
#: Decisions that each worker keeps (`gateway.exchange.recent_decisions`).
KEPT: Final = 1024
_PROXIES: Final = frozenset({f"egressproxy.io/{name}" for name in ("forward-proxy", "socks5", "transparent")})
_GZIP: Final = b"\x1f\x8b"


def _span(value: str | float) -> float:
    """Seconds of a text such as 90s, 10m, 1h or 14d. Raises click.BadParameter."""
    seconds = value if isinstance(value, float) else time_span(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a time; give one such as 90s, 10m, 1h or 14d")
    return seconds


def _object_name(value: str) -> str:
    if value and not policy_plan.OBJECT_NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not the name of a policy (lower-case letters, digits, - and .)")
    return value


def _burst(value: str | tuple[int, float]) -> tuple[int, float]:
    if isinstance(value, tuple):
        return value
    names, slash, window = value.partition("/")
    if not slash or not names.isdigit() or not names.isascii() or not 2 <= int(names) <= 100_000:
        raise click.BadParameter(f"{value!r} is not NAMES/TIME; give one such as 10/10m")
    return int(names), _span(window)


@click.command("learn")
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="[FILE]...",
)  # fmt: skip
@admin_option(
    f"Learn from the recent decisions of this process, of all its workers. Default without FILE: {ADMIN_DEFAULT}.",
    default=None,
)
@click.option(
    "--follow", is_flag=True, help="Go on collecting from the process until Ctrl-C, or for the time of --for."
)
@click.option("--for", "for_s", type=_span, metavar="TIME", help="With --follow: how long, such as 1h.")
@click.option(
    "--by", type=click.Choice(("auto", "namespace", "service-account", "identity")), default="auto", show_default=True,
    help="For whom each policy is. auto: entries that all accounts of a namespace need are for the namespace, others"
    " for the account. identity: as service-account, and nothing for clients that no policy can name.",
)  # fmt: skip
@click.option(
    "--at-least", type=click.IntRange(1, 10_000), default=3, show_default=True, metavar="N",
    help="In how many different minutes a client has to ask for a destination.",
)  # fmt: skip
@click.option(
    "--burst", type=_burst, default="10/10m", show_default=True, metavar="NAMES/TIME",
    help="So many new domains of one client, or names below one domain, in this time are left out if they did not come"
    " back.",
)  # fmt: skip
@click.option(
    "--upload", type=memory_size(1024), default="1Mi", show_default=True, metavar="SIZE",
    help="A request that sends more, to a host that nobody else uses and that is no habit, is left out.",
)  # fmt: skip
@click.option(
    "--port", "ports", type=click.IntRange(1, 65_535), multiple=True, metavar="PORT",
    help="A port that is usual, too, beside 80 and 443; may be given again.",
)  # fmt: skip
@click.option("--private", is_flag=True, help="Learn names that lead to private addresses, too.")
@click.option("--routed", is_flag=True, help="Learn destinations that routes serve, too.")
@click.option("--suffixes", is_flag=True, help="Write *.domain for three or more names of one owner below a domain.")
@click.option(
    "--public-suffixes", "suffix_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="The Public Suffix List for --suffixes. Default: that of the system.",
)  # fmt: skip
@click.option(
    "--against", type=click.Path(exists=True, path_type=Path), metavar="PATH",
    help="The configuration in force: print only what is new or unused, as a diff of its learnt file.",
)  # fmt: skip
@click.option(
    "--unused-after", "unused_s", type=_span, metavar="TIME",
    help="With --against: remove entries that nobody has used for this time, such as 14d.",
)  # fmt: skip
@click.option(
    "--replaces", type=_object_name, default="", metavar="NAME",
    help="Put the policies on trial in place of this policy: they are not in force, and status says what they would"
    " change.",
)  # fmt: skip
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write into this new file. Default: standard output.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file of --output.")
def command(
    files: tuple[Path, ...], admin: AdminAddress | None, follow: bool, for_s: float | None, by: str, at_least: int,
    burst: tuple[int, float], upload: int, ports: tuple[int, ...], private: bool, routed: bool, suffixes: bool,
    suffix_file: Path | None, against: Path | None, unused_s: float | None, replaces: str, output: Path | None,
    force: bool,
) -> None:  # fmt: skip
    """Write the smallest EgressPolicies that allow what clients were seen to do: from access logs (FILE, also
    compressed by gzip, - for standard input), or from the recent decisions of a running process. Run the gateway with
    `mode: Report` or `Open` meanwhile. Every entry has its evidence as a comment; what was left out, and why, stands
    below the policies.

    \b
    Examples:
      egressproxy learn /var/log/egress.jsonl* --output policies/learned.yaml
      egressproxy learn --follow --for 1h --output policies/learned.yaml
      kubectl logs deploy/egress | egressproxy learn -
      egressproxy learn /var/log/egress.jsonl* --against policies/ --unused-after 14d | patch -p0

    Exit status: 0 done, 1 nothing was learnt (with --against: something differs), 2 wrong usage, a file that cannot be
    read or written, or no answer.
    """
    if files and (admin is not None or follow):
        raise click.UsageError("give access logs, or a process with --admin and --follow, not both")
    if for_s is not None and not follow:
        raise click.UsageError("--for is the time of --follow")
    if unused_s is not None and against is None:
        raise click.UsageError("--unused-after needs --against PATH")
    if suffix_file is not None and not suffixes:
        raise click.UsageError("--public-suffixes is the list for --suffixes")
    if files.count(Path("-")) > 1:
        raise click.UsageError("- is standard input, which can be read once")
    if output is not None and output.exists() and not force:
        raise click.UsageError(f"{output} exists: give --force to replace it, or --against to see what would change")
    known = _known_suffixes(suffix_file) if suffixes else None

    limits = Thresholds(at_least, burst[0], burst[1], upload, frozenset({80, 443, *ports}), private, routed)
    seen = Observations()
    if files:
        _read_logs(files, seen)
    else:
        _read_process(asked_admin(admin), seen, follow, for_s)
    if not seen.count:
        unread = f"; {seen.unread} lines are no lines of an access log" if seen.unread else ""
        _tell(f"no decision was read, so there is nothing to learn{unread}")
        sys.exit(1)
    judged = judge(seen, limits)
    if against is not None:
        _compare(against, seen, judged, policy_plan.By(by), known, unused_s, replaces, output)

    policies, unnamed = policy_plan.plan(judged.learnt, policy_plan.By(by), suffixes=known, replaces=replaces)
    left_out = [*judged.left_out, *unnamed]
    _warn(seen, policies, left_out)
    left = left_out_lines(left_out, len(judged.learnt) - len(unnamed))
    _write(file_text(_about(seen, limits, policy_plan.By(by), suffixes), policies, left), output)
    sys.exit(0 if policies else 1)


def _known_suffixes(file: Path | None) -> PublicSuffixes:
    file = file or PUBLIC_SUFFIX_FILE
    try:
        return PublicSuffixes(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise click.UsageError(
            f"--suffixes needs the Public Suffix List, which says whose names *.domain would open; {file}: {why}."
            " Install the package publicsuffix, or give the list of publicsuffix.org with --public-suffixes FILE"
        ) from None


# --- access logs ------------------------------------------------------------------------------------------------------


def _read_logs(files: Sequence[Path], seen: Observations) -> None:
    """Read them all, by time where there are several. Exits with 2 for one that cannot be read."""
    with ExitStack() as stack:
        try:
            sources = [_records(_open(path, stack), seen) for path in files]
            for record in heapq.merge(*sources, key=lambda each: str(each.get("time", ""))):
                seen.add_log(record)
        except (OSError, EOFError) as error:  # gzip: a file that is cut
            _tell(f"an access log cannot be read: {error}")
            sys.exit(2)


def _open(path: Path, stack: ExitStack) -> IO[bytes]:
    """A reader of the file's lines, uncompressed."""
    raw: IO[bytes] = sys.stdin.buffer if path == Path("-") else stack.enter_context(path.open("rb"))
    buffered = raw if isinstance(raw, BufferedReader) else BufferedReader(raw)  # type: ignore[type-var]
    return cast("IO[bytes]", gzip.GzipFile(fileobj=buffered)) if buffered.peek(2)[:2] == _GZIP else buffered


def _records(file: IO[bytes], seen: Observations) -> Iterator[Mapping[str, Any]]:
    is_rest = False
    while line := file.readline(MAX_LINE):
        was_rest, is_rest = is_rest, not line.endswith(b"\n")
        if was_rest:
            continue
        if (record := json_object(line)) is not None:
            yield record
        elif line.strip():
            seen.unread += 1


# --- a process --------------------------------------------------------------------------------------------------------


def _read_process(admin: AdminAddress, seen: Observations, follow: bool, for_s: float | None) -> None:
    """Take the recent decisions; with `follow` those to come, until Ctrl-C or so many seconds."""
    before: dict[str, Any] = {}
    end = time.monotonic() + for_s if for_s is not None else inf
    missed = False
    is_routed = routed_by(ask(admin, "/model")["model"])
    with suppress(KeyboardInterrupt):
        while True:
            try:
                found = ask(admin, "/decisions", [("all", "1")])["decisions"]
            except SystemExit:
                if not seen.count:
                    raise
                _tell("learning from what was collected until now")
                break
            now = {json.dumps(each): each for each in found}
            new = [each for text, each in now.items() if text not in before]
            missed |= bool(before) and len(new) == len(now) >= KEPT
            for decision in sorted(new, key=lambda each: float(each["time"])):
                seen.add_decision(decision, is_routed(decision))
            before = now
            if not follow or time.monotonic() >= end:
                break
            time.sleep(min(POLL_S, max(end - time.monotonic(), 0)))
    if missed:
        _tell("decisions came faster than they were asked for, and some were missed: learn from the access log instead")


def routed_by(model: Mapping[str, Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a route of this model (/model) may serve a decision: it names the host, or the listener is no proxy."""
    routes: dict[str, set[str]] = {}
    for name, values in model.items():
        kind, _, rest = name.partition(" ")
        if kind == "Listener" and values.get("protocol") not in _PROXIES:
            routes.setdefault(rest.partition(",")[0], set()).add("*")
        elif kind.endswith("Route") and " on " in rest and " rule " not in rest:
            place = rest.partition(" on ")[2].partition(",")[0]
            routes.setdefault(place, set()).update(values.get("hostnames", ()))

    def is_routed(decision: Mapping[str, Any]) -> bool:
        patterns = routes.get(f"{decision['gateway']}/{decision.get('listener')}", set())
        return not patterns.isdisjoint(("*", *patterns_of(decision["authority"].rpartition(":")[0])))

    return is_routed


# --- what is printed --------------------------------------------------------------------------------------------------


def _about(seen: Observations, limits: Thresholds, by: policy_plan.By, suffixes: bool) -> list[str]:
    options = f"--by {by.value} --at-least {limits.at_least} --burst {limits.burst}/{limits.burst_s:g}s"
    options += f" --upload {limits.upload}" + "".join(f" --port {port}" for port in sorted(limits.ports - {80, 443}))
    options += " --private" * limits.allows_private + " --routed" * limits.allows_routed + " --suffixes" * suffixes
    return [
        f"From {seen.count} decisions about {counted(len({each.client for each in seen.records()}), 'client')},"
        f" {moment(seen.first)} to {moment(seen.last)}; {options}",
        "Requests within one minute count as one time. What was left out, and why, is below the policies.",
        *_bounds(seen),
    ]


def _bounds(seen: Observations) -> list[str]:
    """What the bound of memory has left out."""
    return [
        f"The bound of memory was met: {seen.forgotten} destinations that were seen least were forgotten, so that"
        " some entries may be missing. Learn from a shorter time, or from fewer clients at once."
    ] * bool(seen.forgotten)


def _warn(seen: Observations, policies: Sequence[policy_plan.PlannedPolicy], left_out: Sequence[LeftOut]) -> None:
    """Tell on standard error what a reader of the file has to know."""
    entries = sum(len(each.entries) for each in policies)
    _tell(
        f"{seen.count} decisions, {counted(entries, 'entry', 'entries')} in"
        f" {counted(len(policies), 'policy', 'policies')}; {counted(len(left_out), 'destination')} left out"
    )
    for line in _bounds(seen):
        _tell(line)
    if seen.unread:
        _tell(f"{seen.unread} lines are no lines of an access log")
    rare = sum(each.why is Left.RARE for each in left_out)
    if rare and not entries:
        _tell(f"{counted(rare, 'destination')} seen too rarely: --at-least 1 learns from a single run")
    named = {str(record.client) for each in policies if each.subject == policy_plan.Subject()
             for entry in each.entries for record in entry.records if record.client.name != "-"}  # fmt: skip
    if named:
        _tell(
            f"policies cannot name {len(named)} known clients (no service account): what they need is in a policy for"
            " everybody; --by identity leaves it out"
        )


def _tell(text: str) -> None:
    click.echo(f"egressproxy: {text}", err=True)


def _write(text: str, output: Path | None) -> None:
    """Print it, or write it into the file. Exits with 2 if that fails."""
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        _tell(f"{output} cannot be written: {error.strerror or error}")
        sys.exit(2)


# --- against what is in force -----------------------------------------------------------------------------------------


def _compare(
    path: Path, seen: Observations, judged: Judgement, by: policy_plan.By, suffixes: PublicSuffixes | None,
    unused_s: float | None, replaces: str, output: Path | None,
) -> None:  # fmt: skip
    """Print what is new or unused as a diff of the learnt file, and exit."""
    entries = _entries_in_force(path)
    since = seen.last - unused_s if unused_s is not None else -inf
    allowed = {id(record) for record, _ in policy_plan.uses(judged.learnt, entries)}
    missing = [each for each in judged.learnt if id(each) not in allowed and each.last >= since]
    new, _ = policy_plan.plan(missing, by, judged.learnt, suffixes, replaces)
    unused = []
    if unused_s is not None and seen.last - seen.first < unused_s:
        days = (seen.last - seen.first) / 86_400
        _tell(f"the decisions span {days:.1f} days, which is less than --unused-after: nothing is called unused")
    elif unused_s is not None:
        latest = (each for each in seen.records() if each.reached and each.last >= since)
        used = {entry for _, entry in policy_plan.uses(latest, entries)}
        unused = [each for each in entries if each not in used]
    file, before = _learnt_file(path)
    gone = {(each.policy, each.hostname, tuple(sorted(each.ports))) for each in unused}
    by_hand = [each for each in unused if f"name: {each.policy.partition('/')[2]}" not in before]
    try:
        after = changed(before, new, gone) if before else ""
    except ValueError as error:
        raise click.UsageError(f"{file}: {error}; keep entries of your own in another file") from None
    if new and not before:
        after = file_text(["Beside the configuration in force."], new, ())
    for each in by_hand:
        click.echo(comment(f"# unused: {each.hostname} of EgressPolicy {each.policy}, which is not in a learnt file"))
    old_lines, new_lines = before.splitlines(keepends=True), after.splitlines(keepends=True)
    diff = "".join(unified_diff(old_lines, new_lines, str(file) if before else os.devnull, str(file)))
    _write(diff, output)
    added = counted(sum(len(each.entries) for each in new), "new entry", "new entries")
    _tell(f"{added}, {len(unused)} unused")
    sys.exit(1 if diff or by_hand else 0)


def _entries_in_force(path: Path) -> list[policy_plan.AllowedEntry]:
    from egressproxy.cli.problems import show_problems
    from egressproxy.config.reading.load import read_all
    from egressproxy.config.reading.problems import ConfigError
    from egressproxy.config.resources.policy import EgressPolicy

    try:
        objects = read_all([path]).objects
    except ConfigError as error:
        show_problems(error.problems, sys.stderr)
        sys.exit(2)
    return [*policy_plan.allowed_entries(each for each in objects if isinstance(each, EgressPolicy))]


def _learnt_file(path: Path) -> tuple[Path, str]:
    """The learnt file of a configuration with its text; where a new one would be, with "". Raises click.UsageError."""
    paths = sorted(path.glob("[!.]*.y*ml")) if path.is_dir() else [path]
    found = [(each, text) for each in paths if (text := each.read_text("utf-8", "replace")).startswith(MARK)]
    if len(found) > 1:
        names = ", ".join(str(each) for each, _ in found)
        raise click.UsageError(f"{names} are learnt files; give one of them with --against")
    return found[0] if found else ((path if path.is_dir() else path.parent) / "learned.yaml", "")
