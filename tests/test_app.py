"""The composition root, without a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from egressproxy.app import App, RunOptions
from egressproxy.config.problems import ConfigError
from tests.support import manifests as m
from tests.support.net import free_port


def options(folder: Path, *objects: m.Manifest) -> RunOptions:
    m.write(folder / "all.yaml", objects)
    return RunOptions(config=(folder,), admin=None, access_log="off")


async def test_a_start_that_cannot_build_its_configuration_says_so_and_is_a_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Whatever a part raises as ValueError is what a reload would refuse: no traceback at the start either."""

    def refuse(*_: object) -> None:
        raise ValueError("server x cannot be read")

    monkeypatch.setattr("egressproxy.gateway.gateway.build", refuse)
    app = App(options(tmp_path, m.gateway(m.forward_listener(free_port()))))
    assert await app.serve() == 1
    assert "server x cannot be read" in capsys.readouterr().err


async def test_a_start_with_a_bad_manifest_raises_every_problem(tmp_path: Path):
    app = App(options(tmp_path, m.gateway(m.forward_listener(99999)), m.policy(["a.test"], mode="Never")))
    with pytest.raises(ConfigError) as caught:
        await app.serve()
    assert len(caught.value.problems) >= 2


def test_a_process_is_not_ready_before_it_listens():
    assert App(RunOptions()).why_not_ready() == "the listeners are not bound yet"
    assert list(App(RunOptions()).objects()) == []
