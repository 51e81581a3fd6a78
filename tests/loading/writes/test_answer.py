"""A write, worked out against the files that there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egressproxy.loading.answer import answer
from egressproxy.loading.outcome import read_outcome
from egressproxy.loading.writes import answer as module
from egressproxy.loading.writes import staging
from egressproxy.model.api_write import Verb, Write

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}


def write(verb: Verb, body: dict[str, object]) -> Write:
    name = "a" if verb is not Verb.CREATE else ""
    return Write(verb, "", "v1", "ConfigMap", "configmaps", "default", name, json.dumps(body).encode(), "me")


def test_what_changes_nothing_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = read_outcome(answer((), ("127.0.0.1",), b"", tmp_path, write(Verb.CREATE, MAP)))
    staging.commit(Path(made.written.file), is_deleted=False)
    monkeypatch.setattr(module, "compiled", None)
    same = read_outcome(answer((), ("127.0.0.1",), b"", tmp_path, write(Verb.MERGE_PATCH, {"data": {"x": "1"}})))
    assert same.loaded is None
    assert same.written.file == ""
