"""`egressproxy completion` in the shells themselves, on a terminal where they have no other way."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from tests.support import manifests as m
from tests.support.net import free_port
from tests.support.process import GatewayProcess
from tests.support.waiting import WAIT_S, wait_until

PROGRAM = Path(sys.executable).with_name("egressproxy")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a shell: the program is found, and $EGRESSPROXY_ADMIN names a gateway that runs."""
    folder = tmp_path_factory.mktemp("completion")
    objects = [m.gateway(m.forward_listener(free_port()), name="egress-of-the-agents"), m.policy(["a.test"], name="p")]
    with GatewayProcess(folder / "gw", objects, must_be_ready=False) as gateway:
        yield {
            "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "EGRESSPROXY_ADMIN": f"127.0.0.1:{gateway.admin_port}",
        }  # fmt: skip


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("EGRESSPROXY_CLIENTS") == "required":
            pytest.fail(f"{name} is not here: apt-get install {name}")
        pytest.skip(f"{name} is not here: apt-get install {name}")
    return found


#: A line, and what its last word becomes.
LINES = [
    ("egressproxy expl", "explain"),
    ("egressproxy run --guar", "--guarded"),
    ("egressproxy get gatewayc", "gatewayclasses"),
    ("egressproxy get gateways -n agents egress-", "egress-of-the-agents"),
    ("egressproxy dns a.test --gateway agents/e", "agents/egress-of-the-agents"),
]


@pytest.mark.parametrize(("line", "word"), LINES)
def test_bash(environment: dict[str, str], line: str, word: str):
    words = line.split()
    script = (
        f"source <(egressproxy completion bash); COMP_WORDS=({line}); COMP_CWORD={len(words) - 1};"
        f' _egressproxy_completion egressproxy {words[-1]} {words[-2]}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    command = [shell("bash"), "--norc", "-c", script]
    wait_until(lambda: said(command, environment).split() == [word], "a busy gateway may be too late for one key")


@pytest.mark.parametrize(("line", "word"), LINES)
def test_fish(environment: dict[str, str], line: str, word: str):
    command = [shell("fish"), "--no-config", "-c", f"egressproxy completion fish | source; complete -C '{line}'"]
    wait_until(lambda: [each.split("\t")[0] for each in said(command, environment).splitlines()] == [word], line)


def said(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_keys_on_a_terminal_of_zsh(environment: dict[str, str]):
    """zsh completes for its line editor alone, so somebody has to press the key."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(shell("zsh"), ["zsh", "-f", "-i"], environment)
    try:
        setup = (
            "PS1='ready> '; autoload -Uz compinit; compinit -u -D; source <(egressproxy completion zsh); print be''gin"
        )
        os.write(terminal, setup.encode() + b"\n")
        until(terminal, r"\nbegin")
        for line, word in LINES:
            os.write(terminal, line.encode())
            until(terminal, re.escape(word), b"\t")
            os.write(terminal, b"\x15")  # ^U: the line goes
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def until(terminal: int, pattern: str, key: bytes = b"") -> None:
    """Wait until the terminal shows this. Press the key every few seconds: a busy gateway may be too late for one."""
    seen, end, pressed_at = "", time.monotonic() + WAIT_S, -inf
    while re.search(pattern, seen) is None:
        now = time.monotonic()
        assert now < end, seen
        if now - pressed_at > 5:
            os.write(terminal, key)
            pressed_at = now
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
