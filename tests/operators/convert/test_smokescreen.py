"""Smokescreen's rules become policies of the same services, and allow no more than Smokescreen."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from egressproxy.operators.convert import smokescreen
from egressproxy.operators.convert.manifests import Converted, ConvertError
from egressproxy.operators.convert.smokescreen import convert_smokescreen
from tests.operators.convert.worlds import World

TEXT = """version: v1
services:
  - name: crawler
    project: search
    action: enforce
    allowed_domains:
      - example.com
      - "*.example.com"
    mitm_domains:
      - domain: example.com
  - {name: batch, project: data, action: report, allowed_domains: [data.example]}
default: {name: unknown-role, project: other, action: enforce}
global_allow_list: [status.example]
"""


def converted(tmp_path: Path, text: str | dict[str, Any]) -> Converted:
    file = tmp_path / "acl.yaml"
    file.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return convert_smokescreen(file)


def test_services_become_policies_with_subjects(tmp_path: Path):
    found = converted(tmp_path, TEXT)
    assert [(each.name, each.mode, [entry.hosts for entry in each.allow]) for each in found.policies] == [
        ("crawler", "Enforce", [("*.example.com",), ("example.com",), ("status.example",)]),
        ("batch", "Report", [("data.example",)]),
        ("default.rule", "Enforce", [("status.example",)]),
    ]
    text = World(found, tmp_path).text
    assert f"    # {tmp_path}/acl.yaml:7 example.com; allowed by line 3\n    - hostnames: [example.com]\n" in text
    assert f"# {tmp_path}/acl.yaml:10 crawler: mitm_domains: tunnels are looked into by `intercept`" in text
    assert [each.origin.text for each in found.left_out if each.is_rule] == ["crawler: mitm_domains"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v1", "v2", "acl.yaml:1: version has to be v1"), ("enforce\n", "deny\n", "action 'deny'"),
        ('"*.example.com"', '"a.*.com"', "acl.yaml:8 a.\\*.com: write a name, or"),
        ("batch", "crawler", "two rules for service"),
        ("services", "service", "the list services is missing"), ("version: v1", "- v1", "not YAML"),
    ],
    ids=["version", "action", "glob", "twice", "no_services", "yaml"],
)  # fmt: skip
def test_what_smokescreen_refuses_is_refused(tmp_path: Path, old: str, new: str, message: str):
    with pytest.raises(ConvertError, match=message):
        converted(tmp_path, TEXT.replace(old, new, 1))


GLOBS = ("a.example", "*.a.example", "b.a.example", "*.b.a.example", "c.example", "203.0.113.9")
HOSTS = (
    "a.example",
    "b.a.example",
    "x.b.a.example",
    "y.a.example",
    "c.example",
    "d.example",
    "203.0.113.9",
    "203.0.113.8",
)


def decided_by_smokescreen(acl: dict[str, Any], service: str, host: str) -> bool:
    """`Decide` of its acl.go."""
    rule = next((each for each in acl["services"] if each["name"] == service), acl.get("default"))

    def matches(globs: list[str]) -> bool:
        return any(host.endswith(each[1:]) if each.startswith("*.") else host == each for each in globs)

    if rule is None:
        return False
    if matches(rule["allowed_domains"]):
        return True
    if matches(acl["global_deny_list"]):
        return False
    return matches(acl["global_allow_list"]) or rule["action"] in ("open", "report")


def play(seed: int, folder: Path) -> tuple[int, int]:
    """How much Smokescreen and the conversion allow; what the conversion allows Smokescreen allows, too."""
    random = Random(seed)

    def some() -> list[str]:
        return random.sample(GLOBS, random.choice((0, 1, 1, 2, 3)))

    def rule(name: str) -> dict[str, Any]:
        action = random.choice(("open", "report", "enforce"))
        return {"name": name, "project": "p", "action": action, "allowed_domains": some()}

    acl = {
        "version": "v1", "services": [rule(f"s{at}") for at in range(random.randint(0, 3))],
        "global_deny_list": some(), "global_allow_list": some(),
    }  # fmt: skip
    if random.random() < 0.6:
        acl["default"] = rule("default")
    found = converted(folder, acl)
    world = World(found, folder)
    theirs = ours = 0
    for service in ("s0", "s1", "s2", "-"):
        for host in HOSTS:
            reached = decided_by_smokescreen(acl, service, host)
            address = host if host[0].isdigit() else "198.51.100.1"
            got = world.allows(service, "CONNECT", host, 443, address)
            assert reached or not got, f"seed {seed}: {service} {host}\n{yaml.safe_dump(acl)}\n{world.text}"
            lost = [each for each in found.left_out if each.is_rule]
            assert got or not reached or lost, (
                f"seed {seed}: {service} {host} is lost\n{yaml.safe_dump(acl)}\n{world.text}"
            )
            theirs, ours = theirs + reached, ours + got
    return theirs, ours


def test_no_request_passes_that_smokescreen_denies(tmp_path: Path):
    theirs, ours = (sum(each) for each in zip(*(play(seed, tmp_path) for seed in range(16)), strict=True))
    assert theirs > 150
    assert ours > theirs / 2


def test_each_service_is_asked_once_about_each_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A list of many services would take hours."""
    asked: list[Any] = []
    verdict = smokescreen._verdict
    monkeypatch.setattr(smokescreen, "_verdict", lambda *rest: asked.append(rest[:2]) or verdict(*rest))
    services = [
        {"name": f"s{n}", "project": "x", "action": "open", "allowed_domains": [f"h{n}.example"]} for n in range(5)
    ]
    denied = [f"evil{number}.example" for number in range(5)]
    default = {"name": "rest", "project": "x", "action": "open"}
    found = converted(
        tmp_path, {"version": "v1", "services": services, "default": default, "global_deny_list": denied}
    )  # fmt: skip
    assert [len(each.hosts) for each in found.policies[-1].deny] == [1] * 5
    assert len(asked) == (5 + 1) * (5 + 5 + 3)
