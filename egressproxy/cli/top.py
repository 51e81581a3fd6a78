"""`egressproxy top`: the traffic of a running gateway, as it passes."""

from __future__ import annotations

import json
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, Final

import click

from egressproxy.cli.asking import AdminAddress, ask, lines
from egressproxy.cli.denials import caller_of, clock
from egressproxy.cli.options import asking_options
from egressproxy.cli.styled_lines import StyledLine, print_found, print_lines, printable

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

#: A line of the access log, as /live shows it.
Event = Mapping[str, Any]


class Traffic:
    """What has come from /live lately. `add` may be called in another thread."""

    def __init__(self, denials: frozenset[str]) -> None:
        self._denials = denials
        self._lock = Lock()
        self._events: deque[tuple[float, str, Mapping[str, Any]]] = deque(maxlen=MAX_EVENTS)
        self._denied: deque[Mapping[str, Any]] = deque(maxlen=MAX_DENIALS)
        self._began = monotonic()

    def add(self, event: str, data: Mapping[str, Any], now: float) -> None:
        """Take one event of the stream."""
        with self._lock:
            self._events.append((now, event, data))
            if data.get("reason") in self._denials:
                self._denied.appendleft(data)

    def figures(self, now: float) -> dict[str, Any]:
        """Rates in a second, percentiles in milliseconds, the busiest by name, and the latest denials."""
        with self._lock:
            latest = [(event, data) for at, event, data in self._events if now - at <= WINDOW_S]
            denied = list(self._denied)
        events = [data for event, data in latest if event == "exchange"]
        lost = sum(data["lost"] for event, data in latest if event == "lost")
        span = max(min(WINDOW_S, now - self._began), 0.1)
        total = self._rates(events, span)
        failed = sum(each["reason"] != "-" and each["reason"] not in self._denials for each in events)
        return {
            **total, "requests": round((len(events) + lost) / span, 1), "failures": round(failed / span, 1),
            "lost": round(lost / span, 1), "p50_ms": _share(events, 0.5), "denied": denied,
            "destinations": self._busiest(events, span, lambda each: str(each["authority"])),
            "callers": self._busiest(events, span, _caller),
            "backends": self._busiest(events, span, lambda each: str(each["backend"])),
        }  # fmt: skip

    def _busiest(self, events: Sequence[Event], span: float, name: Callable[[Event], str]) -> list[dict[str, Any]]:
        found: defaultdict[str, list[Event]] = defaultdict(list)
        for each in events:
            found[name(each)].append(each)
        busiest = sorted(found, key=lambda key: -len(found[key]))[:MAX_DENIALS]
        return [{"name": key, **self._rates(found[key], span)} for key in busiest]

    def _rates(self, events: Sequence[Event], span: float) -> dict[str, Any]:
        denied = sum(each["reason"] in self._denials for each in events)
        return {
            "requests": round(len(events) / span, 1), "denials": round(denied / span, 1),
            "p95_ms": _share(events, 0.95),
        }  # fmt: skip


def _share(events: Sequence[Event], share: float) -> float | None:
    times = sorted(each["duration_ms"] for each in events)
    return times[min(int(len(times) * share), len(times) - 1)] if times else None


def _caller(event: Event) -> str:
    client = event["client"]
    return caller_of({**event, "client": client.rpartition(":")[0] or client})


@click.command("top")
@click.option("--once", is_flag=True, help="Print once, as plain lines, and end: so it is where there is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 60.0), default=2.0, show_default=True, metavar="SECONDS",
    help="How often the figures change; with --once: how long to watch.",
)  # fmt: skip
@asking_options
def command(once: bool, interval: float, output: str, admin: AdminAddress) -> None:
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
    known = _rest(admin)
    reading = Thread(target=_read, args=(traffic, admin), daemon=True)
    reading.start()
    if once or output == "json" or not sys.stdout.isatty():
        reading.join(interval)
        if reading.is_alive():
            found = {**traffic.figures(monotonic()), **known}
            print_found(found, output, lambda: print_lines(_lines(found, admin, PLAIN_ROWS), sys.stdout))
            return
    else:
        with suppress(KeyboardInterrupt):
            _watch(traffic, reading, admin, interval, known)
        if reading.is_alive():
            return
    click.echo("egressproxy: the gateway has ended the stream /live", err=True)
    sys.exit(2)


def _rest(admin: AdminAddress) -> dict[str, Any]:
    """The summary, and the latest whole minute, or the one that goes on."""
    minutes = ask(admin, "/history")["minutes"]
    return {"summary": ask(admin, "/summary"), "minute": minutes[-2:][0] if minutes else None}


def _read(traffic: Traffic, admin: AdminAddress) -> None:
    """Read /live until it ends. A refusal is printed where it raises SystemExit, which ends this thread."""
    event = ""
    for line in lines(admin, "/live", [("limit", str(LIMIT))], accept="text/event-stream"):
        if line.startswith(b"event: "):
            event = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            traffic.add(event, json.loads(line[6:]), monotonic())


def _watch(traffic: Traffic, reading: Thread, admin: AdminAddress, interval: float, known: dict[str, Any]) -> None:
    """Show it until the stream ends; what is `known` beside it is asked for anew."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    asked = monotonic()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while reading.is_alive():
            now = monotonic()
            if now - asked >= ASK_S:
                with suppress(SystemExit):  # what is printed on this screen is not seen afterwards
                    asked, known = now, _rest(admin)
            rows = max((console.size.height - 10) // 4, 2)
            shown = [
                Text.assemble(*((printable(text), style) for text, style in line), no_wrap=True, overflow="ellipsis")
                for line in _lines({**traffic.figures(now), **known}, admin, rows)
            ]
            live.update(Group(*shown[: console.size.height - 1]), refresh=True)
            sleep(interval)
    reading.join(1.0)


def _lines(found: Mapping[str, Any], admin: AdminAddress, rows: int) -> Iterator[StyledLine]:
    """What is shown, with so many rows of each list."""
    summary, minute = found["summary"], found["minute"]
    ready = ("ready", "green") if summary["ready"] else (f"not ready: {summary['why_not_ready']}", "bold red")
    yield [
        (f"egressproxy {summary['version']}", "bold"), (f" at {admin}  ", ""), ready,
        (f"  configuration {summary['configuration']}", ""),
        ("  the latest one is rejected" if summary["is_rejected"] else "", "bold red"),
        (f"  workers {summary['workers']}  connections {summary['open_connections']}", ""),
    ]  # fmt: skip
    yield [
        (f"{found['requests']} requests/s", "bold"),
        (f"  {found['denials']} denials/s", "red" if found["denials"] else ""),
        (f"  {found['failures']} failures/s", "yellow" if found["failures"] else ""),
        (f"  p50 {_number(found['p50_ms'])} ms  p95 {_number(found['p95_ms'])} ms", ""),
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
            (f"{clock(datetime.fromisoformat(each['time']).timestamp())} ", "dim"),
            (f"{each['method']} {each['authority']} by {_caller(each)}", ""), (f"  {each['reason']}", "red"),
            (f"  {each['request_id']}", "dim"),
        ]  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
