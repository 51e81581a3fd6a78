"""What users import: the examples and the documentation need the public surface alone, and what they show runs."""

import ast
import inspect
from pathlib import Path

import pytest

import egressproxy.filters
import egressproxy.testing
from egressproxy.filters import testing
from tests.support.builds import of_sources

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "egressproxy.filters": set(dir(egressproxy.filters)),
    "egressproxy": {"tapes"},
    "egressproxy.filters.testing": set(testing.__all__),
    "egressproxy.testing": set(egressproxy.testing.__all__),
}


def python_blocks(document):
    return [block.partition("```")[0] for block in document.read_text().split("```python\n")[1:]]


def sources():
    """What users copy, by where it stands."""
    for path in [*(ROOT / "config" / "filters").glob("*.py"), ROOT / "tests" / "filters" / "test_example.py"]:
        yield path.name, path.read_text()
    for document in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for number, block in enumerate(python_blocks(document)):
            yield f"{document.name}-{number}", block


SOURCES = dict(sources())


def foreign(code):
    """The names of egressproxy that this code imports and that are not public."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] == "egressproxy"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "egressproxy":
            public = PUBLIC.get(node.module, set())
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public]
    return found


@pytest.mark.parametrize("where", SOURCES)
def test_nothing_but_the_public_surface_is_imported(where):
    assert foreign(SOURCES[where]) == []


def test_a_foreign_import_would_be_found():
    assert foreign("from egressproxy.filters.base import Filter") == ["egressproxy.filters.base.Filter"]
    assert foreign("from egressproxy.filters import Answer") == ["egressproxy.filters.Answer"]
    assert foreign("import egressproxy.errors") == ["egressproxy.errors"]


def test_the_sources_are_there():
    assert {"stamp.py", "test_example.py", "filters.md-0"} <= SOURCES.keys()
    assert sum(name.startswith("filter-api.md") for name in SOURCES) >= 3


def test_a_filter_may_name_the_exchange_as_the_pages_do():
    """The pages write `x`: type checkers refuse an override with another name, unless the name is positional alone."""
    methods = [
        inspect.signature(method) for _, method in inspect.getmembers(egressproxy.filters.Filter, inspect.isfunction)
    ]
    taking = [each.parameters["exchange"] for each in methods if "exchange" in each.parameters]
    assert len(taking) == 16
    assert {each.kind for each in taking} == {inspect.Parameter.POSITIONAL_ONLY}


@of_sources  # compiled classes have no docstrings
@pytest.mark.parametrize("module", [egressproxy.filters, testing], ids=["filters", "testing"])
def test_every_public_name_is_there_and_says_what_it_is(module):
    for name in module.__all__:
        made = getattr(module, name)
        if isinstance(made, type) or callable(made):
            assert made.__doc__, name


def test_the_test_in_the_documentation_runs(monkeypatch):
    (shown,) = (block for block in python_blocks(ROOT / "docs" / "filter-api.md") if "def test_" in block)
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(shown, "filter-api.md", "exec"), names)
    tests = [made for name, made in names.items() if name.startswith("test_")]
    assert len(tests) >= 3
    for test in tests:
        test()
