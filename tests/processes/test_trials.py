"""Trials: policies that would replace others, decided beside the traffic and counted in status."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.app import App
from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.processes.loader.answer import answer
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig, read_answer, shown
from egressproxy.processes.loader.trials import judged
from egressproxy.processes.trials import MAX_REQUEST, NAME, TrialCounts, Trials
from egressproxy.run_options import RunOptions
from tests.support import manifests as m

DAY = 86_400.0


def loaded(folder: Path, *policies: m.Manifest) -> CompiledConfig:
    """What the loader makes of a forward proxy with these policies."""
    path = folder / "all.yaml"
    path.write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(3128)), *policies]))
    return read_answer(answer(write_request(LoadRequest((path,), ("127.0.0.1",)))))


def on_trial(*allow: str, name: str = "next", **sections: Any) -> m.Manifest:
    return m.policy(allow, name=name, mode="Report", replaces={"name": "default", "quietFor": "48h"}, **sections)


def decision(host: str, at: float = 100.0, reason: str = "-") -> RecentDecision:
    return RecentDecision("CONNECT", "https", f"{host}:443", "-", "agents/gw", "forward", "-", "-", reason, at)


class Gateway:
    """A data plane and a loader: what they are asked is answered at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 50.0
        self.recent: list[RecentDecision] = []
        self.judged = 0
        self.published = 0
        self.flips: Counter[tuple[str, str]] = Counter()

    def trials(self) -> Trials:
        return Trials(self, self, self.flips, self.folder, self.publish, lambda: self.now)  # type: ignore[arg-type]

    async def publish(self) -> None:
        self.published += 1

    async def ask_some(self, name: str) -> list[bytes]:
        assert name == "decisions"
        return [json.dumps([each._asdict() for each in self.recent]).encode()]

    async def ask(self, _function: str, request: bytes, read: Callable[[bytes], Any]) -> Any:
        self.judged += 1
        return read(await asyncio.to_thread(judged, request))


def status(trials: Trials, packed: bytes, name: str = "next") -> dict[str, Any]:
    [found] = [each for each in shown(trials.overlay(packed)) if each.name == name]
    assert found.status is not None
    made: dict[str, Any] = json.loads(found.status)
    [_, ready] = made["ancestors"][0]["conditions"]
    return {**made["trial"], "ready": (ready["type"], ready["status"], ready["reason"]), "message": ready["message"]}


async def test_what_would_flip_is_counted_until_it_is_quiet(tmp_path: Path):
    config = loaded(tmp_path, m.policy(["a.example", "b.example"]), on_trial("a.example", "c.example"))
    gateway = Gateway(tmp_path)
    trials = gateway.trials()
    trials.follow(config.trials)
    assert status(trials, config.shown)["ready"] == ("ReadyToEnforce", "False", "NoDecisions")
    old = decision("b.example", 10.0)  # before the trial
    gateway.recent = [old, decision("a.example"), decision("b.example"), decision("b.example", 101.0),
                      decision("c.example", 102.0, "destination_not_allowed"), decision("x.example", 103.0,
                      "destination_not_allowed")]  # fmt: skip
    await trials.look()
    await trials.judge()
    found = status(trials, config.shown)
    assert (found["decisions"], found["wouldDeny"], found["wouldAllow"]) == (5, 2, 1)
    assert (found["ready"][1:], found["lastRequest"]) == (("False", "WouldFlip"), "CONNECT c.example:443 by -/-: allow")
    assert found["days"] == [{"date": "1970-01-01", "decisions": 5, "wouldDeny": 2, "wouldAllow": 1}]
    assert gateway.flips == {
        ("agents/default", "same"): 2, ("agents/default", "would_deny"): 2, ("agents/default", "would_allow"): 1,
    }  # fmt: skip
    for hour in range(1, 50):
        gateway.now = 103.0 + 3600 * hour
        gateway.recent = [decision("a.example", gateway.now), *gateway.recent][:6]
        await trials.look()
        await trials.judge()
        trials._counts["agents/default"].unseen_s = 0  # it looks every half minute
    found = status(trials, config.shown)
    assert (found["ready"][1:], found["decisions"]) == (("True", "Quiet"), 54)
    assert found["message"].startswith(
        "quiet for 2 days, 0:00:00 of 2 days, 0:00:00: of 54 decisions since 1970-01-01T00:00:50Z 2 would"
    )
    assert gateway.judged == 1  # what is known is not decided again
    gateway.now += 7.0
    trials.follow(config.trials)  # a reload of other objects writes no status
    assert status(trials, config.shown) == found


async def test_counts_survive_a_restart_and_end_with_the_policy(tmp_path: Path):
    in_force, tried = m.policy(["a.example", "b.example"]), on_trial("a.example")
    config = loaded(tmp_path, in_force, tried)
    gateway = Gateway(tmp_path)
    trials = gateway.trials()
    trials.follow(config.trials)
    gateway.recent = [decision("b.example")]
    await trials.look()
    await trials.judge()
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    gateway.now = 5 * DAY
    after = gateway.trials()
    after.follow(config.trials)
    found = status(after, config.shown)
    assert (found["wouldDeny"], found["ready"][2]) == (1, "WouldFlip")  # nobody looked for five days
    changed = loaded(tmp_path, in_force, on_trial("b.example"))
    after.follow(changed.trials)
    assert status(after, changed.shown)["decisions"] == 0
    after.follow(())


@pytest.mark.parametrize(
    "broken",
    [{"since": None}, {"since": 1e300}, {"last_flip": float("nan")}, {"unseen_s": -1e9}, {"decisions": "9"},
     {"days": {"2026-03-01": [1]}}, {"days": []}, {"more": 1}],
    ids=str,
)  # fmt: skip
async def test_a_broken_state_file_begins_anew(broken: dict[str, Any], tmp_path: Path):
    config = loaded(tmp_path, m.policy(["a.example"]), on_trial("b.example"))
    counts = {"mark": config.trials[0].mark, "since": 1.0, "decisions": 9, **broken}
    (tmp_path / NAME).write_text(json.dumps({"trials": {"agents/default": counts}}))
    trials = Gateway(tmp_path).trials()
    trials.follow(config.trials)
    assert status(trials, config.shown)["decisions"] == 0
    trials.follow(())


def test_a_state_file_of_brackets_begins_anew(tmp_path: Path):
    (tmp_path / NAME).write_text("[" * 200_000)
    assert Gateway(tmp_path).trials()._counts == {}


def test_the_request_that_another_gateway_tells_is_cut():
    told = {
        "digest": "a", "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z", "decisions": 1, "wouldDeny": 1,
        "wouldAllow": 0, "unseenSeconds": 0, "lastRequest": "x" * 40_000,
    }  # fmt: skip
    assert len(TrialCounts.of_status(told).last_request) == MAX_REQUEST  # a condition has 32,768 characters


async def test_another_gateway_goes_on_from_the_counts_of_status(tmp_path: Path):
    config = loaded(tmp_path, m.policy(["a.example", "b.example"]), on_trial("a.example"))
    one, two = Gateway(tmp_path), Gateway(tmp_path)

    def told(trials: Trials) -> dict[str, bytes]:
        return {"agents/next": json.dumps(status(trials, config.shown)).encode()}

    first, second = one.trials(), two.trials()
    one.now, two.now = 50.7, 2 * DAY
    first.follow(config.trials)
    one.recent = [decision("a.example"), decision("b.example")]
    await first.look()
    one.now = DAY
    await first.judge()
    first.hear(told(first))  # its own change nothing
    second.follow(config.trials)
    two.recent = [decision("a.example", 2 * DAY + 1)]
    await second.look()
    await second.judge()
    for _ in range(2):
        second.hear({"agents/next": b'{"digest": 1}', "agents/other": b"["})
        second.hear(told(first))
    two.now = 2 * DAY + 300
    await second.judge()
    found = status(second, config.shown)
    assert (found["since"], found["decisions"], found["wouldDeny"]) == ("1970-01-01T00:00:50Z", 3, 1)
    assert found["days"] == [
        {"date": "1970-01-01", "decisions": 2, "wouldDeny": 1, "wouldAllow": 0},
        {"date": "1970-01-03", "decisions": 1, "wouldDeny": 0, "wouldAllow": 0},
    ]  # fmt: skip
    assert (found["lastRequest"], found["unseenSeconds"]) == ("CONNECT b.example:443 by -/-: deny", 2 * DAY - 51)
    two.now += DAY
    two.recent = [decision("b.example", two.now)]
    await second.look()
    await second.judge()
    first.hear(told(second))  # a later flip takes quiet from the first one, whose counts stay
    await first.judge()
    found = status(first, config.shown)
    assert (found["lastFlip"], found["decisions"]) == ("1970-01-04T00:05:00Z", 2)
    idle = TrialCounts(config.trials[0].mark, 0.0)
    idle.join(TrialCounts.of_status(found))
    assert idle.condition(config.trials[0], two.now)[:2] == (False, "WouldFlip")  # without decisions of its own
    first.follow(())
    second.follow(())


def test_policies_that_replace_nothing_take_no_trial_from_others(tmp_path: Path):
    lost = [m.policy(["a.example"], name=f"lost{at}", replaces={"name": f"a{at}"}) for at in range(5)]
    config = loaded(tmp_path, *lost, m.policy(["a.example"]), on_trial("b.example"))
    assert [(each.replaced, each.why) for each in config.trials] == [("agents/default", "")]


def test_policies_that_replace_each_other_are_neither_in_force_nor_tried(tmp_path: Path):
    alone = loaded(tmp_path)
    config = loaded(tmp_path, m.policy(["a.example"], replaces={"name": "next"}), on_trial("b.example"))
    assert (config.spec, config.trials) == (alone.spec, ())
    assert [each.code for each in config.findings if "is in force" in each.message] == ["TargetNotFound"] * 2


def test_a_policy_on_trial_is_not_in_force(tmp_path: Path):
    """Not even its denials; and two that name the same policy are tried together."""
    config = loaded(
        tmp_path, m.policy(["a.example"]), on_trial("b.example"), on_trial("c.example", name="other"),
        m.policy(["d.example"], name="third", replaces={"name": "nobody"}),
    )  # fmt: skip
    assert [(each.policies, each.replaced, each.quiet_s) for each in config.trials] == [
        (("agents/next", "agents/other"), "agents/default", 172_800.0)
    ]
    assert "spec" not in repr(config.trials[0])
    accepted = {
        each.name: json.loads(each.status)["ancestors"][0]["conditions"][0]
        for each in shown(config.shown) if each.kind == "EgressPolicy" and each.status is not None
    }  # fmt: skip
    assert {name: each["reason"] for name, each in accepted.items()} == {
        "default": "Accepted", "next": "OnTrial", "other": "OnTrial", "third": "TargetNotFound",
    }  # fmt: skip
    alone = loaded(tmp_path, m.policy(["a.example"]))
    assert config.spec == alone.spec
    assert alone.trials == ()


def test_a_configuration_that_cannot_be_tried_says_why(tmp_path: Path):
    counts, [trial] = TrialCounts("", 0.0), loaded(tmp_path, m.policy(["a.example"]), on_trial("a.example")).trials
    broken = trial._replace(spec=b"", why="with the policy in force the configuration is invalid: x")
    assert counts.condition(broken, 1.0) == (False, "NotTried", broken.why)
    assert counts.condition(trial, 1.0)[1] == "NoDecisions"
    counts.add(1.0, "", 3, "")
    assert counts.condition(trial, 3600.0)[1:] == (
        "TooEarly",
        "quiet for 1:00:00 of 2 days, 0:00:00: of 3 decisions since 1970-01-01T00:00:00Z 0 would be denied and 0"
        " allowed in place of agents/default",
    )  # fmt: skip


async def test_the_configuration_in_service_shows_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    live = App(RunOptions(config=(tmp_path,), admin=None, access_log="off"))._live

    async def applied(_asked: object) -> None:
        pass

    monkeypatch.setattr(live._data_plane, "apply", applied)
    await live.put_in_service(loaded(tmp_path, m.policy(["a.example"]), on_trial("b.example")))

    def trials_shown() -> list[str]:
        return [each.name for each in live.published.objects() if b'"trial"' in (each.status or b"")]

    assert trials_shown() == ["next"]
    version = live.published.version
    await live._show_trials()
    assert trials_shown() == ["next"]
    await live.put_in_service(loaded(tmp_path, m.policy(["a.example"])))
    assert (trials_shown(), live.published.version > version) == ([], True)


def test_a_gateway_without_a_trial_imports_nothing_of_it():
    code = "import sys, egressproxy.app, egressproxy.processes.workers.worker; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "egressproxy.reloads" in found
    others = ("egressproxy.processes.trials", "egressproxy.processes.loader.trials", "egressproxy.operators.learning")
    assert not [each for each in found if each.startswith(others)]
