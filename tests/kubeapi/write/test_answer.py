"""Writes, worked out against the files that there are, and against each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egressproxy.config.compile.interface import Defaults
from egressproxy.config.reading.load import ResourceSet, load_text
from egressproxy.config.reading.problems import ConfigError, Problem
from egressproxy.config.resources.policy import EgressPolicy
from egressproxy.filters.catalog import Catalog
from egressproxy.kubeapi.write import answer as module
from egressproxy.kubeapi.write import staging
from egressproxy.kubeapi.write.answer import MAX_TEXT, with_warnings
from egressproxy.kubeapi.write.apply import MAX_WARNINGS, AppliedWrite
from egressproxy.kubeapi.write.write import (
    Outcomes,
    Result,
    Verb,
    Write,
    WriteRefused,
    Written,
    read_outcomes,
    write_writes,
)
from egressproxy.processes.loader.request import LoadRequest, write_request
from egressproxy.processes.loader.result import shown
from tests.config.compile.kit import FORWARD, policy
from tests.support.compiling import compile_valid


def write(verb: Verb, name: str = "a", body: dict[str, object] | None = None, **more: Any) -> Write:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "1"}}
    octets = b"" if verb is Verb.DELETE else json.dumps(made if body is None else body).encode()
    known = name if verb is not Verb.CREATE else ""
    return Write(verb, "", "v1", "ConfigMap", "configmaps", "default", known, octets, "me", **more)


def worked_out(state: Path, *writes: Write) -> Outcomes:
    return read_outcomes(
        module.answer(write_writes(write_request(LoadRequest((), ("127.0.0.1",), state=state)), writes))
    )


def kept(state: Path, *writes: Write) -> list[Result]:
    """The same, and put in place."""
    results = worked_out(state, *writes).results
    pairs = zip(writes, results, strict=True)
    staging.commit(
        [
            (Path(result.file), each.verb is Verb.DELETE)
            for each, result in pairs
            if isinstance(result, Written) and result.file
        ]
    )
    return list(results)


def said(results: Any) -> list[Any]:
    return [each.code if isinstance(each, WriteRefused) else each and each.name for each in results]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[list[str]]]:
    """Every configuration with an object of a name is refused, because of a problem in a file; gives what was tried."""

    def replace(name: str, file: str) -> list[list[str]]:
        compiled = module.compiled
        tried: list[list[str]] = []

        def compile_or_fail(resources: ResourceSet, *more: Any) -> Any:
            tried.append([each.name for each in resources.objects])
            if name in tried[-1]:
                raise ConfigError([Problem(file, 1, 1, "", "data", "out of luck")])
            return compiled(resources, *more)

        monkeypatch.setattr(module, "compiled", compile_or_fail)
        return tried

    return replace


def test_what_changes_nothing_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    kept(tmp_path, write(Verb.CREATE))
    monkeypatch.setattr(module, "compiled", None)
    same = worked_out(tmp_path, write(Verb.MERGE_PATCH, body={"data": {"x": "1"}}))
    assert same.loaded is None
    (result,) = same.results
    assert isinstance(result, Written)
    assert result.file == ""


def test_all_that_wait_are_compiled_together(tmp_path: Path, fails: Callable[[str, str], list[list[str]]]):
    tried = fails("nobody", "")
    made = worked_out(tmp_path, *(write(Verb.CREATE, name) for name in "abc"))
    assert said(made.results) == ["a", "b", "c"]
    assert made.loaded is not None
    assert [each.name for each in shown(made.loaded.shown)] == ["a", "b", "c"]
    assert tried == [["a", "b", "c"]]


def test_the_one_whose_file_is_at_fault_is_refused_and_no_other(
    tmp_path: Path, fails: Callable[[str, str], list[list[str]]]
):
    tried = fails("b", str(tmp_path / "configmap_default_b.yaml"))
    made = worked_out(tmp_path, *(write(Verb.CREATE, name) for name in "abc"))
    assert said(made.results) == ["a", 422, "c"]
    assert tried == [["a", "b", "c"], ["a", "c"]]
    assert sorted(tmp_path.glob(".staged-*")) == [tmp_path / f".staged-configmap_default_{name}.yaml" for name in "ac"]


def test_where_nobody_can_be_blamed_they_are_compiled_one_by_one(
    tmp_path: Path, fails: Callable[[str, str], list[list[str]]]
):
    tried = fails("b", "elsewhere.yaml")
    waiting = [write(Verb.CREATE, name) for name in "abc"]
    first = kept(tmp_path, *waiting)
    assert said(first) == ["a", None, None]
    assert tried == [["a", "b", "c"], ["a"]]
    second = kept(tmp_path, *waiting[1:])
    assert said(second) == [503, "c"]


def test_a_second_write_to_an_object_waits_for_the_first(tmp_path: Path):
    kept(tmp_path, write(Verb.CREATE))
    patch = write(Verb.MERGE_PATCH, body={"data": {"x": "2"}})
    made = kept(tmp_path, write(Verb.DELETE), patch, write(Verb.CREATE), write(Verb.CREATE, "b"))
    assert said(made) == ["a", None, None, "b"]
    assert said(kept(tmp_path, patch, write(Verb.CREATE))) == [404, "a"]


def test_a_name_that_two_create_is_that_of_the_first(tmp_path: Path):
    assert said(worked_out(tmp_path, write(Verb.CREATE), write(Verb.CREATE)).results) == ["a", 409]


def test_a_name_is_free_again_when_the_first_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def stage(*_arguments: object) -> None:
        seen.append(1)
        if len(seen) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "stage", stage)
    assert said(worked_out(tmp_path, write(Verb.CREATE), write(Verb.CREATE)).results) == [500, "a"]


def test_a_dry_run_changes_nothing_for_the_others(tmp_path: Path):
    made = worked_out(
        tmp_path,
        write(Verb.CREATE, "a", is_dry_run=True),
        write(Verb.CREATE, "a"),
        write(Verb.CREATE, "b", is_dry_run=True),
    )
    assert said(made.results) == ["a", "a", "b"]
    assert made.loaded is not None
    assert [each.name for each in shown(made.loaded.shown)] == ["a"]
    assert [each.name for each in tmp_path.iterdir()] == [".staged-configmap_default_a.yaml"]


def test_a_defect_with_one_is_no_other_s_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    changed = module.changed

    def defective(resources: ResourceSet, asked: Write, *more: Any) -> Any:
        if b'"b"' in asked.body:
            raise KeyError("CANARY")
        return changed(resources, asked, *more)

    monkeypatch.setattr(module, "changed", defective)
    made = worked_out(tmp_path, *(write(Verb.CREATE, name) for name in "abc"))
    assert said(made.results) == ["a", 500, "c"]
    assert "internal error: KeyError" in capsys.readouterr().err


def test_what_takes_too_long_waits_for_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BUDGET_S", -1.0)
    assert said(worked_out(tmp_path, *(write(Verb.CREATE, name) for name in "abc")).results) == ["a", None, None]


def test_those_that_wait_count_for_the_room_that_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egressproxy.kubeapi.write.apply.MAX_OBJECTS", 2)
    assert said(worked_out(tmp_path, *(write(Verb.CREATE, name) for name in "abc")).results) == ["a", "b", 403]


def test_a_refusal_is_bounded_however_much_is_wrong(tmp_path: Path):
    rule = {"matches": [{"path": {"type": "Bogus", "value": "x"}}] * 8}
    body = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "a"},
        "spec": {"rules": [rule] * 300},
    }
    route = Write(
        Verb.CREATE, "gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes", "default", "",
        json.dumps(body).encode(), "me",
    )  # fmt: skip
    (refused,) = worked_out(tmp_path, route).results
    assert isinstance(refused, WriteRefused)
    assert (refused.code, len(refused.causes)) == (422, 101)
    assert refused.causes[-1][1:] == ("and 2300 more", "<nil>")
    assert len(str(refused)) < 100_000
    file = tmp_path / "httproute.gateway.networking.k8s.io_default_a.yaml"
    file.write_text(json.dumps(body))
    for refused in worked_out(tmp_path, write(Verb.CREATE), write(Verb.CREATE, "b")).results:
        assert isinstance(refused, WriteRefused)
        assert refused.code == 503
        assert str(refused).endswith("; and 2390 more")
        assert len(str(refused)) < 11_000


WRITE = Write(Verb.CREATE, "egressproxy.io", "v1alpha1", "EgressPolicy", "egresspolicies", "default", "p", b"", "me")


def written(*manifests: str, text: str = "text", warnings: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The warnings of a write of the first EgressPolicy of these."""
    resources = load_text("\n---\n".join(manifests), "config.yaml")
    made = compile_valid(resources, Catalog(), Defaults())
    change = AppliedWrite(WRITE, resources, resources.of(EgressPolicy)[0], text, Path("file"), warnings=warnings)
    return with_warnings(change, made).warnings


def test_what_is_not_served_is_told_with_its_field_and_what_to_do():
    (told,) = written(FORWARD, policy("mode: Enforce", name="gv"))
    assert told.startswith("spec.targetRefs[0]: target gv: Accepted is False (TargetNotFound): ")
    assert "in this namespace there is gw" in told


def test_what_is_wrong_with_others_is_not_told():
    assert written(FORWARD, policy("mode: Enforce"), policy("mode: Enforce", name="gv", policy_name="other")) == ()


def test_what_is_only_to_be_known_is_not_told():
    """A listener's policy that overrides the Gateway's is how policies are meant to be written."""
    narrow = policy("mode: Report", policy_name="narrow").replace("name: gw}]", "name: gw, sectionName: forward}]")
    assert written(FORWARD, policy("mode: Enforce"), narrow) == ()


def test_a_deletion_warns_of_nothing():
    assert written(FORWARD, policy("mode: Enforce", name="gv"), text="") == ()


def test_warnings_have_bounds():
    unknown = tuple(f'unknown field "{number}"' for number in range(MAX_WARNINGS))
    assert written(FORWARD, policy("mode: Enforce", name="gv"), warnings=unknown) == unknown
    (told,) = written(FORWARD, policy("mode: Enforce", name="v" * 250))
    assert len(told) <= MAX_TEXT
