"""Writes, worked out by a process of their own, and kept once they are in service."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from egressproxy.loading import apart
from egressproxy.loading.apart import LoadingFailed
from egressproxy.loading.result import Loaded, shown
from egressproxy.loading.writer import Writer
from egressproxy.loading.writes import staging
from egressproxy.model.api_write import Verb, Write, WriteRefused
from egressproxy.model.state_folder import MARK

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}


def write(verb: Verb = Verb.CREATE, **more: object) -> Write:
    body = json.dumps({**MAP, **more}).encode() if verb is not Verb.DELETE else b""
    return Write(verb, "", "v1", "ConfigMap", "configmaps", "default", "a", body, "me")


class Service:
    """Puts configurations into service, or refuses them."""

    def __init__(self) -> None:
        self.latest: Loaded | None = None
        self.error: Exception | None = None

    async def __call__(self, loaded: Loaded) -> None:
        if self.error is not None:
            raise self.error
        self.latest = loaded

    @property
    def names(self) -> list[str]:
        return [each.name for each in shown(self.latest.shown)] if self.latest is not None else []


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Writer]:
    made = Writer((), ("127.0.0.1",), tmp_path / "state")
    made.open()
    yield made
    made.close()


def kept(tmp_path: Path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path / "state") if not name.startswith(".l") and name != MARK)


async def test_what_is_in_service_is_kept(made: Writer, tmp_path: Path):
    service = Service()
    written = await made.write(write(), b"", service)
    assert written.is_new
    assert service.names == ["a"]
    assert kept(tmp_path) == ["configmap_default_a.yaml"]
    await made.write(write(Verb.DELETE), b"", service)
    assert service.names == []
    assert kept(tmp_path) == []


async def test_what_cannot_be_put_into_service_is_not_kept(made: Writer, tmp_path: Path):
    service = Service()
    service.error = OSError("the port is taken")
    with pytest.raises(OSError, match="the port is taken"):
        await made.write(write(), b"", service)
    assert kept(tmp_path) == []


async def test_a_deletion_that_cannot_be_put_into_service_leaves_the_file(made: Writer, tmp_path: Path):
    service = Service()
    await made.write(write(), b"", service)
    service.error = OSError("no")
    with pytest.raises(OSError, match="no"):
        await made.write(write(Verb.DELETE), b"", service)
    assert kept(tmp_path) == ["configmap_default_a.yaml"]


async def test_a_refusal_comes_back_with_its_causes(made: Writer, tmp_path: Path):
    with pytest.raises(WriteRefused) as caught:
        await made.write(write(data={"x": 1}), b"", Service())
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert [field for _, _, field in caught.value.causes] == ["data.x"]
    assert kept(tmp_path) == []


async def test_what_changes_nothing_puts_nothing_into_service(made: Writer):
    await made.write(write(), b"", Service())
    again = Service()
    assert not (await made.write(write(Verb.REPLACE), b"", again)).is_new
    assert again.latest is None


async def test_a_process_that_dies_has_changed_nothing(made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apart, "_command", lambda _module: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(LoadingFailed):
        await made.write(write(), b"", Service())
    assert kept(tmp_path) == []


async def test_the_next_process_waits_for_a_while_and_is_used(made: Writer):
    await made.write(write(), b"", Service())
    spare = made._spare
    assert spare is not None
    await made.write(write(Verb.DELETE), b"", Service())
    assert made._spare is not spare
    made._drop_spare()
    assert made._spare is None


def test_a_folder_that_another_process_has_is_told(made: Writer, tmp_path: Path):
    with pytest.raises(OSError, match="another process has it"):
        Writer((), (), tmp_path / "state").open()


async def test_the_disk_is_not_waited_for_on_the_event_loop(made: Writer, monkeypatch: pytest.MonkeyPatch):
    threads = []
    monkeypatch.setattr(staging, "commit", lambda *_args: threads.append(threading.get_ident()))
    await made.write(write(), b"", Service())
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
