"""`learn`: sources, what is written, and what is compared."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from egressproxy.cli import learn
from egressproxy.cli.main import main
from tests.operators.learning.kit import line, often
from tests.support import manifests as m

LINES = [
    *often("api.openai.com"), *often("api.openai.com", account="crawler"), *often("pypi.org"), *often("a.github.io"),
    *often("b.github.io"), *often("c.github.io"), *[each for n in "xyz" for each in often(f"{n}.shop.example.com")],
    line("once.example"),
]  # fmt: skip


def invoke(*arguments: str | Path, given: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["learn", *map(str, arguments)], input=given)


def text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(each) + "\n" for each in sorted(lines, key=lambda each: each["time"]))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    path.write_text(text(LINES))
    return path


def entries(written: str) -> dict[str, list[str]]:
    documents = [each for each in yaml.safe_load_all(written) if each]
    return {
        each["metadata"]["name"]: [
            f"{host}:{port}" for entry in each["spec"]["destinations"]["allow"]
            for host in entry["hostnames"] for port in entry["ports"]
        ]
        for each in documents
    }  # fmt: skip


def test_a_policy_for_the_namespace_and_one_for_each_account(log: Path, tmp_path: Path):
    result = invoke(log)
    assert result.exit_code == 0
    found = entries(result.stdout)
    assert found["learned.gw.agents"] == ["api.openai.com:443"]
    assert "pypi.org:443" in found["learned.gw.agents.worker"]
    assert "once.example" not in yaml.safe_dump_all(yaml.safe_load_all(result.stdout))
    assert "#   once.example:443  1 request by agents/worker, 2026-03-01T00:00Z" in result.stdout
    assert "- pypi.org  # 12 requests by agents/worker, 2026-03-01T00:00Z to 2026-03-01T11:00Z" in result.stdout
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gw.yaml").write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(3128)), IDENTITY]))
    (tmp_path / "policies" / "learned.yaml").write_text(result.stdout)
    checked = CliRunner().invoke(main, ["check", "--strict", str(tmp_path / "policies")])
    assert checked.exit_code == 0, checked.output


IDENTITY = m.policy(
    name="clients", mode="Report",
    identity={"address": {"clients": [{"cidrs": ["10.0.0.0/8"], "namespace": "agents", "serviceAccount": "worker"}]}},
)  # fmt: skip


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("namespace", ["learned.gw.agents", "learned.gw.everybody"]),
        ("service-account", ["learned.gw.agents.crawler", "learned.gw.agents.worker", "learned.gw.everybody"]),
        ("identity", ["learned.gw.agents.crawler", "learned.gw.agents.worker"]),
    ],
)
def test_for_whom_a_policy_is(by: str, names: list[str], tmp_path: Path):
    user = often("api.example", namespace="-", service_account="-", identity="alice")
    path = tmp_path / "log"
    path.write_text(text(LINES + user))
    result = invoke(path, "--by", by)
    assert sorted(entries(result.stdout)) == names
    assert "cannot name 1 known client" in result.stderr or "#   api.example:443  12 requests by alice" in result.stdout


def test_the_same_input_gives_the_same_bytes(log: Path, tmp_path: Path):
    whole = invoke(log).stdout
    packed = tmp_path / "day.jsonl.1.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert invoke(packed).stdout == whole
    assert invoke("-", given=log.read_bytes()).stdout == whole
    halves = tmp_path / "a", tmp_path / "b"
    lines = log.read_text().splitlines(keepends=True)
    for path, part in zip(halves, (lines[::2], lines[1::2]), strict=True):
        path.write_text("".join(part))
    assert invoke(*halves).stdout == invoke(*reversed(halves)).stdout == whole


def test_hostile_names_stay_in_their_comment(tmp_path: Path):
    hostile = [
        *often("evil.example\n    - hostnames: ['*.com']"), *often("a\u202eb.example"), *often("*.example.com"),
        *often("ok.example", account="x\n    - hostnames: ['*.org']"),
        *often("x.example", canary="\n---\nkind: Secret"),
        *often("y.example", gateway="agents/gw\nspec: {}"), *often("z.example", namespace="true", service_account="1"),
    ]  # fmt: skip
    path = tmp_path / "log"
    path.write_text(text(hostile))
    result = invoke(path)
    assert result.stdout.isascii()
    found = list(yaml.safe_load_all(result.stdout))
    assert {each["kind"] for each in found} == {"EgressPolicy"}
    hosts = {host for name in entries(result.stdout).values() for host in name}
    assert hosts == {"ok.example:443", "y.example:443", "z.example:443"}
    subjects = [each["spec"].get("subjects") for each in found]
    assert [{"namespace": "true", "serviceAccount": "1"}] in subjects


def test_policies_on_trial_name_the_one_in_force(log: Path):
    written = [each for each in yaml.safe_load_all(invoke(log, "--replaces", "watch").stdout) if each]
    assert {each["spec"]["replaces"]["name"] for each in written} == {"watch"}
    assert "not the name of a policy" in invoke(log, "--replaces", "a: b").stderr


def test_a_suffix_is_written_only_for_one_owner(log: Path, tmp_path: Path):
    suffixes = tmp_path / "list"
    suffixes.write_text("com\nio\n// ===BEGIN PRIVATE DOMAINS===\ngithub.io\n")
    hosts = entries(invoke(log, "--suffixes", "--public-suffixes", suffixes).stdout)["learned.gw.agents.worker"]
    assert "*.shop.example.com:443" in hosts
    assert "a.github.io:443" in hosts
    assert not [each for each in hosts if each in ("*.github.io:443", "x.shop.example.com:443")]
    assert "Public Suffix List" in invoke(log, "--suffixes", "--public-suffixes", log).stderr


def test_a_file_is_replaced_only_by_force(log: Path, tmp_path: Path):
    target = tmp_path / "learned.yaml"
    target.write_text("mine")
    refused = invoke(log, "--output", target)
    assert (refused.exit_code, target.read_text()) == (2, "mine")
    assert "--force" in refused.stderr
    assert invoke(log, "--output", target, "--force").exit_code == 0
    assert target.read_text() == invoke(log).stdout
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_single_run_is_told_how_to_learn_from_it():
    once = text([line("once.example")]).encode()
    result = invoke("-", given=once)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1, "egressproxy: 1 destination seen too rarely: --at-least 1 learns from a single run",
    )  # fmt: skip
    assert "--at-least 1 learns" not in invoke("-", "--at-least", "1", given=once).stderr


def test_against_shows_what_is_new_and_what_is_unused(tmp_path: Path):
    first, later = tmp_path / "first", tmp_path / "later"
    first.write_text(text([*often("old.example"), *often("api.example")]))
    days = [line("api.example", 1440 * day) for day in range(20)]
    new = [line("new.example", 1440 * 19 + at) for at in range(5)]
    later.write_text(text([*often("old.example"), *often("api.example"), *days, *new]))
    folder = tmp_path / "policies"
    folder.mkdir()
    by_hand = m.policy(["hand.example"])
    (folder / "gw.yaml").write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(3128)), by_hand]))
    assert invoke(first, "--output", folder / "learned.yaml").exit_code == 0
    assert invoke(first, "--against", folder).output == "egressproxy: 0 new entries, 0 unused\n"
    result = invoke(later, "--against", folder, "--unused-after", "14d")
    assert result.exit_code == 1
    changed = [each.split("  #")[0] for each in result.stdout.splitlines() if each.startswith(("+ ", "- "))]
    assert changed == ["-      - old.example", "+      - new.example"]
    assert "# unused: hand.example of EgressPolicy agents/default" in result.stdout
    short = invoke(later, "--against", folder, "--unused-after", "90d")
    assert "span 19.0 days" in short.stderr
    assert "old.example" not in short.stdout.replace(" - old.example", "")


def test_a_new_file_is_shown_where_there_is_none(log: Path, tmp_path: Path):
    path = tmp_path / "gw.yaml"
    path.write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(3128)), m.policy(["*.github.io", "pypi.org"])]))
    result = invoke(log, "--against", path)
    assert "--- /dev/null\n" in result.stdout
    assert "+      - api.openai.com" in result.stdout
    assert "pypi.org" not in result.stdout
    assert "github.io" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--for", "1h"], "--for is the time of --follow"),
        (["--unused-after", "14d"], "needs --against"),
        (["--burst", "10"], "give one such as 10/10m"),
        (["--follow", "--for", "tomorrow"], "give one such as 90s"),
        (["-", "-"], "can be read once"),
        (["-", "--follow"], "not both"),
    ],
    ids=" ".join,
)
def test_wrong_usage_names_the_remedy(arguments: list[str], says: str):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_what_is_no_log_is_said(tmp_path: Path):
    path = tmp_path / "log"
    path.write_text('{"a": 1}\nno json\n[[[\n')
    result = invoke(path)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "3 lines are no lines of an access log" in result.stderr
    path.write_bytes(gzip.compress(text(LINES).encode())[:-20])
    assert invoke(path).exit_code == 2


def test_decisions_of_a_process_are_followed_and_each_is_counted_once(monkeypatch: pytest.MonkeyPatch):
    def decision(at: int, host: str = "api.example") -> dict[str, Any]:
        return {"time": 1_800_000_000.0 + 60 * at, "method": "GET", "authority": f"{host}:443", "path": "/v1/x",
                "gateway": "agents/gw", "namespace": "agents", "service_account": "worker", "reason": "-",
                "listener": "forward"}  # fmt: skip

    polls = [
        [decision(0), decision(0, "a.routed.example")],
        [decision(1), decision(0)],
        [decision(2), decision(1), decision(0)],
    ]
    asked = []
    model = {
        "Listener agents/gw/forward": {"protocol": "egressproxy.io/forward-proxy"},
        "HTTPRoute agents/api on agents/gw/forward": {"hostnames": ["*.routed.example"]},
    }

    def ask(_admin: object, path: str, pairs: list[tuple[str, str]] | None = None) -> dict[str, Any]:
        if path == "/model":
            return {"model": model}
        asked.append((path, pairs))
        if len(asked) > len(polls):
            raise KeyboardInterrupt
        return {"decisions": polls[len(asked) - 1]}

    monkeypatch.setattr(learn, "ask", ask)
    monkeypatch.setattr(learn, "POLL_S", 0.0)
    result = invoke("--follow")
    assert result.exit_code == 0
    assert "- api.example  # 3 requests by agents/worker" in result.stdout
    assert "GET /v1/x" in result.stdout
    assert "# served by a route, which permits it: 1" in result.stdout
    assert asked[0] == ("/decisions", [("all", "1")])
