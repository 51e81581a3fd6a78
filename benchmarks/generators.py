"""Load generators: processes of their own that say what they counted as lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.world import REPOSITORY, find_program

#: A generator that does not answer this long after its time is killed.
GRACE_S = 20.0


class LoadError(Exception):
    """The proxy does not do what is measured, or an error occurred under load: there is nothing to compare."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a generator counted in one round. Times in microseconds."""

    units: int
    seconds: float
    errors: int
    p50_us: int
    p99_us: int

    def refuse_errors(self) -> None:
        """Raises LoadError where anything went wrong, or nothing was done."""
        if self.errors or not self.units:
            raise LoadError(f"not comparable: {self.errors} errors among {self.units} units")


def python_generator(module: str, *arguments: str) -> list[str]:
    """The command of a generator of benchmarks/load."""
    return [sys.executable, "-m", f"benchmarks.load.{module}", *arguments]


def run_generator(command: list[str], seconds: float, what: str) -> Outcome:
    """From its start to its end. Raises LoadError where it fails, is too slow, or counted an error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + GRACE_S, check=False, cwd=REPOSITORY,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LoadError(f"{what} did not end in time") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise LoadError(f"{what}: {(done.stderr or done.stdout).strip()[-300:]}")
    outcome = Outcome(**json.loads(lines[-1]))
    outcome.refuse_errors()
    return outcome


def run_h2load(url: str, seconds: float, fields: Sequence[str], what: str, body: Path | None = None) -> Outcome:
    """Requests over HTTP/2 by prior knowledge, 32 at a time on each of 8 connections; `body` is that of each.

    Raises LoadError as `run_generator`, and where h2load is missing.
    """
    h2load = find_program("h2load")
    if h2load is None:
        raise LoadError(
            "the generator of W7 and W8 is h2load, and there is none; on Debian: apt-get install nghttp2-client"
        )
    options = ["--data", str(body)] if body is not None else []
    command = python_generator(
        "h2load", h2load, url, str(max(1, round(seconds))), *options, *(f"--header={field}" for field in fields)
    )
    return run_generator(command, seconds, what)


class Generator:
    """One that is asked step by step: it answers with a line, and goes on when it is given one. A context manager.

    So the proxy can be looked at between the steps. Whatever happens, the process has ended on leaving.
    """

    def __init__(self, command: list[str], what: str) -> None:
        self._command = command
        self._what = what

    def __enter__(self) -> Generator:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            cwd=REPOSITORY, start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def answer(self, seconds: float = 0.0) -> dict[str, Any]:
        """Its next line, for which it has so long and some seconds more. Raises LoadError."""
        assert self._process.stdout is not None
        guard = threading.Timer(seconds + GRACE_S, self._process.kill)
        guard.start()
        line = self._process.stdout.readline()
        guard.cancel()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise LoadError(f"{self._what}: {self._errors.read().strip()[-300:] or 'no answer in time'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go_on(self, word: object = "") -> None:
        """Raises LoadError where it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except OSError:
            raise LoadError(f"{self._what}: the generator has ended") from None
