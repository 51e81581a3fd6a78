"""Recorded days: access logs of a made-up company, with the truth about each line. The same seed gives the same day.

A company has habits (`Company`), which stay from day to day. A day draws from them, and adds what no list should hold:
retries, typing errors, single visits, and exfiltration of twenty kinds.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

GATEWAY: Final = "egress/gw"
DAY_S: Final = 86_400
#: Sunday, so that the weekly jobs of some accounts run on the first day.
BEGIN: Final = datetime(2026, 3, 1, tzinfo=UTC).timestamp()

_COMMON: Final = (
    "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "api.openai.com", "api.anthropic.com", "github.com",
    "api.github.com", "codeload.github.com", "objects.githubusercontent.com", "gitlab.com", "huggingface.co",
    "generativelanguage.googleapis.com", "proxy.golang.org", "sum.golang.org", "index.crates.io", "static.crates.io",
    "deb.debian.org", "repo.maven.apache.org", "auth.docker.io", "registry-1.docker.io",
    "production.cloudflare.docker.com",
    "api.mistral.ai", "openrouter.ai", "sentry.io", "hooks.slack.com",
)  # fmt: skip
_WORDS: Final = (
    "river", "stone", "cloud", "metric", "ledger", "parcel", "signal", "harbor", "atlas", "comet", "maple",
    "engine", "garden", "mirror", "summit", "lantern", "copper", "beacon", "orchard", "pixel", "quartz",
    "ribbon", "saddle", "timber", "velvet", "willow", "anchor", "bridge", "cinder", "delta", "ember", "falcon",
    "glacier",
)  # fmt: skip
_ENDINGS: Final = ("com", "io", "net", "dev", "ai", "co.uk", "de", "org")
_PARTS: Final = ("api", "app", "events", "ingest", "data", "eu", "us", "v2", "files", "auth", "search", "feed")


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a company and of its days. `opens` and `closes` are hours between which people work."""

    decisions: int = 50_000
    namespaces: int = 8
    accounts: int = 5
    common: tuple[int, int] = (3, 6)
    own: tuple[int, int] = (3, 9)
    buckets: tuple[int, int] = (6, 40)
    opens: int = 0
    closes: int = 24
    single_visits: int = 300
    typing_errors: int = 60


SHAPES: Final = {
    "company": Shape(),
    "startup": Shape(
        9_000, namespaces=4, accounts=3, common=(2, 4), own=(2, 12), buckets=(3, 15), opens=7, closes=19,
        single_visits=150, typing_errors=40,
    ),
    "campus": Shape(
        20_000, namespaces=6, accounts=6, common=(1, 8), own=(4, 7), buckets=(1, 25), opens=8, closes=20,
        single_visits=800, typing_errors=200,
    ),
    "small": Shape(2_000, namespaces=2, accounts=3, common=(2, 3), own=(2, 4), buckets=(2, 4), single_visits=40,
                   typing_errors=10),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    namespace: str
    name: str

    @property
    def identity(self) -> str:
        """The name in the log."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class Habit:
    """What an account does every day. `kind`: steady, job (one run a day), weekly (one run a week) or upload."""

    account: Account
    host: str
    port: int
    share: float
    kind: str = "steady"
    weekday: int = 0


Destination = tuple[Account, str, int]


@dataclass(slots=True)
class Day:
    """The lines of a day in the order of the log; and the truth: recurring destinations with their requests, and what
    was planted, by kind.
    """

    lines: list[str] = field(default_factory=list)
    recurring: Counter[Destination] = field(default_factory=Counter)
    weekly: Counter[Destination] = field(default_factory=Counter)
    planted: dict[str, set[Destination]] = field(default_factory=dict)


class Company:
    """Accounts with their habits, drawn once."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        draw = random.Random(seed)
        self._draw = draw
        self.accounts: list[Account] = []
        self.habits: list[Habit] = []
        for number in range(shape.namespaces):
            namespace = f"{_WORDS[number]}-team"
            accounts = [Account(namespace, f"{role}") for role in _roles(shape.accounts)]
            self.accounts += accounts
            common = draw.sample(_COMMON, draw.randint(*shape.common))
            for at, account in enumerate(accounts):
                self.habits += [Habit(account, host, 443, draw.uniform(2, 10)) for host in common]
                own = {self._owner() for _ in range(draw.randint(*shape.own))} | set(draw.sample(_COMMON, 2))
                self.habits += [Habit(account, host, 443, draw.uniform(0.6, 6)) for host in sorted(own - set(common))]
                if at == 1:
                    self._add_buckets(account)
                elif at == 2:
                    host = f"{_WORDS[number]}-backups.s3.eu-central-1.amazonaws.com"
                    self.habits.append(Habit(account, host, 443, 12, "upload"))
                if at % 2:
                    self.habits.append(Habit(account, self._owner(), 443, 0, "job"))
                if at in (0, 3):
                    weekday = 6 if number % 2 else 0
                    self.habits += [Habit(account, self._owner(), 443, 0, "weekly", weekday) for _ in range(3)]
            if draw.random() < 0.5:
                self.habits.append(Habit(accounts[0], "deb.debian.org", 80, 1.5))

    def careful_list(self, day: int) -> set[tuple[str, str, str]]:
        """Entries of a careful person: (namespace, account, host), the account "" where all accounts do."""
        known: dict[tuple[str, str], set[str]] = {}
        for habit in self.habits:
            if habit.kind != "weekly" or self._runs(habit, day):
                known.setdefault((habit.account.namespace, habit.host), set()).add(habit.account.name)
        every = _roles(self.shape.accounts)
        return {
            (namespace, account, host)
            for (namespace, host), accounts in known.items()
            for account in ([""] if len(accounts) == len(every) else accounts)
        }

    def day(self, number: int, seed: int) -> Day:
        """One day: `number` 0 is a Sunday."""
        return _Recorder(self, number, random.Random(seed)).day

    def _runs(self, habit: Habit, day: int) -> bool:
        return habit.weekday == (day + 6) % 7

    def _add_buckets(self, account: Account) -> None:
        draw = self._draw
        for at in range(draw.randint(*self.shape.buckets)):
            bucket = f"{draw.choice(_WORDS)}-{draw.choice(('exports', 'raw', 'models', 'logs'))}-{at}"
            if at % 5 == 4:
                bucket = f"{draw.getrandbits(128):032x}"  # some tools name buckets so
            self.habits.append(Habit(account, f"{bucket}.s3.eu-central-1.amazonaws.com", 443, draw.uniform(0.7, 3)))

    def _owner(self) -> str:
        draw = self._draw
        domain = f"{draw.choice(_WORDS)}{draw.choice(_WORDS)}.{draw.choice(_ENDINGS)}"
        return f"{draw.choice(_PARTS)}.{domain}" if draw.random() < 0.8 else domain


def _roles(count: int) -> list[str]:
    return ["worker", "trainer", "backup", "crawler", "agent", "ci", "web", "mailer"][:count]


class _Recorder:
    def __init__(self, company: Company, number: int, draw: random.Random) -> None:
        self.company = company
        self.draw = draw
        self.number = number
        self.begin = BEGIN + number * DAY_S
        self.shape = company.shape
        self.day = Day()
        self.made: list[tuple[float, int, str]] = []
        self._plant()
        self._add_noise()
        self._add_jobs()
        self._add_steady()
        self.made.sort()
        self.day.lines = [line for _, _, line in self.made]

    def moment(self) -> float:
        opens, closes = self.shape.opens, self.shape.closes
        return self.begin + self.draw.uniform(opens * 3600, closes * 3600 - 60)

    def add(self, account: Account, host: str, port: int, at: float, **more: Any) -> None:
        """One line."""
        draw = self.draw
        is_tunnel = port != 80 and "method" not in more
        line = {
            "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "kind": "tunnel" if is_tunnel else "request", "gateway": GATEWAY, "listener": "forward", "route": "-",
            "backend": "-", "namespace": account.namespace, "service_account": account.name,
            "identity": account.identity, "identity_source": "token", "policy": "egress/learning",
            "entry": "mode: Report", "rule": "EgressPolicy egress/learning",
            "client": f"10.1.{draw.randrange(256)}.{draw.randrange(256)}:{draw.randrange(1024, 65535)}",
            "method": "CONNECT" if is_tunnel else "GET", "authority": f"{host}:{port}",
            "path": "-" if is_tunnel else "/debian/dists/stable/InRelease", "status": 200, "reason": "-", "flags": "-",
            "upstream": f"151.101.{draw.randrange(256)}.{draw.randrange(256)}:{port}",
            "bytes_in": draw.randrange(400, 20_000), "bytes_out": draw.randrange(2_000, 500_000),
            "duration_ms": round(draw.uniform(1, 900), 3), "request_id": f"{draw.getrandbits(32):08x}-1",
            "would_deny": ["destination_not_allowed"],
        }  # fmt: skip
        line |= more
        self.made.append((at, len(self.made), json.dumps(line, separators=(",", ":")) + "\n"))

    def fail(self, account: Account, host: str, port: int, at: float, reason: str) -> None:
        self.add(account, host, port, at, status=502, reason=reason, upstream="-", bytes_out=300)

    def habit(self, habit: Habit, at: float) -> None:
        """One request of a habit, some of them with a retry."""
        draw, key = self.draw, (habit.account, habit.host, habit.port)
        truth = self.day.weekly if habit.kind == "weekly" else self.day.recurring
        if draw.random() < 0.03:
            self.fail(*key, at - draw.uniform(1, 10), draw.choice(("upstream_connect_timeout", "upstream_refused")))
        more: dict[str, Any] = {}
        if habit.kind == "upload":
            more = {"bytes_in": draw.randrange(5_000_000, 50_000_000), "bytes_out": draw.randrange(500, 5_000)}
        elif habit.host.startswith("api.") and draw.random() < 0.05:
            more = {"bytes_in": draw.randrange(100_000, 3_000_000), "bytes_out": draw.randrange(500_000, 9_000_000)}
        truth[key] += 1
        self.add(*key, at, **more)

    def _add_steady(self) -> None:
        steady = [each for each in self.company.habits if each.kind in ("steady", "upload")]
        left = self.shape.decisions - len(self.made)
        least = min(14, left // len(steady))  # what is rarer is no habit of every day
        for habit in steady:
            for _ in range(least):
                self.habit(habit, self.moment())
        while len(self.made) < self.shape.decisions:
            [habit] = self.draw.choices(steady, [each.share for each in steady])
            self.habit(habit, self.moment())

    def _add_jobs(self) -> None:
        for habit in self.company.habits:
            if habit.kind == "job" or (habit.kind == "weekly" and self.company._runs(habit, self.number)):
                at = self.begin + 12 * 3600 + self.draw.uniform(0, 3600)
                for _ in range(self.draw.randint(6, 14)):
                    at += self.draw.uniform(20, 70)
                    self.habit(habit, at)

    def _add_noise(self) -> None:
        draw = self.draw
        for _ in range(self.shape.single_visits):
            host = f"www.{draw.choice(_WORDS)}-{draw.choice(_WORDS)}-{draw.randrange(900)}.{draw.choice(_ENDINGS)}"
            account, at = draw.choice(self.company.accounts), self.moment()
            for _ in range(draw.choice((1, 1, 1, 2))):
                self.add(account, host, 443, at)
                at += draw.uniform(1, 5)
        for _ in range(self.shape.typing_errors):
            habit = draw.choice(self.company.habits)
            at = draw.randrange(len(habit.host) - 4)
            wrong = habit.host[:at] + draw.choice("abcdefghij") + habit.host[at + 1 :]
            if wrong != habit.host:
                for when in range(draw.randint(1, 6)):
                    self.fail(habit.account, wrong, 443, self.moment() + when, "dns_nxdomain")

    # --- what must not be learnt ---------------------------------------------------------------------------------
    def plant(self, kind: str, account: Account, host: str, port: int, at: float, **more: Any) -> None:
        self.day.planted.setdefault(kind, set()).add((account, host, port))
        self.add(account, host, port, at, **more)

    def someone(self) -> Account:
        return self.draw.choice(self.company.accounts)

    def word(self) -> str:
        return f"{self.draw.choice(_WORDS)}{self.draw.choice(_WORDS)}"

    def letters(self, least: int, most: int, alphabet: str = "abcdefghijklmnopqrstuvwxyz") -> str:
        """Random letters."""
        return "".join(self.draw.choice(alphabet) for _ in range(self.draw.randint(least, most)))

    def _plant(self) -> None:
        draw, plant, letters = self.draw, self.plant, self.letters
        someone, word = self.someone, self.word
        base32, hexadecimal = "abcdefghijklmnopqrstuvwxyz234567", "0123456789abcdef"
        noon = self.begin + 12 * 3600
        who = someone()
        for _ in range(45):
            plant("generated names in a burst", who, f"{letters(8, 14)}.{draw.choice(('com', 'net', 'top'))}", 443,
                  noon + draw.uniform(0, 300))  # fmt: skip
        who, found = someone(), f"{letters(9, 13)}.net"
        for _ in range(60):
            self.fail(who, f"{letters(8, 14)}.net", 443, noon - 14_400 + draw.uniform(0, 400), "dns_nxdomain")
        for again in range(30):
            plant("generated names, of which one exists", who, found, 443, noon - 14_200 + again * 300)
        who = someone()
        for _ in range(20):
            name, at = f"{letters(9, 12)}.info", noon - 7200 + draw.uniform(0, 60)
            for again in range(5):
                plant("generated names, each five times", who, name, 443, at + again * 61)
        who, domain = someone(), f"{word()}.net"
        for _ in range(min(200, self.shape.decisions // 40)):
            plant("a DNS tunnel", who, f"{letters(28, 50, base32)}.t.{domain}", 443, noon + draw.uniform(0, 3600))
        who, domain = someone(), f"{word()}.org"
        for _ in range(30):
            name, at = f"{letters(32, 32, hexadecimal)}.{domain}", self.moment()
            for again in range(4):
                plant("a slow DNS tunnel with repeats", who, name, 443, at + again * 90)
        for kind, host in (("a paste site", "pastebin.com"), ("a paste site with a retry", "paste.rs")):
            who, at = someone(), self.moment()
            for again in range(1 if "retry" not in kind else 3):
                plant(kind, who, host, 443, at + 4 * again, bytes_in=40_000)
        for kind, host in (("a public address", "185.199.110.77"), ("a private address", "10.9.8.7")):
            who = someone()
            for _ in range(25):
                plant(kind, who, host, 443, self.moment(), upstream=f"{host}:443")
        who = someone()
        for _ in range(12):
            plant("the metadata address", who, "169.254.169.254", 80, self.moment(), upstream="169.254.169.254:80")
            plant(
                "a name of metadata", who, "metadata.google.internal", 80, self.moment(), upstream="169.254.169.254:80"
            )
        for kind, port in (("a beacon to port 4444", 4444), ("a chat port", 6667)):
            who, host = someone(), f"c.{word()}.com"
            for _ in range(20):
                plant(kind, who, host, port, self.moment())
        who, host = someone(), f"collect.{word()}.io"
        for again in range(20):
            more: dict[str, Any] = {"canary": "honey-1", "method": "POST", "path": "/in"} if again == 7 else {}
            plant("a canary key", who, host, 443, self.moment(), **more)
        who, host = someone(), f"status.{word()}.org"
        plant("one name twice", who, host, 443, self.begin + 8 * 3600)
        plant("one name twice", who, host, 443, self.begin + 18 * 3600)
        who, domain = someone(), f"{word()}.de"
        for at in range(9):
            for hour in (8, 15):
                plant(
                    "a drip of names, each twice",
                    who,
                    f"{_WORDS[at]}.{domain}",
                    443,
                    self.begin + (hour + at / 4) * 3600,
                )
        frequent = Counter(each.host for each in self.company.habits if each.host.count(".") == 2)
        target = frequent.most_common(1)[0][0]
        label, _, rest = target.partition(".")
        owner, _, ending = rest.partition(".")
        like = f"{label}.{owner[:-1]}{'l' if owner[-1] != 'l' else 'i'}.{ending}"
        for kind, host in (("a lookalike", like), ("a domain inside another one", f"{rest}.{word()}.net")):
            who = someone()
            for _ in range(6):
                plant(kind, who, host, 443, self.moment())
        who, host = someone(), f"drop.{word()}.com"
        for again in range(5):
            plant("an upload", who, host, 443, noon + again * 500, bytes_in=30_000_000, bytes_out=900)
        who, host = someone(), f"sync.{word()}.io"
        for again in range(40 if self.shape.decisions > 5_000 else 12):
            sizes: dict[str, Any] = {"bytes_in": 400_000 if self.shape.decisions > 5_000 else 900_000, "bytes_out": 900}
            plant("an upload in pieces", who, host, 443, noon - 14_400 + again * 270, **sizes)
