"""`egressproxy top`: the traffic of a running gateway, as it passes."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, Final

import click

from egressproxy.cli.asking import ask, lines, token_of
from egressproxy.cli.denials import caller_of, clock
from egressproxy.cli.options import deciding_options
from egressproxy.cli.styled_lines import StyledLine, print_lines, printable
from egressproxy.model.authority import Authority

#: Rates are of the last so many seconds, and the most events that are kept for them.
WINDOW_S: Final = 10.0
MAX_EVENTS: Final = 20_000
#: Events in a second that /live is asked for.
LIMIT: Final = 1000
#: The latest denials that are kept, and lines of each list in plain text.
MAX_DENIALS: Final = 50
PLAIN_ROWS: Final = 10
#: How often the rest is asked for, in seconds.
ASK_S: Final = 5.0
_WIDTH: Final = 44


class Traffic:
    """What has come from /live lately. `add` may be called in another thread."""

    def __init__(self, denials: frozenset[str]) -> None:
        self._denials = denials
        self._lock = Lock()
        self._events: deque[tuple[float, Mapping[str, Any]]] = deque(maxlen=MAX_EVENTS)
        self._lost: deque[tuple[float, int]] = deque(maxlen=MAX_EVENTS)
        self._denied: deque[Mapping[str, Any]] = deque(maxlen=MAX_DENIALS)
        self._began = monotonic()

    def add(self, event: str, data: Mapping[str, Any], now: float) -> None:
        """Take one event of the stream."""
        with self._lock:
            if event == "lost":
                self._lost.append((now, data["lost"]))
                return
            self._events.append((now, data))
            if data["reason"] in self._denials:
                self._denied.appendleft(data)

    def figures(self, now: float) -> dict[str, Any]:
        """Rates in a second, percentiles in milliseconds, the busiest by name, and the latest denials."""
        with self._lock:
            events = [data for at, data in self._events if now - at <= WINDOW_S]
            lost = sum(number for at, number in self._lost if now - at <= WINDOW_S)
            denied = list(self._denied)
        span = max(min(WINDOW_S, now - self._began), 0.1)
        times = sorted(each["duration_ms"] for each in events)
        is_denied = [each["reason"] in self._denials for each in events]
        failed = sum(each["reason"] != "-" for each in events) - sum(is_denied)
        return {
            "requests": round((len(events) + lost) / span, 1), "denials": round(sum(is_denied) / span, 1),
            "failures": round(failed / span, 1), "lost": round(lost / span, 1),
            "p50_ms": _share(times, 0.5), "p95_ms": _share(times, 0.95),
            "destinations": self._busiest(events, span, lambda each: each["authority"]),
            "callers": self._busiest(events, span, lambda each: caller_of({**each, "client": _host(each["client"])})),
            "backends": self._busiest(events, span, lambda each: each["backend"]),
            "denied": denied,
        }  # fmt: skip

    def _busiest(
        self, events: Iterable[Mapping[str, Any]], span: float, name: Callable[[Mapping[str, Any]], str]
    ) -> list[dict[str, Any]]:
        counts: Counter[str] = Counter()
        denied: Counter[str] = Counter()
        times: defaultdict[str, list[float]] = defaultdict(list)
        for each in events:
            key = name(each)
            counts[key] += 1
            denied[key] += each["reason"] in self._denials
            times[key].append(each["duration_ms"])
        return [
            {"name": key, "requests": round(count / span, 1), "denials": round(denied[key] / span, 1),
             "p95_ms": _share(sorted(times[key]), 0.95)}
            for key, count in counts.most_common(MAX_DENIALS)
        ]  # fmt: skip


def _share(times: list[float], share: float) -> float | None:
    return times[min(int(len(times) * share), len(times) - 1)] if times else None


def _host(client: str) -> str:
    return client.rpartition(":")[0] or client


class _AskedGateway:
    """What is asked of the process at this admin address."""

    def __init__(self, admin: tuple[str, int], token: str) -> None:
        self.admin = admin
        self._token = token

    def ask(self, path: str) -> dict[str, Any]:
        return ask(self.admin, path, token=self._token)

    def read(self, traffic: Traffic) -> None:
        """Read /live until it ends. A refusal is printed where it raises SystemExit, which ends this thread."""
        event = ""
        pairs = [("limit", str(LIMIT))]
        for line in lines(self.admin, "/live", pairs, accept="text/event-stream", token=self._token):
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                traffic.add(event, json.loads(line[6:]), monotonic())

    def minute(self) -> dict[str, Any] | None:
        """The latest whole minute, or the one that goes on."""
        minutes = self.ask("/history")["minutes"]
        found: dict[str, Any] | None = minutes[-2] if len(minutes) > 1 else minutes[-1] if minutes else None
        return found


@click.command("top")
@click.option("--once", is_flag=True, help="Print once, as plain lines, and end: so it is where there is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 60.0), default=2.0, show_default=True, metavar="SECONDS",
    help="How often the figures change; with --once: how long to watch.",
)  # fmt: skip
@deciding_options
def command(once: bool, interval: float, token: Path | None, output: str, admin: tuple[str, int]) -> None:
    """Watch the traffic of a running gateway, over all workers: requests, denials and failures in a second, latency and
    tokens; the busiest destinations, callers and backends; and the latest denials. Rates are of the last 10 seconds,
    of requests and tunnels that have ended. Ctrl-C ends it.

    \b
    Examples:
      egressproxy top
      egressproxy top --once --interval 10
      egressproxy top --once -o json | jq .destinations

    Exit status: 0, or 2 for wrong usage, no response, or a gateway that has ended.
    """
    from egressproxy.gateway.exchange.error_responses import DENIALS

    traffic = Traffic(frozenset(reason.value for reason in DENIALS))
    gateway = _AskedGateway(admin, token_of(token))
    summary = gateway.ask("/summary")
    reading = Thread(target=gateway.read, args=(traffic,), daemon=True)
    reading.start()
    if once or output == "json" or not sys.stdout.isatty():
        _wait(reading, interval)
        found = {**traffic.figures(monotonic()), "minute": gateway.minute(), "summary": summary}
        if output == "json":
            click.echo(json.dumps(found, indent=2))
        else:
            print_lines(_lines(found, admin, PLAIN_ROWS), sys.stdout)
        return
    with suppress(KeyboardInterrupt):
        _watch(traffic, reading, gateway, interval)


def _wait(reading: Thread, seconds: float) -> None:
    """Exits with 2 if the stream ends meanwhile."""
    reading.join(seconds)
    if not reading.is_alive():
        click.echo("egressproxy: the gateway has ended the stream /live", err=True)
        sys.exit(2)


def _watch(traffic: Traffic, reading: Thread, gateway: _AskedGateway, interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    asked = float("-inf")
    # What is printed while the screen is another is not seen afterwards.
    with suppress(SystemExit), Live(console=console, screen=True, auto_refresh=False) as live:
        while reading.is_alive():
            now = monotonic()
            if now - asked >= ASK_S:
                asked, minute, summary = now, gateway.minute(), gateway.ask("/summary")
            found = {**traffic.figures(now), "minute": minute, "summary": summary}
            rows = max((console.size.height - 10) // 4, 2)
            shown = [
                Text.assemble(*((printable(text), style) for text, style in line), no_wrap=True, overflow="ellipsis")
                for line in _lines(found, gateway.admin, rows)
            ]
            live.update(Group(*shown[: console.size.height - 1]), refresh=True)
            sleep(interval)
    _wait(reading, 1.0)
    click.echo(f"egressproxy: the admin address {Authority(*gateway.admin)} does not answer any more", err=True)
    sys.exit(2)


def _lines(found: Mapping[str, Any], admin: tuple[str, int], rows: int) -> Iterator[StyledLine]:
    """What is shown, with so many rows of each list."""
    summary, minute = found["summary"], found["minute"]
    ready = ("ready", "green") if summary["ready"] else (f"not ready: {summary['why_not_ready']}", "bold red")
    yield [
        (f"egressproxy {summary['version']}", "bold"), (f" at {Authority(*admin)}  ", ""), ready,
        (f"  configuration {summary['configuration']}", ""),
        ("  the latest one is rejected" if summary["is_rejected"] else "", "bold red"),
        (f"  workers {summary['workers']}  connections {summary['open_connections']}", ""),
    ]  # fmt: skip
    latency = f"  p50 {_number(found['p50_ms'])} ms  p95 {_number(found['p95_ms'])} ms"
    yield [
        (f"{found['requests']} requests/s", "bold"),
        (f"  {found['denials']} denials/s", "red" if found["denials"] else ""),
        (f"  {found['failures']} failures/s", "yellow" if found["failures"] else ""), (latency, ""),
        (f"  {minute['tokens']} tokens/min  {minute['cost']:g} cost/min" if minute and minute["tokens"] else "", ""),
        (f"  of {found['lost']} requests/s only the number is known" if found["lost"] else "", "dim"),
    ]  # fmt: skip
    for what in ("destinations", "callers", "backends"):
        yield [("", "")]
        yield [(f"{what.upper():{_WIDTH}} {'req/s':>8} {'denied/s':>9} {'p95 ms':>9}", "bold")]
        for each in found[what][:rows]:
            name = each["name"] if len(each["name"]) <= _WIDTH else f"{each['name'][: _WIDTH - 1]}…"
            yield [
                (f"{name:{_WIDTH}} {each['requests']:>8} ", ""),
                (f"{each['denials']:>9}", "red" if each["denials"] else ""), (f" {_number(each['p95_ms']):>9}", ""),
            ]  # fmt: skip
    yield [("", "")]
    yield [("LATEST DENIALS", "bold")]
    for each in found["denied"][:rows]:
        yield [
            (f"{_clock(each['time'])} ", "dim"), (f"{each['method']} {each['authority']}", ""),
            (f" by {caller_of({**each, 'client': _host(each['client'])})}", ""), (f"  {each['reason']}", "red"),
            (f"  {each['request_id']}", "dim"),
        ]  # fmt: skip


def _clock(time: str) -> str:
    """The time of day here, of a time of the access log."""
    return clock(datetime.fromisoformat(time).timestamp())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
