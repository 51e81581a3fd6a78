"""Which SIGHUP is the end. (A real terminal: tests/e2e/test_restarts.py.)"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from egressproxy.net import terminal
from egressproxy.net.terminal import RECENT_S, ControllingTerminal


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the terminal: it is there, or it is not."""
    made = tmp_path / "tty"
    made.touch()
    monkeypatch.setattr(terminal, "_PATH", str(made))
    return made


def test_a_terminal_that_is_there_has_not_gone(path: Path):
    assert not ControllingTerminal().has_just_gone()


def test_a_terminal_that_has_gone_with_the_signal(path: Path):
    found = ControllingTerminal()
    path.unlink()
    assert found.has_just_gone()
    assert found.has_just_gone(), "a shell may say it besides"


def test_a_terminal_that_had_gone_long_before_the_signal_means_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    found = ControllingTerminal()
    path.unlink()
    found.look()
    now = terminal.time.monotonic()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now + RECENT_S + 0.1)
    assert not found.has_just_gone()


def test_without_a_terminal_there_is_none_to_go(path: Path):
    path.unlink()
    found = ControllingTerminal()
    assert not found.is_there
    assert not found.has_just_gone()


def test_who_ignores_the_signal_goes_on_without_the_terminal(path: Path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        found = ControllingTerminal()
    finally:
        signal.signal(signal.SIGHUP, before)
    path.unlink()
    assert not found.has_just_gone()
