"""What is installed with the gateway is what it imports, and nothing more; the image has it by version and hash."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def imported() -> set[str]:
    """The top-level names that the package imports, anywhere in a file."""
    names: set[str] = set()
    for path in (ROOT / "egressproxy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    return (
        names
        - set(sys.stdlib_module_names)
        - {
            "egressproxy",
            "pydantic_core",  # pydantic's
            "_typeshed",  # mypy's
            "pytest",  # which imports the plugin
        }
    )


def test_the_dependencies_are_those_that_are_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *project["dependencies"],
        *project["optional-dependencies"]["kubernetes"],
        *project["optional-dependencies"]["cel"],
        *project["optional-dependencies"]["vault"],
    ]  # imported where it is asked for
    declared = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in asked}
    known = {
        name: [each.lower().replace("_", "-") for each in found] for name, found in packages_distributions().items()
    }
    # A namespace such as `google` belongs to several packages: to the one that is declared, if any is.
    assert {next((each for each in known[name] if each in declared), known[name][0]) for name in imported()} == declared


def locked(name: str) -> dict[str, tuple[Requirement, int]]:
    """The requirements of a lock file by their names, with the number of their hashes."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    found = {}
    for line in lines:
        wanted, *hashes = line.split("--hash=sha256:")
        requirement = Requirement(wanted)
        assert all(re.fullmatch(r"[0-9a-f]{64}\s*", each) for each in hashes), line
        found[canonicalize_name(requirement.name)] = (requirement, len(hashes))
    return found


#: What `make install` asks for, and what the image is built with.
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("requirements.lock", PROJECT["project"]["dependencies"]),
        ("requirements.lock", PROJECT["project"]["optional-dependencies"]["kubernetes"]),
        ("requirements.lock", PROJECT["project"]["optional-dependencies"]["cel"]),
        ("requirements.lock", PROJECT["project"]["optional-dependencies"]["vault"]),
        ("requirements-build.lock", PROJECT["build-system"]["requires"]),
        ("requirements-build.lock", PROJECT["project"]["optional-dependencies"]["compile"]),
    ],
)
def test_every_dependency_is_locked_to_one_version_that_will_do(name: str, wanted: list[str]):
    """Where this fails, run `make lock`."""
    found = locked(name)
    for text in wanted:
        asked = Requirement(text)
        requirement, _ = found[canonicalize_name(asked.name)]
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        assert asked.specifier.contains(pin.version, prereleases=True), f"{text} is locked to {pin.version}"
    assert all(count for _, count in found.values())


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_lock_leaves_nothing_out_on_any_supported_python(python: str, machine: str):
    here = {
        "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "os_name": "posix",
    }  # fmt: skip
    left_out = [
        name
        for name, (each, _) in locked("requirements.lock").items()
        if each.marker and not each.marker.evaluate(here) and str(each.marker) != 'sys_platform == "win32"'
    ]
    assert left_out == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_the_lock_does_not_say_where_packages_come_from(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-", re.sub(r"^    --hash=.*$", "", text, flags=re.MULTILINE), re.MULTILINE)


def test_what_is_installed_together_is_locked_to_one_version():
    ours, for_builds = locked("requirements.lock"), locked("requirements-build.lock")
    both = ours.keys() & for_builds.keys()
    assert {name for name in both if ours[name][0].specifier != for_builds[name][0].specifier} == set()


def test_the_image_is_built_of_what_is_pinned():
    lines = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    first, *others = [line for line in lines if line.startswith("FROM ")]
    assert re.fullmatch(r"FROM python:3\.\d+\.\d+-[a-z-]+@sha256:[0-9a-f]{64} AS base", first)
    assert {line.split()[1] for line in others} == {"base"}
    installs = [part for line in lines for part in line.split("&&") if re.search(r"\bpip\b.* (?:install|wheel) ", part)]
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-index --no-deps" in line for line in installs)
