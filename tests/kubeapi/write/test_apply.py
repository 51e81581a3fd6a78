"""What an object becomes by a write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from egressproxy.config.reading.load import ResourceSet, load
from egressproxy.kubeapi.write.apply import AppliedWrite, changed
from egressproxy.kubeapi.write.staging import commit, stage
from egressproxy.kubeapi.write.write import Verb, Write, WriteRefused

GATEWAY = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "Gateway",
    "metadata": {"name": "g"},
    "spec": {"gatewayClassName": "c", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]},
}
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "g"}, "data": {"a": "QQ==", "b": "Qg=="}}
REDACTED = "cmVkYWN0ZWQ="


class Store:
    """Takes writes as a server would, one after the other."""

    def __init__(self, folder: Path, kind: str = "Gateway") -> None:
        self.folder = folder / "state"
        self.files = folder / "files"
        self.folder.mkdir()
        self.files.mkdir()
        group, version = ("gateway.networking.k8s.io", "v1") if kind == "Gateway" else ("", "v1")
        self.plain = Write(Verb.CREATE, group, version, kind, f"{kind.lower()}s", "default", "g", b"", "me", "7")

    def resources(self) -> ResourceSet:
        return load((self.files,) if any(self.files.iterdir()) else (), self.folder)

    def work_out(self, verb: Verb, body: Any = None, **more: Any) -> AppliedWrite:
        octets = b"" if body is None else json.dumps(body).encode()
        return changed(self.resources(), replace(self.plain, verb=verb, body=octets, **more), self.folder)

    def write(self, verb: Verb, body: Any = None, **more: Any) -> dict[str, Any]:
        change = self.work_out(verb, body, **more)
        if verb is not Verb.DELETE and not change.is_same:
            stage(change.file, change.text)
        if not change.is_same:
            commit([(change.file, verb is Verb.DELETE)])
        found: dict[str, Any] = yaml.safe_load(change.file.read_text()) if change.file.exists() else {}
        return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def refused(store: Store, verb: Verb, body: Any = None, **more: Any) -> WriteRefused:
    with pytest.raises(WriteRefused) as caught:
        store.work_out(verb, body, **more)
    return caught.value


def test_a_new_object_gets_what_the_server_says_of_it(store: Store):
    body = {**GATEWAY, "status": {"x": 1}, "metadata": {"name": "g", "uid": "mine", "generation": 9}}
    kept = store.write(Verb.CREATE, body, name="")
    metadata = kept["metadata"]
    assert (metadata["namespace"], metadata["generation"]) == ("default", 1)
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["managedFields"][0]["manager"] == "me"
    assert "status" not in kept


def test_the_generation_counts_changes_of_the_spec_alone(store: Store):
    created = store.write(Verb.CREATE, GATEWAY)["metadata"]
    labelled = store.write(Verb.MERGE_PATCH, {"metadata": {"labels": {"a": "b"}}})["metadata"]
    assert labelled["generation"] == 1
    patched = store.write(Verb.JSON_PATCH, [{"op": "replace", "path": "/spec/listeners/0/port", "value": 81}])[
        "metadata"
    ]
    assert patched["generation"] == 2
    assert (patched["uid"], patched["creationTimestamp"]) == (created["uid"], created["creationTimestamp"])


def test_a_name_can_be_generated(store: Store):
    body = {**GATEWAY, "metadata": {"generateName": "gen-"}}
    name = store.work_out(Verb.CREATE, body, name="").resource.name
    assert name.startswith("gen-")
    assert len(name) == 9
    error = refused(store, Verb.CREATE, {**GATEWAY, "metadata": {}}, name="")
    assert (error.code, error.causes[0][2]) == (422, "metadata.name")


def test_what_is_there_is_not_created_and_what_is_not_is_not_changed(store: Store):
    assert refused(store, Verb.REPLACE, GATEWAY).code == 404
    assert refused(store, Verb.MERGE_PATCH, {}).code == 404
    assert refused(store, Verb.DELETE).code == 404
    store.write(Verb.CREATE, GATEWAY)
    error = refused(store, Verb.CREATE, GATEWAY)
    assert (error.code, error.reason) == (409, "AlreadyExists")
    assert str(error) == 'gateways.gateway.networking.k8s.io "g" already exists'


def test_every_field_that_is_wrong_is_a_cause(store: Store):
    spec = {"gatewayClassName": "c", "listeners": [{"name": "a", "port": 99999, "protocol": "HTTP", "more": 1}]}
    error = refused(store, Verb.CREATE, {**GATEWAY, "spec": spec})
    assert (error.code, error.reason) == (422, "Invalid")
    assert {field for _, _, field in error.causes} == {"spec.listeners[0].port", "spec.listeners[0].more"}
    assert str(error).startswith('Gateway.gateway.networking.k8s.io "g" is invalid: ')
    assert error.name == "g"  # which the path of a POST does not say


@pytest.mark.parametrize(
    "body",
    [
        {**GATEWAY, "kind": "HTTPRoute"},
        {**GATEWAY, "apiVersion": "v1"},
        {**GATEWAY, "apiVersion": "gateway.networking.k8s.io/v9"},
        {**GATEWAY, "metadata": {"name": "other"}},
        {**GATEWAY, "metadata": {"name": "g", "namespace": "other"}},
        {**GATEWAY, "metadata": []},
        {**GATEWAY, "metadata": {"name": "g", "resourceVersion": "1"}},
        [],
        "text",
    ],
)
def test_a_body_that_is_not_what_the_path_says_is_400(store: Store, body: Any):
    assert refused(store, Verb.CREATE, body).code == 400


def test_a_name_that_would_leave_the_folder_is_refused(store: Store):
    body = {**GATEWAY, "metadata": {"name": "../../etc/x"}}
    assert refused(store, Verb.CREATE, body, name="").code == 422


def test_another_version_than_the_latest_is_a_conflict(store: Store):
    store.write(Verb.CREATE, GATEWAY)
    old = {**GATEWAY, "metadata": {"name": "g", "resourceVersion": "6"}}
    assert refused(store, Verb.REPLACE, old).code == 409
    assert refused(store, Verb.MERGE_PATCH, {"metadata": {"resourceVersion": "6"}}).code == 409
    assert (
        refused(store, Verb.JSON_PATCH, [{"op": "test", "path": "/metadata/resourceVersion", "value": "6"}]).code == 422
    )
    latest = {**GATEWAY, "metadata": {"name": "g", "resourceVersion": "7", "labels": {"a": "b"}}}
    assert store.write(Verb.REPLACE, latest)["metadata"]["labels"] == {"a": "b"}


def test_a_write_that_changes_nothing_is_seen(store: Store):
    store.write(Verb.CREATE, GATEWAY)
    assert store.work_out(Verb.MERGE_PATCH, {}).is_same
    assert store.work_out(Verb.REPLACE, GATEWAY).is_same
    assert not store.work_out(Verb.MERGE_PATCH, {"spec": {"gatewayClassName": "d"}}).is_same


def test_an_object_of_a_file_is_not_written_and_its_place_is_named(store: Store):
    file = store.files / "gw.yaml"
    file.write_text(json.dumps(GATEWAY))
    for verb, body in ((Verb.REPLACE, GATEWAY), (Verb.MERGE_PATCH, {}), (Verb.DELETE, None), (Verb.APPLY, GATEWAY)):
        error = refused(store, verb, body)
        assert error.code == 403
        assert f"{file}:1" in str(error)


def test_what_is_deleted_is_not_among_the_objects(store: Store):
    store.write(Verb.CREATE, GATEWAY)
    assert len(store.work_out(Verb.DELETE).resources) == 0
    assert refused(store, Verb.DELETE, {"preconditions": {"uid": "other"}}).code == 409
    store.write(Verb.DELETE)
    assert len(store.resources()) == 0


def test_server_side_apply_makes_and_changes_an_object(store: Store):
    assert store.work_out(Verb.APPLY, GATEWAY).is_new
    store.write(Verb.APPLY, GATEWAY)
    more = {**GATEWAY, "metadata": {"name": "g", "labels": {"a": "b"}}}
    assert store.write(Verb.APPLY, more)["metadata"]["labels"] == {"a": "b"}
    assert refused(store, Verb.APPLY, {**GATEWAY, "spec": {"gatewayClassName": "d"}}, manager="you").code == 409
    given = {**GATEWAY, "metadata": {"name": "g", "managedFields": [{}]}}
    assert refused(store, Verb.APPLY, given).code == 400


def test_a_secret_that_comes_back_as_it_was_shown_keeps_its_values(tmp_path: Path):
    store = Store(tmp_path, "Secret")
    copy = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(SECRET), "team": "x"}
    kept = store.write(Verb.CREATE, {**SECRET, "metadata": {"name": "g", "annotations": copy}})
    assert kept["metadata"]["annotations"] == {"team": "x"}
    shown = {
        **SECRET,
        "data": {"a": REDACTED, "b": "TmV3"},
        "metadata": {"name": "g", "annotations": {"team": "redacted"}},
    }
    kept = store.write(Verb.REPLACE, shown)
    assert kept["data"] == {"a": "QQ==", "b": "TmV3"}
    assert kept["metadata"]["annotations"] == {"team": "x"}
    error = refused(store, Verb.MERGE_PATCH, {"data": {"c": REDACTED}})
    assert (error.code, error.causes[0][2]) == (422, "data.c")
    kept = store.write(Verb.MERGE_PATCH, {"stringData": {"c": "C"}})
    assert kept["data"] == {"a": "QQ==", "b": "TmV3", "c": "Qw=="}
    assert "stringData" not in kept


def test_a_patch_learns_nothing_of_a_secret(tmp_path: Path):
    store = Store(tmp_path, "Secret")
    kept = {**SECRET, "metadata": {"name": "g", "annotations": {"tool": "CANARY"}}}
    store.write(Verb.CREATE, kept)
    for path, value in (("/data/a", "QQ=="), ("/metadata/annotations/tool", "CANARY")):
        test = {"op": "test", "path": path, "value": value}  # a guess that is right
        assert "QQ==" not in str(refused(store, Verb.JSON_PATCH, [{**test, "value": "no"}]))
        assert refused(store, Verb.JSON_PATCH, [test]).code == 422
    made = store.write(
        Verb.JSON_PATCH,
        [
            {"op": "add", "path": "/metadata/labels", "value": {}},
            {"op": "copy", "from": "/data/a", "path": "/metadata/labels/a"},
            {"op": "copy", "from": "/metadata/annotations/tool", "path": "/metadata/labels/b"},
            {"op": "replace", "path": "/data/b", "value": "TmV3"},
        ],
    )
    assert made["data"] == {"a": "QQ==", "b": "TmV3"}
    assert made["metadata"]["annotations"] == {"tool": "CANARY"}
    assert "QQ==" not in made["metadata"]["labels"].values()
    assert "CANARY" not in made["metadata"]["labels"].values()


def test_a_secret_is_shown_to_nobody(tmp_path: Path):
    store = Store(tmp_path, "Secret")
    change = store.work_out(Verb.CREATE, SECRET)
    assert "QQ==" not in json.dumps(change.resource.to_manifest())
    error = refused(store, Verb.CREATE, {**SECRET, "data": {"a": "%%CANARY%%"}})
    assert "CANARY" not in f"{error}{error.causes}"


def test_a_namespace_that_is_only_implied_can_be_labelled(tmp_path: Path):
    store = Store(tmp_path, "Namespace")
    store.plain = replace(store.plain, namespace="", name="agents")
    kept = store.write(Verb.MERGE_PATCH, {"metadata": {"labels": {"a": "b"}}})
    assert (kept["metadata"]["name"], kept["metadata"]["labels"]) == ("agents", {"a": "b"})
    assert refused(store, Verb.MERGE_PATCH, {}, name="other", resource_version="").code == 404
