"""Writes, worked out by the process that loads, all that wait at once, and kept once they are in service."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from egressproxy.kubeapi.write import staging
from egressproxy.kubeapi.write.write import Result, Verb, Write, WriteRefused, Written
from egressproxy.kubeapi.write.writer import Writer
from egressproxy.model.state_folder import MARK
from egressproxy.processes.loader import process as apart
from egressproxy.processes.loader.loader import Loader
from egressproxy.processes.loader.result import CompiledConfig, shown


def write(verb: Verb = Verb.CREATE, name: str = "a", **more: object) -> Write:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "1"}, **more}
    body = json.dumps(made).encode() if verb is not Verb.DELETE else b""
    return Write(verb, "", "v1", "ConfigMap", "configmaps", "default", name, body, "me")


class Service:
    """Puts configurations into service, or refuses them."""

    def __init__(self, refuses: Callable[[list[str]], bool] = lambda _: False) -> None:
        self.latest: CompiledConfig | None = None
        self.refuses = refuses
        self.asked: list[list[str]] = []

    async def __call__(self, loaded: CompiledConfig) -> None:
        names = [each.name for each in shown(loaded.shown)]
        self.asked.append(names)
        if self.refuses(names):
            raise WriteRefused(422, "Invalid", "the port is taken")
        self.latest = loaded

    def memory(self) -> bytes:
        return self.latest.memory if self.latest is not None else b""

    @property
    def names(self) -> list[str]:
        if self.latest is None:
            return []
        return [each.name for each in shown(self.latest.shown)]


class Made:
    def __init__(self, writer: Writer, folder: Path) -> None:
        self.writer = writer
        self.folder = folder

    async def write(self, service: Service, *writes: Write) -> list[Result]:
        return await self.writer.write(writes, service.memory, service)

    @property
    def kept(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if not name.startswith(".l") and name != MARK)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    loader = Loader()
    writer = Writer(loader, (), ("127.0.0.1",), tmp_path / "state")
    writer.open()
    yield Made(writer, tmp_path / "state")
    writer.close()
    loader.close()


def refusal(result: Any) -> WriteRefused:
    assert isinstance(result, WriteRefused)
    return result


async def test_what_is_in_service_is_kept(made: Made):
    service = Service()
    (written,) = await made.write(service, write())
    assert isinstance(written, Written)
    assert written.is_new
    assert service.names == ["a"]
    assert made.kept == ["configmap_default_a.yaml"]
    await made.write(service, write(Verb.DELETE))
    assert service.names == []
    assert made.kept == []


async def test_what_waits_is_put_into_service_at_once(made: Made):
    service = Service()
    await made.write(service, write(name="old"))
    results = await made.write(service, *(write(name=f"c{number}") for number in range(9)), write(Verb.DELETE, "old"))
    assert [isinstance(each, Written) for each in results] == [True] * 10
    assert len(service.asked) == 2
    assert sorted(service.names) == [f"c{number}" for number in range(9)]
    assert made.kept == [f"configmap_default_c{number}.yaml" for number in range(9)]


async def test_a_bad_one_is_refused_by_itself(made: Made):
    service = Service()
    results = await made.write(service, write(name="a"), write(name="b", data={"x": 1}), write(name="c"))
    assert [isinstance(each, Written) for each in results] == [True, False, True]
    assert [field for _, _, field in refusal(results[1]).causes] == ["data.x"]
    assert made.kept == ["configmap_default_a.yaml", "configmap_default_c.yaml"]


async def test_what_cannot_be_put_into_service_with_one_of_them_is_tried_without_it(made: Made):
    service = Service(lambda names: "b" in names)
    results = await made.write(service, write(name="a"), write(name="b"), write(name="c"))
    assert [isinstance(each, Written) for each in results] == [True, False, True]
    assert str(refusal(results[1])) == "the port is taken"
    assert service.names == ["a", "c"]
    assert service.asked == [["a", "b", "c"], ["a"], ["a", "b", "c"], ["a", "b"], ["a", "c"]]
    assert made.kept == ["configmap_default_a.yaml", "configmap_default_c.yaml"]


async def test_what_cannot_be_put_into_service_is_not_kept(made: Made):
    service = Service(lambda names: True)
    (result,) = await made.write(service, write())
    assert str(refusal(result)) == "the port is taken"
    assert made.kept == []


async def test_a_defect_of_the_service_leaves_nothing_behind(made: Made):
    async def serve(_loaded: CompiledConfig) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await made.writer.write((write(name="a"), write(name="b")), lambda: b"", serve)
    assert made.kept == []


async def test_a_deletion_that_cannot_be_put_into_service_leaves_the_file(made: Made):
    service = Service()
    await made.write(service, write())
    service.refuses = lambda names: True
    await made.write(service, write(Verb.DELETE))
    assert made.kept == ["configmap_default_a.yaml"]


async def test_what_changes_nothing_puts_nothing_into_service(made: Made):
    await made.write(Service(), write())
    again = Service()
    (written,) = await made.write(again, write(Verb.REPLACE))
    assert isinstance(written, Written)
    assert not written.is_new
    assert again.latest is None


async def test_a_process_that_dies_has_changed_nothing(made: Made, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "child_command", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
    service = Service()
    results = await made.write(service, write(name="a"), write(name="b"))
    assert [(refusal(each).code, "ended with status 3" in str(each)) for each in results] == [(503, True)] * 2
    assert service.asked == []
    assert made.kept == []


def test_a_folder_that_another_process_has_is_told(tmp_path: Path):
    first, second = (Writer(Loader(), (), (), tmp_path / "state") for _ in range(2))
    first.open()
    with pytest.raises(OSError, match="another process has it"):
        second.open()
    first.close()
    second.open()
    second.close()


async def test_the_disk_is_not_waited_for_on_the_event_loop(made: Made, monkeypatch: pytest.MonkeyPatch):
    threads = []

    def commit(_files: object) -> dict[Path, OSError]:
        threads.append(threading.get_ident())
        return {}

    monkeypatch.setattr(staging, "commit", commit)
    await made.write(Service(), write())
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


async def test_what_is_in_service_and_cannot_be_kept_says_so(made: Made, monkeypatch: pytest.MonkeyPatch):
    def commit(files: list[tuple[Path, bool]]) -> dict[Path, OSError]:
        return {files[1][0]: OSError(28, "No space left on device")}

    monkeypatch.setattr(staging, "commit", commit)
    results = await made.write(Service(), write(name="a"), write(name="b"))
    assert isinstance(results[0], Written)
    assert str(refusal(results[1])) == "it is in service, but cannot be kept: No space left on device"
