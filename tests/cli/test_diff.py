"""`diff` of two configurations: what is printed, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from click.testing import CliRunner, Result

from egressproxy.cli.main import main
from tests.support import manifests as m
from tests.support.net import free_port


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["diff", *map(str, arguments)])


def written(folder: Path, name: str, *allow: str, port: int = 3128) -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump_all([m.gateway(m.forward_listener(port)), m.policy(allow)]))
    return path


def test_the_same_is_0_and_prints_nothing(tmp_path: Path):
    result = invoke(written(tmp_path, "a.yaml", "a.example"), written(tmp_path, "b.yaml", "a.example"))
    assert (result.exit_code, result.output) == (0, "")


def test_what_differs_is_named_by_object_and_field(tmp_path: Path):
    old, new = written(tmp_path, "a.yaml", "a.example"), written(tmp_path, "b.yaml", "b.example", port=3129)
    result = invoke(old, new)
    assert result.exit_code == 1
    assert result.output == (
        "~ Listener agents/gw/forward\n"
        "  ~ port: 3128 -> 3129\n"
        "  - destinations.allow: hostnames: a.example, policy: agents/default\n"
        "  + destinations.allow: hostnames: b.example, policy: agents/default\n"
    )


def test_what_is_added_and_removed_has_its_fields(tmp_path: Path):
    old = written(tmp_path, "a.yaml", "a.example")
    new = tmp_path / "b.yaml"
    objects = [
        m.gateway(m.forward_listener(3128)), m.policy(("a.example",)), m.backend("api", "api.example", 443, tls=True),
        m.http_route("api", m.prefix_rule("/v1", "api"), hostnames=("api.example",)),
    ]  # fmt: skip
    new.write_text(yaml.safe_dump_all(objects))
    added = invoke(old, new).output
    assert "+ Backend agents/api\n" in added
    assert "  + hostname: api.example\n" in added
    assert "+ HTTPRoute agents/api rule 0 on agents/gw/forward\n" in added
    assert invoke(new, old).output == "\n".join(line.replace("+ ", "- ", 1) for line in added.splitlines()) + "\n"


def test_a_parent_that_is_exchanged_is_a_difference(tmp_path: Path):
    """All that is allowed goes another way: whoever it leads to sees it, and its password."""

    def with_parent(name: str, host: str) -> Path:
        path = tmp_path / name
        parent = m.backend("corp", host, 3128)
        path.write_text(
            yaml.safe_dump_all(
                [m.gateway(m.forward_listener(3128)), m.policy(("a.example",), parent={"name": "corp"}), parent]
            )
        )
        return path

    result = invoke(with_parent("a.yaml", "corp.example"), with_parent("b.yaml", "evil.example"))
    assert result.exit_code == 1
    assert result.output == "~ Backend agents/corp\n  ~ hostname: corp.example -> evil.example\n"


def test_nothing_is_said_to_be_none(tmp_path: Path):
    old = written(tmp_path, "a.yaml", "a.example")
    new = tmp_path / "b.yaml"
    objects = [m.gateway(m.forward_listener(3128)), m.policy(("a.example",)), m.backend("api", "api.example", 443),
               m.http_route("api", m.prefix_rule("/v1", "api"))]  # fmt: skip
    new.write_text(yaml.safe_dump_all(objects))
    assert "  + hostnames: none\n" in invoke(old, new).output


def test_decisions_of_an_access_log_that_flip_are_shown_and_counted(tmp_path: Path):
    old, new = written(tmp_path, "a.yaml", "a.example"), written(tmp_path, "b.yaml", "b.example")
    log = tmp_path / "access.jsonl"
    place = {"gateway": "agents/gw", "listener": "forward", "namespace": "-", "service_account": "-"}
    lines = [
        {**place, "method": "CONNECT", "authority": "a.example:443", "path": "-", "reason": "-"},
        {**place, "method": "GET", "authority": "b.example:80", "path": "/x", "reason": "destination_not_allowed"},
        {**place, "method": "GET", "authority": "c.example:80", "path": "/", "reason": "destination_not_allowed"},
    ]  # fmt: skip
    log.write_text("".join(json.dumps(line) + "\n" for line in (*lines, lines[0])) + '{"half": ')
    result = invoke(old, new, "--access-log", log)
    assert result.exit_code == 1
    assert result.output.endswith(
        "! CONNECT a.example:443 on agents/gw/forward: allow -> deny (destination_not_allowed)\n"
        "! GET b.example:80/x on agents/gw/forward: deny (destination_not_allowed) -> allow\n"
        "3 recent decisions were made again; 2 of them would change\n"
    )
    found = json.loads(invoke(old, new, "--access-log", log, "-o", "json").output)
    assert [each["after"] for each in found["flips"]] == ["deny", "allow"]
    assert (found["replayed"], found["same"]) == (3, False)


def test_a_configuration_that_is_refused_is_2(tmp_path: Path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: Nonsense\n")
    assert invoke(bad, bad).exit_code == 2


def test_wrong_usage_is_2(tmp_path: Path):
    good = written(tmp_path, "a.yaml", "a.example")
    assert invoke().exit_code == 2
    assert invoke(good, good, good).exit_code == 2
    assert invoke(good, "--admin", f"127.0.0.1:{free_port()}").exit_code == 2
