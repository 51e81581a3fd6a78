"""What the process that loads hands over, without the process."""

from __future__ import annotations

import json
import pickle
import zlib
from pathlib import Path

import pytest

from egressproxy.config.reading.load import read_all
from egressproxy.config.reading.problems import ConfigError, Severity
from egressproxy.model.work import at_once
from egressproxy.net.tls_contexts.system_roots import mark
from egressproxy.processes.loader.answer import answer, previous_of
from egressproxy.processes.loader.compilation import Machine, compiled
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import CompiledConfig, ListenerAddress, read_answer, shown
from egressproxy.processes.packing import unpacking
from egressproxy.processes.pickling import dumps
from tests.support import manifests as m

BIND = ("127.0.0.1",)


def answered(folder: Path, memory: bytes = b"") -> CompiledConfig:
    return read_answer(answer(write_request(LoadRequest((folder,), BIND, memory))))


def statuses(made: CompiledConfig) -> dict[str, tuple[int, object]]:
    return {each.kind: (each.generation, each.status and json.loads(each.status)) for each in shown(made.shown)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, ["a.test"])
    return tmp_path


def write(folder: Path, hostnames: list[str]) -> None:
    rule = m.prefix_rule("/", "origin")
    m.write(
        folder / "all.yaml",
        [
            m.gateway(m.forward_listener(3128), m.http_listener(8080)),
            m.policy(["a.test"]),
            m.backend("origin", "origin.test", 80),
            m.http_route("route", rule, section="http", hostnames=hostnames),
        ],
    )


def test_it_is_what_a_compilation_in_this_process_makes(folder: Path):
    expected = compiled(read_all((folder,)), BIND, machine=Machine(system_roots=mark()))
    made = answered(folder)
    assert at_once(unpacking(made.spec)) == expected.spec
    assert made.objects == 4
    assert ListenerAddress("127.0.0.1", 3128, "egressproxy.io/forward-proxy", "agents/gw/forward") in made.places
    assert {kind for kind, (_, status) in statuses(made).items() if status} >= {"Gateway", "HTTPRoute", "EgressPolicy"}


def test_what_is_wrong_is_said_with_every_problem(tmp_path: Path):
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(99999)), m.policy(["a.test"], mode="Never")])
    with pytest.raises(ConfigError) as here:
        compiled(read_all((tmp_path,)), BIND)
    with pytest.raises(ConfigError) as there:
        answered(tmp_path)
    assert there.value.problems == here.value.problems
    assert len(there.value.problems) >= 2


def test_times_and_generations_go_on_from_the_configuration_before(folder: Path):
    first = answered(folder)
    same = answered(folder, first.memory)
    assert statuses(same) == statuses(first)
    write(folder, ["b.test"])
    changed = statuses(answered(folder, same.memory))
    assert changed["HTTPRoute"][0] == 2
    assert changed["Gateway"][0] == 1


def test_secrets_are_in_the_spec_alone(tmp_path: Path):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"token": "CANARY-1"}}
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), secret])
    made = answered(tmp_path)
    for each in shown(made.shown):
        assert b"CANARY" not in each.manifest + (each.status or b"")
    assert b"CANARY" not in made.memory
    assert "CANARY" not in f"{made!r}{made.findings}"


def test_what_is_known_of_the_last_configuration_makes_no_objects():
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        previous_of(zlib.compress(dumps((1, {}, {}, {}, {"a": Severity.ERROR}))))


def test_a_message_about_a_declared_filter_begins_with_its_place(tmp_path: Path):
    stamp = {
        "name": "stamp",
        "type": "egressproxy.io/Python:v1",
        "phase": "request-headers",
        "config": {"path": "x.py"},
    }
    (tmp_path / "x.py").write_text("")
    m.write(tmp_path / "all.yaml", [m.gateway(m.forward_listener(3128)), m.policy(["a.test"], extensions=[stamp])])
    made = answered(tmp_path)
    (policy, place), *_ = made.filter_places
    assert place.startswith(f"{tmp_path}/all.yaml:")
    assert made.with_places(f"{policy}x): broken\nother") == f"{place}: {policy}x): broken\nother"
