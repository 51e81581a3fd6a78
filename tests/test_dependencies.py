"""What is installed with the gateway is what the gateway imports, and nothing more."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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
    return names - set(sys.stdlib_module_names) - {"egressproxy", "pydantic_core", "_typeshed"}  # pydantic's, mypy's


def test_the_dependencies_are_those_that_are_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in project["dependencies"]}
    known = packages_distributions()
    assert {known[name][0].lower().replace("_", "-") for name in imported()} == declared
