from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from egressproxy.config.reading.source_files import manifest_files
from egressproxy.kubeapi.write.staging import commit, discard, file_of, lock, stage
from egressproxy.model.state_folder import MARK


def test_an_object_has_a_file_of_its_own(tmp_path: Path):
    route = file_of(tmp_path, "gateway.networking.k8s.io", "HTTPRoute", "agents", "a.b")
    assert route.name == "httproute.gateway.networking.k8s.io_agents_a.b.yaml"
    assert file_of(tmp_path, "", "Namespace", "", "agents").name == "namespace_agents.yaml"


def test_names_that_are_too_long_for_a_file_are_cut_and_told_apart(tmp_path: Path):
    long = [file_of(tmp_path, "gateway.networking.k8s.io", "HTTPRoute", "n" * 63, "a" * 252 + last) for last in "xy"]
    assert long[0] != long[1]
    for each in long:
        stage(each, "x")
        commit([(each, False)])


def test_what_is_staged_is_no_manifest_until_it_is_committed(tmp_path: Path):
    file = tmp_path / "a.yaml"
    stage(file, "secret")
    assert manifest_files(tmp_path) == []
    commit([(file, False)])
    assert manifest_files(tmp_path) == [file]
    assert file.read_text() == "secret"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    commit([(file, True)])
    assert os.listdir(tmp_path) == []


def test_what_is_discarded_leaves_nothing(tmp_path: Path):
    file = tmp_path / "a.yaml"
    stage(file, "x")
    discard(file)
    discard(file)
    assert os.listdir(tmp_path) == []


def test_the_lock_goes_over_to_a_process_that_is_given_it(tmp_path: Path):
    folder = tmp_path / "state"
    held = lock(folder)
    given = os.dup(held)
    mine = lock(folder, given)
    os.close(held)
    os.close(given)
    with pytest.raises(BlockingIOError):
        lock(folder)
    os.close(mine)
    again = lock(folder)
    other = lock(tmp_path / "other", again)
    with pytest.raises(BlockingIOError):  # what was given holds another folder
        lock(tmp_path / "other")
    os.close(again)
    os.close(other)


def test_a_folder_belongs_to_one_process_and_is_swept_when_taken(tmp_path: Path):
    folder = tmp_path / "new" / "state"
    held = lock(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    stage(folder / "a.yaml", "half done")
    with pytest.raises(BlockingIOError):
        lock(folder)
    os.close(held)
    again = lock(folder)
    assert sorted(os.listdir(folder)) == [MARK, ".lock"]
    os.close(again)
