"""Which build runs, and that the sources run where that is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest

from egressproxy import build
from egressproxy.admin import ui
from egressproxy.model import fields

ROOT = Path(__file__).resolve().parents[1]
COMPILED: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["egressproxy"]["compiled"]

#: Prints the build, and where a module is from.
ASK = "from egressproxy import build; import egressproxy.model.fields as t; print(build.name(), t.__file__)"


def said(tmp_path: Path, **environment: str) -> list[str]:
    """What a process says whose egressproxy.model.fields is there as a source, and as what cannot be its library."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
        capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    return done.stdout.split() or [done.stderr.splitlines()[-1].partition(":")[0]]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package with a compiled module beside its source."""
    package = tmp_path / "egressproxy"
    (package / "model").mkdir(parents=True)
    for name in ("__init__.py", "build.py", "model/__init__.py", "model/fields.py"):
        (package / name).write_text((ROOT / "egressproxy" / name).read_text())
    (package / "model/fields.so").write_bytes(b"no library")
    return tmp_path


@pytest.mark.parametrize("value", ["", "0"])
def test_the_compiled_modules_run_where_they_are(installed: Path, value: str):
    assert said(installed, EGRESSPROXY_PURE=value) == ["ImportError"]  # it was tried


@pytest.mark.parametrize("value", ["1", "yes"])
def test_the_sources_run_where_that_is_asked_for(installed: Path, value: str):
    assert said(installed, EGRESSPROXY_PURE=value) == ["pure", str(installed / "egressproxy/model/fields.py")]


def test_sources_alone_are_the_pure_build(installed: Path):
    (installed / "egressproxy/model/fields.so").unlink()
    assert said(installed, EGRESSPROXY_PURE="0")[0] == "pure"


def test_the_name_says_what_is_imported():
    assert build.name() == (build.PURE if str(fields.__file__).endswith(".py") else build.COMPILED)


def test_all_that_is_compiled_is_there_and_sorted():
    assert sorted(set(COMPILED)) == COMPILED
    assert build._SAMPLE in COMPILED
    assert [module for module in COMPILED if not (ROOT / f"{module.replace('.', '/')}.py").is_file()] == []


def test_the_version_says_which_build_runs():
    done = subprocess.run(
        [sys.executable, "-m", "egressproxy", "version"], capture_output=True, text=True, check=True, timeout=60,
        cwd=ROOT,
    )  # fmt: skip
    assert f" ({build.name()}, Python " in done.stdout


def test_an_error_in_either_build_has_file_line_and_function_of_the_source():
    with pytest.raises(ValueError, match="not a field name") as caught:
        fields.Fields.of([(b"a b", b"c")])
    frames = [(each.filename, each.lineno, each.name) for each in traceback.extract_tb(caught.value.__traceback__)]
    (file, line, name), (_, _, caller) = frames[-1], frames[-2]
    assert (file.endswith("egressproxy/model/fields.py"), name, caller) == (True, "add", "of")
    source = (ROOT / "egressproxy/model/fields.py").read_text().splitlines()
    assert source[line - 1].strip().startswith("raise ValueError")


def test_what_compiles_has_the_stubs_that_the_check_of_types_has():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    check, compiler = ({each for each in extras[name] if each.startswith("types-")} for name in ("dev", "compile"))
    assert check == compiler
    assert check


def test_a_release_is_its_version_and_the_names_and_sizes_of_its_files(installed: Path):
    def release() -> str:
        ask = "from egressproxy import build; print(build.release(), build.is_release(build.release()))"
        done = subprocess.run(
            [sys.executable, "-c", ask], env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True, text=True, check=True, timeout=60, cwd=installed,
        )  # fmt: skip
        found, is_same = done.stdout.split()
        assert is_same == "True"
        return found

    first = release()
    package = installed / "egressproxy"
    assert release() == first, "its files in __pycache__ are none of it"
    file = package / "model" / "fields.py"
    file.write_text(file.read_text() + "#")
    assert release() != first
    file.write_text(file.read_text()[:-1])
    assert release() == first
    shutil.rmtree(package / "__pycache__", ignore_errors=True)  # a file of the same size and second is taken from there
    init = package / "__init__.py"
    init.write_text(init.read_text().replace('__version__ = "0.', '__version__ = "9.'))
    assert release() != first


def test_the_admin_page_goes_into_the_wheel_without_its_sources_and_is_small():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tool["package-data"]["egressproxy.admin"] == ["page/dist/*"]
    folder = ROOT / "egressproxy/admin/page"
    left_out = {path for each in tool["exclude-package-data"]["egressproxy.admin"] for path in folder.parent.glob(each)}
    kept = {"node_modules", "dist"}
    sources = {path for path in folder.rglob("*") if path.is_file() and path.relative_to(folder).parts[0] not in kept}
    assert sources == left_out, "what is neither the bundle nor left out"
    if not (folder / "dist" / "page.js").exists():
        pytest.skip("the admin page is not made: `make page`")
    assert {each.name for each in (folder / "dist").iterdir()} == {
        "licenses.txt",
        *(name for name, _ in ui.FILES.values()),
    }
    assert sum((folder / "dist" / name).stat().st_size for name in ("page.js", "page.css")) <= ui.MAX_BYTES


def test_the_packages_of_the_admin_page_are_pinned_and_come_from_no_place_that_is_written_down():
    folder = ROOT / "egressproxy/admin/page"
    asked, lock = (json.loads((folder / name).read_text()) for name in ("package.json", "package-lock.json"))
    for name, version in {**asked["dependencies"], **asked["devDependencies"]}.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
    assert all(each.get("integrity") and "resolved" not in each for path, each in lock["packages"].items() if path)
