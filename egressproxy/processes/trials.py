"""Trials: what would come out otherwise if policies on trial were in force, counted beside the traffic.

Every few seconds the recent decisions of all workers are read. Requests that were not seen before are decided again by
the process that loads, with the policies on trial in force; a reload waits for that. The result is remembered, so that
usual traffic costs a look-up here and nothing on the path of a request. Where more decisions come than a worker keeps,
some are not looked at.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from egressproxy.errors import NotAnswered
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.model.encoding import rfc3339
from egressproxy.net.durable_file import replace_file
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.process import LoadingFailed
from egressproxy.processes.loader.result import Trial, pack_published, read_values, shown
from egressproxy.processes.pickling import dumps
from egressproxy.processes.workers.data_plane import DataPlane

log = logging.getLogger("egressproxy")

JUDGED: Final = "egressproxy.processes.loader.trials:judged"
#: In the folder of `--state-dir`.
NAME: Final = ".trials.json"
POLL_S: Final = 5.0
#: New requests are decided again at most so often, and status is published.
JUDGE_S: Final = 30.0
#: After this time without a look (a restart) the time between does not count as quiet.
UNSEEN_S: Final = 600.0
#: Status is published at most so often unless a decision would come out otherwise, or the trial gets ready.
PUBLISH_S: Final = 300.0
#: Different requests whose results are remembered; and those that wait to be decided.
MAX_KNOWN: Final = 8192
MAX_WAITING: Final = 4096
MAX_DAYS: Final = 32
#: Characters of a request in the status of another gateway, which becomes a part of our message.
MAX_REQUEST: Final = 1024
#: Seconds since 1970 of the year 2200: times of the state file lie before.
MAX_TIME: Final = 7_258_118_400
CONDITION: Final = "ReadyToEnforce"


@dataclass(slots=True)
class TrialCounts:
    """Of one trial: decisions since its begin, and what would have come out otherwise; times in seconds since 1970.
    `unseen_s` is the time since the last flip in which no process looked.
    """

    mark: str
    since: float
    decisions: int = 0
    would_deny: int = 0
    would_allow: int = 0
    last_flip: float = 0.0
    last_request: str = ""
    seen_until: float = 0.0
    unseen_s: float = 0.0
    days: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError or TypeError for values, of a file, that nobody has counted."""
        numbers = (
            self.decisions,
            self.would_deny,
            self.would_allow,
            *(each for day in self.days.values() for each in day),
        )
        times = self.since, self.last_flip, self.seen_until, self.unseen_s
        if not all(0 <= each < MAX_TIME for each in (*times, *numbers)) or any(
            len(day) != 3 for day in self.days.values()
        ):
            raise ValueError("not the counts of a trial")

    def add(self, at: float, flip: str, count: int, request: str) -> None:
        """Count decisions: `flip` is "", "deny" or "allow"."""
        day = self.days.setdefault(rfc3339(at)[:10], [0, 0, 0])
        day[0] += count
        self.decisions += count
        if flip:
            day[1 if flip == "deny" else 2] += count
            self.would_deny += count * (flip == "deny")
            self.would_allow += count * (flip == "allow")
            if at >= self.last_flip:
                self.unseen_s = 0.0
                self.last_flip, self.last_request = at, f"{request}: {flip}"
        while len(self.days) > MAX_DAYS:
            del self.days[min(self.days)]

    @classmethod
    def of_status(cls, told: Mapping[str, Any]) -> TrialCounts:
        """What `shown` has made of counts. Raises as a class does of values that nobody has counted, and KeyError."""
        times = [datetime.fromisoformat(told[each]).timestamp() for each in ("since", "until")]
        last_flip = datetime.fromisoformat(told["lastFlip"]).timestamp() if "lastFlip" in told else 0.0
        days = {
            str(each["date"]): [each["decisions"], each["wouldDeny"], each["wouldAllow"]]
            for each in told.get("days", ())[-MAX_DAYS:]
        }
        return cls(
            told["digest"], times[0], told["decisions"], told["wouldDeny"], told["wouldAllow"], last_flip,
            str(told.get("lastRequest", ""))[:MAX_REQUEST], times[1], told["unseenSeconds"], days,
        )  # fmt: skip

    def join(self, other: TrialCounts) -> None:
        """Take over what another gateway has counted of the same trial, to the second: a flip that came later, and all
        that came before this process.
        """
        if other.mark != self.mark:
            return
        gap_s = self.since - other.seen_until
        if is_older := other.since < int(self.since):
            self.since = other.since
            self.decisions += other.decisions
            self.would_deny += other.would_deny
            self.would_allow += other.would_allow
            for day, counts in other.days.items():
                self.days[day] = [sum(each) for each in zip(counts, self.days.get(day, (0, 0, 0)), strict=True)]
        if other.last_flip >= max(self.last_flip + 1, int(self.since)):
            self.last_flip, self.last_request, self.unseen_s = other.last_flip, other.last_request, 0.0
        if is_older and self.last_flip <= other.last_flip:
            self.unseen_s += other.unseen_s + (gap_s if gap_s > UNSEEN_S else 0)

    def look(self, now: float) -> None:
        """A process looks at the decisions now; after a long time without one that time is not called quiet."""
        if self.seen_until and now - self.seen_until > UNSEEN_S:
            self.unseen_s += now - self.seen_until
        self.seen_until = now

    def condition(self, trial: Trial, now: float) -> tuple[bool, str, str]:
        """Whether it is ReadyToEnforce, the reason in one word, and a sentence."""
        if trial.why:
            return False, "NotTried", trial.why
        if not self.decisions and not self.last_flip:  # another gateway may have had one
            return False, "NoDecisions", f"this gateway has made no decision since {rfc3339(self.since)}"
        quiet_s = now - max(self.since, self.last_flip) - self.unseen_s
        quiet, wanted = (timedelta(seconds=round(each)) for each in (min(quiet_s, trial.quiet_s), trial.quiet_s))
        last = f"; the last one at {rfc3339(self.last_flip)}, {self.last_request}" if self.last_flip else ""
        message = (
            f"quiet for {quiet} of {wanted}: of {self.decisions} decisions since {rfc3339(self.since)}"
            f" {self.would_deny} would be denied and {self.would_allow} allowed in place of {trial.replaced}{last}"
        )
        if quiet_s >= trial.quiet_s:
            return True, "Quiet", message
        return False, "WouldFlip" if self.last_flip else "TooEarly", message

    def shown(self, trial: Trial, now: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """For the status of a policy on trial: the condition, but for its `observedGeneration`, and `trial`."""
        holds, reason, message = self.condition(trial, now)
        since = max(self.since, self.last_flip) + (trial.quiet_s + self.unseen_s if holds else 0)
        condition = {
            "type": CONDITION, "status": "True" if holds else "False", "reason": reason, "message": message,
            "lastTransitionTime": rfc3339(since),
        }  # fmt: skip
        last = {"lastFlip": rfc3339(self.last_flip), "lastRequest": self.last_request} if self.last_flip else {}
        return condition, {
            "replaces": trial.replaced, "since": rfc3339(self.since), "decisions": self.decisions,
            "wouldDeny": self.would_deny, "wouldAllow": self.would_allow, **last, "digest": self.mark,
            "until": rfc3339(self.seen_until or now), "unseenSeconds": round(self.unseen_s),
            "days": [
                {"date": day, "decisions": count, "wouldDeny": deny, "wouldAllow": allow}
                for day, (count, deny, allow) in sorted(self.days.items())
            ],
        }  # fmt: skip


class Trials:
    """On the event loop. `on_change` is called when the counts that `overlay` shows have changed."""

    def __init__(
        self, data_plane: DataPlane, loader: Loader, flips: Counter[tuple[str, str]], state: Path | None,
        on_change: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`flips` counts decisions by policy and result for the metrics; `state` is the folder of --state-dir."""
        self._data_plane = data_plane
        self._loader = loader
        self._flips = flips
        self._file = state / NAME if state is not None else None
        self._on_change = on_change
        self._clock = clock
        self._trials: tuple[Trial, ...] = ()
        self._counts: Mapping[str, TrialCounts] = self._read()
        self._before: Counter[RecentDecision] = Counter()
        self._known: dict[RecentDecision, tuple[str, ...]] = {}
        self._waiting: dict[RecentDecision, tuple[int, float]] = {}
        self._task: asyncio.Task[None] | None = None
        #: By policy on trial: `TrialCounts.shown` as published last. Fresh counts at each reload would be a write of
        #: status each in a cluster.
        self._shown: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._published: object = None
        self._published_at = 0.0

    def follow(self, trials: tuple[Trial, ...]) -> None:
        """Try these, those of the configuration in service. Changed ones begin anew."""
        now, kept, same = self._clock(), self._counts, {each._replace(spec=b"") for each in self._trials}
        self._trials, self._known = trials, {}
        begun = {each.replaced: TrialCounts(each.mark, now) for each in trials}
        self._counts = {
            name: kept[name] if name in kept and kept[name].mark == new.mark else new for name, new in begun.items()
        }
        for counts in self._counts.values():
            counts.look(now)
        before, self._shown = self._shown, self._fresh(now)
        for each in trials:
            if each._replace(spec=b"") in same:
                self._shown |= {name: before[name] for name in each.policies}
        if trials and self._task is None:
            self._task = asyncio.create_task(self._run())
        elif not trials and self._task is not None:
            self._task.cancel()
            self._task = None

    def hear(self, told: Mapping[str, bytes]) -> None:
        """Take over what other gateways of a cluster have counted: `trial` (JSON) of the status of policies."""
        for trial in self._trials:
            for name in trial.policies:
                try:
                    if name in told:
                        self._counts[trial.replaced].join(TrialCounts.of_status(json.loads(told[name])))
                except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
                    continue  # not written by a gateway

    def overlay(self, packed: bytes) -> bytes:
        """The packed objects (`result.shown`) with the counts in the status of policies on trial. For a thread: there
        may be many objects.
        """
        by_policy, made = self._shown, []
        for each in shown(packed):
            found = by_policy.get(f"{each.namespace}/{each.name}")
            if found is not None and each.kind == "EgressPolicy" and each.status is not None:
                condition, trial = found
                status = json.loads(each.status)
                for part in status.get("ancestors", ()):
                    part["conditions"].append({**condition, "observedGeneration": each.generation})
                made.append(replace(each, status=json.dumps({**status, "trial": trial}).encode()))
            else:
                made.append(each)
        return pack_published(made)

    async def look(self) -> None:
        """Read the recent decisions, and count those whose result is known."""
        workers = await self._data_plane.ask_some("decisions")
        now, new = await asyncio.to_thread(_new, workers, self._before)
        self._before = now
        since = min((each.since for each in self._counts.values()), default=0.0)
        for decision, count in new.items():
            request = decision._replace(time=0.0, request_id="")
            if decision.time < since or request.authority == "-":
                continue
            if known := self._known.get(request):
                self._count(request, known, count, decision.time)
            elif request in self._waiting or len(self._waiting) < MAX_WAITING:
                waiting, at = self._waiting.get(request, (0, 0.0))
                self._waiting[request] = waiting + count, max(at, decision.time)

    async def judge(self) -> None:
        """Have the new requests decided again, count them, and publish the counts. Raises LoadingFailed, OSError."""
        trials, waiting = self._trials, self._waiting
        tried = [each for each in trials if each.spec]
        self._waiting = {}
        if waiting and tried:
            asked = dumps(([each.spec for each in tried], [tuple(each) for each in waiting]))
            answer = await self._loader.ask(JUDGED, asked, lambda data: read_values(data, ()))
            if self._trials is not trials:
                return  # another configuration is in service since
            if len(self._known) > MAX_KNOWN:
                self._known = {}
            for (request, (count, at)), *known in zip(waiting.items(), *answer, strict=True):
                self._known[request] = tuple(known)
                self._count(request, tuple(known), count, at)
        now = self._clock()
        for counts in self._counts.values():
            counts.look(now)
        # Each time it is published costs a write in a cluster.
        news = [(counts.since, counts.would_deny, counts.would_allow, counts.last_flip, counts.condition(each, now)[:2])
                for each in trials if (counts := self._counts[each.replaced])]  # fmt: skip
        if news != self._published or now - self._published_at >= PUBLISH_S:
            self._published, self._published_at = news, now
            self._shown = self._fresh(now)
            await self._on_change()
        await asyncio.to_thread(self._write)

    def _fresh(self, now: float) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """What is shown of each policy on trial, with the counts of now."""
        made = [(each, self._counts[each.replaced].shown(each, now)) for each in self._trials]
        return {name: told for each, told in made for name in each.policies}

    async def _run(self) -> None:
        next_judgement = 0.0
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.look()
                if time.monotonic() >= next_judgement:
                    next_judgement = time.monotonic() + JUDGE_S
                    await self.judge()
            except (NotAnswered, LoadingFailed, OSError) as error:
                log.warning("policies on trial are not looked at: %s", error)
            except Exception:
                log.exception("internal error: policies on trial are not looked at")

    def _count(self, request: RecentDecision, known: tuple[str, ...], count: int, at: float) -> None:
        text = f"{request.method} {request.authority} by {request.namespace}/{request.service_account}"
        for trial, flip in zip((each for each in self._trials if each.spec), known, strict=True):
            counts = self._counts[trial.replaced]
            if at >= counts.since:
                counts.add(at, flip, count, text)
                self._flips[trial.replaced, f"would_{flip}" if flip else "same"] += count

    def _read(self) -> dict[str, TrialCounts]:
        """The counts of the process before this one. A file that cannot be read begins anew: it decides nothing."""
        if self._file is None or not self._file.exists():
            return {}
        try:
            found = json.loads(self._file.read_bytes())
            return {name: TrialCounts(**each) for name, each in found["trials"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("%s cannot be read (%s): trials of policies begin anew", self._file, type(error).__name__)
            return {}

    def _write(self) -> None:
        if self._file is not None:
            made = {name: asdict(each) for name, each in self._counts.items()}
            try:
                replace_file(self._file, json.dumps({"version": 1, "trials": made}).encode())
            except OSError as error:
                log.warning("%s cannot be written: %s", self._file, error.strerror or error)


def _new(
    workers: Iterable[bytes], before: Counter[RecentDecision]
) -> tuple[Counter[RecentDecision], Counter[RecentDecision]]:
    """The recent decisions, and those that were not there before."""
    now = Counter(RecentDecision.of_admin(each) for worker in workers for each in json.loads(worker))
    return now, now - before
