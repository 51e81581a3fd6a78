"""Changes of policies that would allow what they denied: made only where they would, and never for what is closed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from egressproxy.gateway.exchange.recent_decisions import RecentDecision
from egressproxy.processes.loader import proposals
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.pickling import dumps
from tests.support import manifests as m

ALLOW: list[dict[str, Any]] = [
    {"hostnames": ["known.example"], "ports": [443]}, {"hostnames": ["a.example", "b.example"], "ports": [443]},
]  # fmt: skip
DENY = [{"hostnames": ["evil.example"]}]


def denied(authority: str, policy: str = "agents/default", **fields: Any) -> tuple[str, RecentDecision]:
    known = {
        "method": "CONNECT", "scheme": "https", "authority": authority, "path": "-", "gateway": "agents/gw",
        "listener": "forward", "namespace": "-", "service_account": "-", "reason": "destination_not_allowed",
    }  # fmt: skip
    return policy, RecentDecision(**{**known, **fields})


def proposed(folder: Path, *asked: tuple[str, RecentDecision]) -> list[dict[str, Any] | None]:
    request = write_request(LoadRequest((folder,), ("127.0.0.1",)))
    pairs = json.dumps([(policy, decision._asdict()) for policy, decision in asked]).encode()
    found: list[dict[str, Any] | None] = json.loads(proposals.answer(dumps((request, pairs))))
    return found


def write(folder: Path, *more: m.Manifest, **sections: Any) -> Path:
    sections.setdefault("destinations", {"allow": ALLOW, "deny": DENY})
    m.write(folder / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(**sections), *more])
    return folder


def added(change: dict[str, Any] | None) -> Sequence[Any] | None:
    """What is allowed with a change."""
    return None if change is None else change["manifest"]["spec"]["destinations"]["allow"]


def test_a_change_is_one_entry_for_host_and_port_and_each_by_itself(tmp_path: Path):
    folder = write(tmp_path)
    one, other, port, literal = proposed(
        folder, denied("new.example:443"), denied("b.example:8443"), denied("known.example:80"),
        denied("93.184.216.34:443"),
    )  # fmt: skip
    assert one is not None
    assert one["object"] == "EgressPolicy agents/default"
    assert one["file"].startswith(f"{folder}/all.yaml:")
    assert [line for line in one["diff"].splitlines() if line[0] in "+-"][2:] == [
        '+    - {hostnames: ["new.example"], ports: [443]}',
    ]  # fmt: skip
    assert added(one) == [*ALLOW, {"hostnames": ["new.example"], "ports": [443]}]
    assert added(other) == [*ALLOW, {"hostnames": ["b.example"], "ports": [8443]}]  # not for a.example, too
    assert added(port) == [{"hostnames": ["known.example"], "ports": [443, 80]}, ALLOW[1]]
    assert added(literal) == [*ALLOW, {"cidrs": ["93.184.216.34/32"], "ports": [443]}]


NEW = '{hostnames: ["b.example"], ports: [443]}'
SECRET = "kind: Secret\nstringData:\n  key: SECRET\n"


@pytest.mark.parametrize(
    ("allow", "port", "changed"),
    [
        ("\n    - hostnames: [a.example]  # why\n      ports: [443]   # one\n", 443, f"    - {NEW}"),
        (" [{hostnames: [a.example]}]\n", 443, f"    allow: [{{hostnames: [a.example]}}, {NEW}]"),
        ("\n    - hostnames: [b.example]\n      ports:\n      - 443\n    deny: []\n", 80, "      - 80"),
        (" []\n", 443, f"    allow: [{NEW}]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["---", "...\n---"])
def test_a_diff_of_a_file_changes_one_line_of_its_own_text_and_shows_no_other_document(
    tmp_path: Path, allow: str, port: int, changed: str, end: str
):
    file, policy = tmp_path / "p.yaml", f"kind: EgressPolicy\nspec:\n  destinations:\n    allow:{allow}"
    file.write_text(f"{SECRET}---\n{policy}{end}\n{SECRET}")
    diff = proposals._diff_of_file(file, 4, {"hostnames": ["b.example"], "ports": [port]})
    assert diff.startswith(f"--- a{file}\n+++ b{file}\n")
    assert [line[1:] for line in diff.splitlines()[2:] if line[0] == "+"] == [changed]
    assert "SECRET" not in diff
    applied = run(["git", "apply", f"-p{len(file.parts) - 1}"], cwd=tmp_path, input=diff.encode(), check=False)
    assert (applied.returncode, changed in file.read_text().splitlines()) == (0, True)


BARE = "spec: {destinations: {allow: []}}"


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", 0), ("{}\n", 0), ("spec: {destinations: {allow: &a []}, x: *a}\n", 0), (BARE, 0), ("a: [", 0),
        (f"{BARE}\r\n", 0), (f"{BARE} # \u2028\n", 0),
        (f"kind: List\nitems:\n- {BARE}\n---\na: 1\nb: 2\nc: 3\n{BARE}\n", 2),  # the item is meant, no other policy
        (f"{BARE}\n# kind: Secret\n# data: SECRET\n", 0),
        (f"{BARE} # {' ' * proposals.MAX_DIFF}\n", 0), (f"{BARE}\n--- # SECRET\n", 0),
    ],
)  # fmt: skip
def test_what_one_line_cannot_change_has_no_diff_of_its_file(tmp_path: Path, text: str, first: int):
    file = tmp_path / "p.yaml"
    file.write_bytes(text.encode())
    assert proposals._diff_of_file(file, first, {"hostnames": ["b.example"], "ports": [443]}) == ""


@pytest.mark.parametrize("name", ["p.yaml", "a b.yaml", "a\n+++ b.yaml", "../p.yaml", "link.yaml", "p.json"])
def test_a_file_that_no_program_would_change_has_no_diff(tmp_path: Path, name: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link.yaml").symlink_to(tmp_path / "target.yaml")
    file = tmp_path / "folder" / name
    file.write_text(f"{BARE}\n")
    diff = proposals._diff_of_file(file, 0, {"hostnames": ["b.example"], "ports": [443]})
    assert bool(diff) is (name == "p.yaml")


@pytest.mark.parametrize(
    "authority",
    [
        "169.254.169.254:80", "10.0.0.1:443", "127.0.0.1:80", "[::1]:80", "[fd00:ec2::254]:80",
        "[::ffff:169.254.169.254]:80", "224.0.0.1:80", "evil.example:443", "*.example:443", "-", "a b:1",
        "0xa9fea9fe:80", "2852039166:80", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::1]:80", "[::a9fe:a9fe]:80",
        "[fe80::1%25eth0]:80",
    ],
)  # fmt: skip
def test_nothing_is_proposed_for_what_is_closed_denied_or_no_host(tmp_path: Path, authority: str):
    folder = write(tmp_path, addresses={"allow": [{"cidrs": ["0.0.0.0/0", "::/0"]}]})
    closed, control = proposed(folder, denied(authority), denied("new.example:443"))
    assert (closed, control is None) == (None, False)


def test_a_change_that_would_not_allow_it_is_not_proposed(tmp_path: Path):
    """Another level has to allow it, too; another policy has denied; or it has no list, which would close all else."""
    listener = {"group": m.GATEWAY_API, "kind": "Gateway", "name": "gw", "sectionName": "forward"}
    stricter = m.policy(("c.example",), name="stricter", targetRefs=[listener])
    folder = write(tmp_path, stricter, m.policy(None, name="other"))
    asked = [denied("new.example:443", policy) for policy in ("agents/default", "agents/other", "agents/gone", "gone")]
    assert proposed(folder, *asked) == [None, None, None, None]
    assert proposed(folder, denied("new.example:443", listener="gone")) == [None]


def test_the_policy_of_a_subject_is_changed_for_that_subject(tmp_path: Path):
    team = m.policy(("t.example",), name="team", subjects=[{"namespace": "team", "serviceAccount": "w"}])
    folder = write(tmp_path, team, destinations={})
    asked = denied("new.example:443", "agents/team", namespace="team", service_account="w")
    mine, others = proposed(folder, asked, denied("new.example:443", "agents/team"))
    assert added(mine) == [{"hostnames": ["t.example"]}, {"hostnames": ["new.example"], "ports": [443]}]
    assert others is None


def test_manifests_that_are_refused_have_no_change(tmp_path: Path):
    folder = write(tmp_path)
    (folder / "more.yaml").write_text("kind: [")
    assert proposed(folder, denied("new.example:443")) == [None]


def test_code_of_filters_does_not_run(tmp_path: Path):
    (tmp_path / "boom.py").write_text("open(__file__ + '.ran', 'w')\n")
    filters = [
        {"name": "x", "type": "egressproxy.io/Python:v1", "phase": "request-headers", "config": {"path": "boom.py"}}
    ]
    folder = write(tmp_path, extensions=filters)
    assert proposed(folder, denied("new.example:443"))[0] is not None
    assert not (tmp_path / "boom.py.ran").exists()


def test_large_objects_are_shown_by_their_diff_alone(tmp_path: Path):
    many = [{"hostnames": [f"host-{number}.example"]} for number in range(900)]
    (change,) = proposed(write(tmp_path, destinations={"allow": many}), denied("new.example:443"))
    assert change is not None
    assert (change["manifest"], len(change["diff"]) < 400) == (None, True)


def test_reloads_wait_for_it_only_so_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client that asks for many hosts, denied by a policy with many entries, makes much work of it."""
    asked = [denied(f"host-{number}.example:443") for number in range(9)]
    for pace_s, made in ((1.0, 1), (0.5, 4), (0.1, 9)):
        clock = count(0.0, pace_s)
        monkeypatch.setattr(proposals, "monotonic", clock.__next__)
        assert sum(each is not None for each in proposed(write(tmp_path), *asked)) == made


def test_what_took_long_to_compile_is_not_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = iter((0.0, 1.0, 60.0, 60.1))
    monkeypatch.setattr(proposals, "monotonic", clock.__next__)
    assert proposed(write(tmp_path), denied("new.example:443"))[0] is not None
