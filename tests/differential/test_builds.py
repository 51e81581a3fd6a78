"""The compiled build does what its sources do: two processes play the same games, and say the same, byte for byte."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from egressproxy import build
from tests.differential.games import Game, games
from tests.support.properties import examples
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]

where_compiled = pytest.mark.skipif(
    build.name() == build.PURE,
    reason="nothing is compiled here: `make test-compiled` compiles a copy of the checkout, and runs this there",
)


@dataclass(frozen=True, slots=True)
class Answers:
    build: str
    lines: list[str]
    end: str  # "" where it has answered to the end


def played(these: list[Game], root: Path = ROOT, pure: str = "0") -> Answers:
    done = subprocess.run(
        [sys.executable, "-m", "tests.differential.player"], input="".join(f"{json.dumps(each)}\n" for each in these),
        env={**os.environ, "PYTHONPATH": str(root), build.PURE_VARIABLE: pure}, cwd=root,
        capture_output=True, text=True, check=False, timeout=4 * WAIT_S,
    )  # fmt: skip
    name, *lines = done.stdout.splitlines() or ['""']
    end = ""
    if done.returncode:
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        end = f"{how}: {done.stderr[-2000:]}"
    return Answers(json.loads(name), lines, end)


def difference(these: list[Game], one: Answers, other: Answers) -> str:
    """The first game that the two have answered differently, and how; "" where there is none."""
    for number, game in enumerate(these):
        for each in (one, other):
            if number >= len(each.lines):
                return f"{json.dumps(game)}\n{each.build} has ended with {each.end or 'no answer'}"
        first, second = json.loads(one.lines[number]), json.loads(other.lines[number])
        if first != second:
            places = [place for place, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]]
            at = places[0] if places else min(len(first), len(second))
            return f"{json.dumps(game)}\n{one.build}: {first[at : at + 1]}\n{other.build}: {second[at : at + 1]}"
    return one.end or other.end


@where_compiled
def test_the_compiled_build_does_what_its_sources_do():
    seed = 0 if os.environ.get("CI") else random.randrange(2**32)
    these = games(seed, examples(2_000))
    compiled, pure = played(these), played(these, pure="1")
    assert (compiled.build, pure.build) == (build.COMPILED, build.PURE)
    found = difference(these, compiled, pure)
    assert found == "", f"seed {seed}: {found}"


def test_a_game_is_the_same_in_every_process_and_is_played_without_a_mishap():
    these = games(1, 40)
    assert these == games(1, 40) != games(2, 40)
    answers = played(these, pure="1")
    assert (answers.end, len(answers.lines)) == ("", len(these))
    mishaps = [line for line in answers.lines for name in ("TypeError", "AttributeError", "KeyError") if name in line]
    assert mishaps == []
    for name in {game["play"] for game in these}:
        said = {line for game, line in zip(these, answers.lines, strict=True) if game["play"] == name}
        assert len(said) > 20, f"{name}: the games are too much alike"


@pytest.fixture(scope="module")
def right() -> tuple[list[Game], Answers]:
    """Games, and what the sources as they are say to them."""
    these = games(0, 500)
    return these, played(these, pure="1")


#: Small defects by their names: a file, what stands there once, and what is planted in its place.
DEFECTS = {
    "empty lines": ("protocols/http1/codec.py", "MAX_EMPTY_LINES: Final = 4", "MAX_EMPTY_LINES: Final = 3"),
    "a copy": ("protocols/http1/chunked.py", "made._left = self._left", "made._left = 0"),
    "a message": (
        "protocols/http1/message_reader.py",
        '"a line ends in a bare CR or LF, or holds one"',
        '"a bare CR or LF"',
    ),
    "precedence": ("routing/table.py", "-len(self.query),", "len(self.query),"),
    "the pool": ("upstream/pool.py", "len(self.kept) >= self.max_idle", "len(self.kept) > self.max_idle"),
    "metadata": ("upstream/address_policy.py", "if found == _METADATA else", "if found == () else"),
    "firm entries": (
        "routing/destinations.py",
        "if self._firm_allow and (denied is None",
        "if self._firm_allow and (denied",
    ),
}


def test_each_defect_fits_the_sources():
    found = {name: (ROOT / "egressproxy" / path).read_text().count(old) for name, (path, old, _) in DEFECTS.items()}
    assert found == dict.fromkeys(DEFECTS, 1)


@where_compiled
@pytest.mark.parametrize(("path", "old", "new"), DEFECTS.values(), ids=DEFECTS)
def test_a_small_difference_is_found(right: tuple[list[Game], Answers], tmp_path: Path, path: str, old: str, new: str):
    shutil.copytree(
        ROOT / "egressproxy", tmp_path / "egressproxy", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    changed = tmp_path / "egressproxy" / path
    changed.write_text(changed.read_text().replace(old, new))
    these, answers = right
    assert difference(these, answers, played(these, tmp_path, pure="1")) != ""


def test_a_process_that_crashes_is_told_with_the_game_that_it_played():
    these = games(0, 1)
    whole = played(these, pure="1")
    broken = Answers(build.COMPILED, whole.lines[:2], "SIGSEGV: ")
    assert difference(these, broken, whole) == f"{json.dumps(these[2])}\ncompiled has ended with SIGSEGV: "
