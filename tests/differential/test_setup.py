"""How setup.py compiles: a small project with our setup.py, once and trained, and what it says where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
def total(numbers: list[int]) -> int:
    found = 0
    for number in numbers:
        found += number if number % 2 else -number
    return found
"""
CALLS = """
from egressproxy import code
assert code.__file__.endswith(".so"), code.__file__
code.total(list(range(1000)))
"""
#: In the place of the load, with CALLS: it leaves a result.
ENDS = """
import pathlib, sys
place = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
place.mkdir()
(place / "soak.json").write_text("{}")
"""
PROJECT = """
[project]
name = "small"
version = "1"
[tool.setuptools]
packages = ["egressproxy"]
[tool.egressproxy]
compiled = ["egressproxy.code", "egressproxy.other"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """One compiled module, and a load that it is trained with."""
    place = tmp_path / "a project"
    for name, text in {
        "egressproxy/__init__.py": "",
        "egressproxy/code.py": CODE,
        "egressproxy/other.py": "from egressproxy import code\n",
        "benchmarks/__init__.py": "",
        "benchmarks/soak/__init__.py": "",
        "benchmarks/soak/__main__.py": CALLS + ENDS,
        "pyproject.toml": PROJECT,
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    shutil.copy(ROOT / "setup.py", place)
    return place


def build(project: Path, how: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=project, capture_output=True, text=True,
        check=False, timeout=300,
        env={**os.environ, "EGRESSPROXY_COMPILE": how, "PYTHONPATH": str(project), **environment},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def answers(project: Path) -> str:
    """What the compiled module says; a library that counts has a function for that."""
    ask = "from egressproxy import code; print(code.__file__.endswith('.so'), code.total([1, 2, 3]))"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=project, capture_output=True, text=True, check=True, timeout=60
    )
    [library] = project.glob("egressproxy__mypyc*.so")
    return f"{done.stdout.strip()} {'counts' if b'gcov' in library.read_bytes() else 'does not count'}"


compiles = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


def test_another_word_than_those_it_takes_is_refused(project: Path):
    status, said = build(project, "yes")
    assert (status, said.strip()) == (
        1,
        "EGRESSPROXY_COMPILE is 'yes': it takes '1', 'untrained', or '0' for no compiling",
    )


@compiles
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["1", "untrained"])
def test_what_is_compiled_works_and_counts_no_more(project: Path, how: str):
    status, said = build(project, how, EGRESSPROXY_PURE="1", GCOV_PREFIX="/elsewhere")  # neither is the load's
    assert status == 0, said
    assert answers(project) == "True 2 does not count"
    assert any(project.rglob("*.gcda")) is (how == "1")


@compiles
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_build_that_cannot_be_trained_is_none(project: Path):
    load = project / "benchmarks/soak/__main__.py"
    for text, why in (("raise OSError('no ports')", "no ports"), (ENDS, "the training load has left 0 counts of ")):
        load.write_text(text)
        status, said = build(project, "1")
        assert status == 1
        assert why in said
        assert said.strip().endswith("EGRESSPROXY_COMPILE=untrained does without training")
        assert not [*project.glob("*.so"), *(project / "build").rglob("*.so")]
    shutil.rmtree(project / "benchmarks")
    status, said = build(project, "1")
    assert status == 1
    assert "the training needs what is not here: " in said
    assert f"{project}/benchmarks/soak" in said
