"""The command as a whole: what it says, and what it must not load to say it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from egressproxy import __version__
from egressproxy.cli import main


def test_help_teaches_the_first_steps():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for word in ("egressproxy run", "egressproxy check", "curl -x", "schema", "version"):
        assert word in result.output


@pytest.mark.parametrize("verb", ["run", "check", "schema", "version"])
def test_every_verb_has_help(verb: str):
    result = CliRunner().invoke(main, [verb, "-h"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {verb}")


def test_a_verb_that_does_not_exist_is_wrong_usage():
    result = CliRunner().invoke(main, ["rnu"])
    assert result.exit_code == 2
    assert "rnu" in result.output


def test_version_names_the_release():
    result = CliRunner().invoke(main, ["version"])
    assert result.exit_code == 0
    assert result.output.startswith(f"egressproxy {__version__} ")


def test_version_is_an_option_too():
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"egressproxy {__version__}\n")


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["--help"], ["run", "--help"]])
def test_what_needs_no_configuration_loads_none_of_the_heavy_libraries(arguments: list[str]):
    program = (
        "import sys\n"
        "from egressproxy.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\n"
        "print(sorted({'aiohttp', 'pydantic', 'rich', 'yaml', 'prometheus_client'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_same_command():
    result = subprocess.run(
        [sys.executable, "-m", "egressproxy", "version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("egressproxy ")
