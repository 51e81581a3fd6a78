"""The command as a whole: what it says, and what it must not load to say it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from egressproxy import __version__
from egressproxy.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = str(ROOT / "config" / "minimal.yaml")
SIDECAR = str(ROOT / "config" / "sidecar.yaml")


def test_help_teaches_the_first_steps():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for word in ("egressproxy run", "egressproxy check", "curl -x", "schema", "version"):
        assert word in result.output


@pytest.mark.parametrize("verb", main.list_commands(None))  # type: ignore[arg-type]
def test_every_verb_has_help_with_an_example(verb: str):
    result = CliRunner().invoke(main, [verb, "-h"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: main {verb}")
    assert f"\n    egressproxy {verb}" in result.output.partition("Example")[2]


@pytest.mark.parametrize(
    ("verb", "of_verb"),
    [
        ("audit", "verify"),
        ("audit", "show"),
        ("cache", "show"),
        ("cache", "purge"),
        ("ca", "init"),
        ("ca", "show"),
        ("ca", "rotate"),
        ("ca", "trust"),
    ],
)
def test_every_part_of_a_verb_has_help_with_an_example_and_one_whole_line_in_the_list(verb: str, of_verb: str):
    result = CliRunner().invoke(main, [verb, of_verb, "-h"])
    assert f"\n    egressproxy {verb} {of_verb}" in result.output.partition("Example")[2]
    (line,) = [
        each for each in CliRunner().invoke(main, [verb, "-h"]).output.splitlines() if each.split()[:1] == [of_verb]
    ]
    assert line.endswith(".")
    assert not line.endswith("..")


def test_records_of_a_folder_that_has_none_and_of_no_kind_are_told(tmp_path: Path):
    result = CliRunner().invoke(main, ["audit", "show", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"{tmp_path}: there are no records\n"
    result = CliRunner().invoke(main, ["audit", "show", str(tmp_path), "--kind", "opened"])
    assert result.exit_code == 2
    assert "'exchange', 'open', 'gap', 'all'" in result.output


@pytest.mark.parametrize("value", ["off", "foo", "/run/filters.sock"])
def test_what_is_no_place_for_serve_filters_to_listen_is_told_with_both_forms(value: str):
    result = CliRunner().invoke(main, ["serve-filters", "--config", MINIMAL, "--listen", value])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert f"{value!r} is neither unix:PATH nor HOST:PORT; give one such as unix:/run/egressproxy/filters.sock" in said


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


#: What nothing that ends soon may load: it takes longer than all that such a verb does.
NEVER = [
    "aiohttp",
    "h2",
    "prometheus_client",
    "rich",
    "watchfiles",
    "jsonpatch",
    "egressproxy.app",
    "egressproxy.admin",
]
#: What only a process that serves, or that builds what serves, has use for.
SERVING = [
    "asyncio",
    "dns",
    "egressproxy.gateway",
    "egressproxy.protocols",
    "egressproxy.processes.workers",
    "cryptography",
    "ssl",
]


def loaded_by(arguments: list[str], unwanted: list[str]) -> list[str]:
    """Which of these modules a verb has loaded in the end."""
    program = (
        "import sys\n"
        "from egressproxy.cli.main import main\n"
        "try:\n"
        f"    main.main({arguments!r}, standalone_mode=False)\n"
        "except SystemExit:\n"
        "    pass\n"
        f"print([name for name in {unwanted!r} if name in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(result.stdout.splitlines()[-1].replace("'", '"'))
    return found


@pytest.mark.parametrize("arguments", [["version"], ["--version"], ["--help"], ["run", "--help"], ["check", "--help"]])
def test_what_needs_no_configuration_loads_none_of_the_heavy_libraries(arguments: list[str]):
    assert loaded_by(arguments, [*NEVER, *SERVING, "pydantic", "yaml"]) == []


@pytest.mark.parametrize("config", [MINIMAL, SIDECAR])
def test_check_loads_nothing_that_serves(config: str):
    """Nor do filters, which it builds: the second has some."""
    assert loaded_by(["check", config], [*NEVER, *SERVING, "ctypes"]) == []


def test_explain_of_files_loads_neither_the_admin_api_nor_libraries_of_clients():
    question = ["explain", "CONNECT", "api.github.com:443", "--no-dns", "--config", MINIMAL]
    assert loaded_by(question, [*NEVER, "egressproxy.processes.workers", "cryptography", "http.client"]) == []


def test_the_list_of_verbs_imports_none_of_them_and_names_each():
    listed = CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2].split("\n")
    names = [line.split()[0] for line in listed if line.strip()]
    assert names == main.list_commands(None)  # type: ignore[arg-type]
    modules = {name: f"egressproxy.cli.{name.replace('-', '_')}" for name in names}
    assert loaded_by(["--help"], list(modules.values())) == []
    for name, module in modules.items():
        assert import_module(module).command.name == name


@pytest.mark.parametrize(
    ("arguments", "status"), [(["check", MINIMAL], 0), (["check", "/does/not/exist"], 2), (["check", "--help"], 0)]
)
def test_the_program_that_ends_at_once_has_said_everything_and_has_its_status(arguments: list[str], status: int):
    result = subprocess.run([sys.executable, "-m", "egressproxy", *arguments], capture_output=True, text=True)
    assert result.returncode == status
    assert (result.stdout or result.stderr).endswith("\n")


def test_the_module_is_the_same_command():
    result = subprocess.run(
        [sys.executable, "-m", "egressproxy", "version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("egressproxy ")
